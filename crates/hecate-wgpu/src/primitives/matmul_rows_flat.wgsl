// Neighbouring columns lie side by side: `b [batch, inner, columns]`. A workgroup has 32 columns, an invocation every
// eighth term of one.

const ACROSS = 32u;
const SLICES = 8u;

// Sums of one row: [SLICES, ACROSS].
var<workgroup> slices: array<f32, 256>;

// out [ROWS,columns] = a [ROWS,inner] @ b [inner,columns], for each product.
@compute @workgroup_size(256)
// Columns after the last are read as the last and left out.
fn matmul_rows_flat(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(id);
    if group >= args.groups { return; }
    let product = group / args.across;
    let column = ACROSS * (group % args.across) + lane % ACROSS;
    let slice = lane / ACROSS;
    let first = product * args.inner * args.columns + min(column, args.columns - 1u);
    var sums: array<f32, ROWS>;
    for (var term = slice; term < args.inner; term += SLICES) {
        let w = of_b(first + term * args.columns);
        for (var row = 0u; row < args.rows; row += 1u) { sums[row] += of_a(product, row, term) * w; }
    }
    for (var row = 0u; row < args.rows; row += 1u) {
        // The row before was added up.
        workgroupBarrier();
        slices[lane] = sums[row];
        workgroupBarrier();
        if slice == 0u && column < args.columns {
            var sum = 0.0;
            for (var i = lane; i < 256u; i += ACROSS) { sum += slices[i]; }
            out[(product * args.rows + row) * args.columns + column] = to_output(sum);
        }
    }
}
