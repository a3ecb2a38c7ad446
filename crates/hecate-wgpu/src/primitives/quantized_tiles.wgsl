// The second operand of a product in blocks, which are decoded on their way to workgroup memory: rows of weights are
// columns of the product.
//
// An invocation decodes a part, 16 terms of one column, once for all rows of the tile. Terms of a column stay together:
// `tile[1][4 k + i][four]` has terms 4 i to 4 i + 3 of column `4 four + k`.

// [rows, inner], four terms at a time: blocks are whole fours.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// All four are there, or none.
fn four_of_a(at: u32, there: u32) -> vec4<f32> {
    if there == 0u { return vec4<f32>(); }
    return x[at / 4u];
}

// A share of the terms from `depth` on: of x a term in each column of the matrix, of the weights four of 16.
// Columns after the last are zero.
fn bring(s: Share, depth: u32, end: u32) -> mat4x4<f32> {
    if s.side == 0u { return bring_a(s, depth + 4u * s.terms, end); }
    let column = s.first + s.terms;
    if column >= s.length { return mat4x4<f32>(); }
    let w = decode(column, args.inner / PART, depth / PART);
    let minimum = vec4<f32>(w.minimum);
    return mat4x4<f32>(w.scale * w.q[0] - minimum, w.scale * w.q[1] - minimum, w.scale * w.q[2] - minimum,
        w.scale * w.q[3] - minimum);
}

// Terms 4 i to 4 i + 3 of four columns, a term in each column of the matrix.
fn terms_of(four: u32, i: u32) -> mat4x4<f32> {
    let down = i * FOURS;
    return transpose(mat4x4<f32>(tile[place(1u, 0u, four) + down], tile[place(1u, 4u, four) + down],
        tile[place(1u, 8u, four) + down], tile[place(1u, 12u, four) + down]));
}

// Four terms from `term` on.
fn add_four(sums: Sums, term: u32, row: u32, column: u32) -> Sums {
    let at = place(0u, term, row);
    let y = terms_of(column, term / 4u);
    var far = mat4x4<f32>();
    if REACH == 2u { far = terms_of(column + SIDE, term / 4u); }
    let one = add_term(sums, at, y[0], far[0]);
    let two = add_term(one, at + FOURS, y[1], far[1]);
    let three = add_term(two, at + 2u * FOURS, y[2], far[2]);
    return add_term(three, at + 3u * FOURS, y[3], far[3]);
}
