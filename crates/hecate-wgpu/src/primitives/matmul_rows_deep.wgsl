// The terms of a column lie one after another: `b [batch, columns, inner]`. A workgroup has four columns, and its
// invocations have every 64th term of them.

// out [ROWS,columns] = a [ROWS,inner] @ b.T, with b [columns,inner], for each product.
@compute @workgroup_size(64)
// Columns after the last are read as the last and left out.
fn matmul_rows_deep(own: Member) {
    let group = group_index(own.group);
    if group >= args.groups { return; }
    let product = group / args.across;
    let column = 4u * (group % args.across);
    // Where the four columns begin in `b`.
    let begins = (product * args.columns + min(column + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(args.columns - 1u)))
        * args.inner;
    // A row in each element, a column in each component.
    var sums: array<vec4<f32>, ROWS>;
    for (var term = own.local; term < args.inner; term += 64u) {
        let w = vec4<f32>(of_b(begins.x + term), of_b(begins.y + term), of_b(begins.z + term), of_b(begins.w + term));
        for (var row = 0u; row < args.rows; row += 1u) { sums[row] += of_a(product, row, term) * w; }
    }
    for (var row = 0u; row < args.rows; row += 1u) {
        for (var i = 0u; i < 4u; i += 1u) {
            let sum = workgroup_sum(own, 64u, sums[row][i]);
            let there = own.local == 0u && column + i < args.columns;
            if there { out[(product * args.rows + row) * args.columns + column + i] = to_output(sum); }
            // Nobody reads the sums any more when the next ones are written.
            workgroupBarrier();
        }
    }
}
