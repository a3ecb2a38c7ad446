// Stores a subgroup's matrix of sums for `finish_sums.wgsl`, which adds the parts and finishes them.

// By memory as `workspace`: [PARTS, rows, columns], with rows of all parts in a row.
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;

// sums[row, column] = own, for one matrix [SIDE,SIDE].
fn put(own: Sums, row: u32, column: u32) {
    // Before the store, which naga 30 would write in front of what its arguments are made of.
    let at = base + row * args.columns + column;
    let stride = args.columns;
    coopStoreT(own, &sums[at], stride);
}
