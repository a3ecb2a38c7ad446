// [256, tiles], turned into sums over the tiles in front
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;
// [256]
@group(0) @binding(3) var<storage, read_write> totals: array<u32>;

// A workgroup for each digit: running sums over tiles, 256 of them at a time.
@compute @workgroup_size(256)
fn digit_starts(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = id.x * args.tiles;
    // Counts of the tiles so far.
    var before = 0u;
    for (var first = 0u; first < args.tiles; first += DIGITS) {
        let tile = first + lane;
        var own = 0u;
        if tile < args.tiles { own = counts[row + tile]; }
        digits[lane] = own;
        workgroupBarrier();
        // A running sum over 256 tiles in 8 steps, each between two barriers.
        for (var step = 1u; step < DIGITS; step *= 2u) {
            var left = 0u;
            if lane >= step { left = digits[lane - step]; }
            workgroupBarrier();
            digits[lane] += left;
            workgroupBarrier();
        }
        if tile < args.tiles { counts[row + tile] = before + digits[lane] - own; }
        before += digits[DIGITS - 1u];
        workgroupBarrier();
    }
    if lane == 0u { totals[id.x] = before; }
}
