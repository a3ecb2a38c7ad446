// [256, tiles]
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;

// A workgroup for each tile: how often it has each digit.
@compute @workgroup_size(256)
// Invocation `lane` counts digit `lane`: all digits of the tile are in workgroup memory.
fn digit_counts(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = group_index(id);
    if tile >= args.tiles { return; }
    digits[lane] = digit_at(tile * DIGITS + lane);
    workgroupBarrier();
    var count = 0u;
    for (var i = 0u; i < DIGITS; i += 1u) { count += u32(digits[i] == lane); }
    counts[lane * args.tiles + tile] = count;
}
