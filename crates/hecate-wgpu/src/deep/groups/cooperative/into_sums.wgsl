// A matrix of sums to where another kernel finishes them.

// [memories, rows, columns]
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;

fn put(own: Sums, memory: u32, row: u32, column: u32) {
    // Before the store, which naga 30 would write in front of what its arguments are made of.
    let at = (memory * args.rows + row) * args.columns + column;
    let stride = args.columns;
    coopStoreT(own, &sums[at], stride);
}
