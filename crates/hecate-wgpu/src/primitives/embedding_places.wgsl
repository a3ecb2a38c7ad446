// Constants: FIRST: 1 in the first pass, where positions stand in their own order.

// [count]; anything in the first pass
@group(0) @binding(2) var<storage, read> order: array<u32>;
// [256, tiles]
@group(0) @binding(3) var<storage, read> starts: array<u32>;
// [256]
@group(0) @binding(4) var<storage, read> totals: array<u32>;
// [count]
@group(0) @binding(5) var<storage, read_write> sorted_keys: array<u32>;
@group(0) @binding(6) var<storage, read_write> sorted_order: array<u32>;

// Totals of all digits: their running sum is where a digit begins.
var<workgroup> below: array<u32, DIGITS>;

// A workgroup for each tile: every position goes after those of lower digits, and of its digit further left.
@compute @workgroup_size(256)
fn digit_places(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = group_index(id);
    if tile >= args.tiles { return; }
    let i = tile * DIGITS + lane;
    let digit = digit_at(i);
    below[lane] = totals[lane];
    digits[lane] = digit;
    workgroupBarrier();
    if i >= args.count { return; }
    var to = starts[digit * args.tiles + tile];
    for (var lower = 0u; lower < digit; lower += 1u) { to += below[lower]; }
    // Equal digits keep their order: the sort is stable.
    for (var left = 0u; left < lane; left += 1u) { to += u32(digits[left] == digit); }
    sorted_keys[to] = key_at(i);
    var position = i;
    if FIRST == 0u { position = order[i]; }
    sorted_order[to] = position;
}
