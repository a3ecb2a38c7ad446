// A matrix of sums to where another kernel finishes them.

// By memory as `workspace`: [PARTS, rows, columns], with rows of all parts in a row.
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;

fn put(own: Sums, row: u32, column: u32) {
    // Before the store, which naga 30 would write in front of what its arguments are made of.
    let at = base + row * args.columns + column;
    let stride = args.columns;
    coopStoreT(own, &sums[at], stride);
}
