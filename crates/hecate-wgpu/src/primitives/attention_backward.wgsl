// What the kernels of the backward share. Weights are made again from `lse`: p = exp(s - lse). One kernel has queries in
// its workgroups and passes keys, the others have keys and pass queries, so that no two workgroups add to one number.

// [rows, Hq, dv]
@group(0) @binding(5) var<storage, read> dy: array<f32>;

// Of units: log sums, and D.
// Read by all invocations of the tile's rows.
var<workgroup> unit_lse: array<f32, TILE>;
var<workgroup> unit_along: array<f32, TILE>;

// The arrays that a backward reads.
fn number_of(array: u32, at: u32) -> f32 {
    if array == Q { return q[at]; }
    if array == DY { return dy[at]; }
    if array == K { return k[at]; }
    return v[at];
}

// Those of four units.
// lse and D of units `slot` to `slot + 3`.
fn four_units(slot: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(unit_lse[slot], unit_lse[slot + 1u], unit_lse[slot + 2u], unit_lse[slot + 3u]),
        vec4<f32>(unit_along[slot], unit_along[slot + 1u], unit_along[slot + 2u], unit_along[slot + 3u]),
    );
}

// Tokens of the same four units.
fn four_tokens(slot: u32) -> vec4<i32> {
    return vec4<i32>(unit_tokens[slot], unit_tokens[slot + 1u], unit_tokens[slot + 2u], unit_tokens[slot + 3u]);
}

// Weights of scores, 0 where nothing is seen.
// p = exp(scale s - lse) is the forward's weight again: no sum is needed.
fn weights_of(score: vec4<f32>, lse: vec4<f32>, sees: vec4<bool>) -> vec4<f32> {
    return powers(args.scale * score - lse, sees);
}
