// Thirty-two rows of a column, written out, because registers have no index.

// Rows 0 to 15 of the part, then rows 16 to 31.
struct Rows {
    a: mat4x4<f32>, b: mat4x4<f32>,
}

// Eight vectors of four rows each.
fn rows_of(x: array<vec4<f32>, 8>) -> Rows {
    return Rows(mat4x4<f32>(x[0], x[1], x[2], x[3]), mat4x4<f32>(x[4], x[5], x[6], x[7]));
}

// The way back, for writing.
fn fours_of(x: Rows) -> array<vec4<f32>, 8> {
    return array<vec4<f32>, 8>(x.a[0], x.a[1], x.a[2], x.a[3], x.b[0], x.b[1], x.b[2], x.b[3]);
}

// Thirty-two products in registers.
fn scaled(x: Rows, by: f32) -> Rows {
    return Rows(x.a * by, x.b * by);
}

// Thirty-two sums in registers.
fn sum_of(x: Rows, y: Rows) -> Rows {
    return Rows(x.a + y.a, x.b + y.b);
}

// The share of this invocation of the inner product of two columns.
fn product_of(x: Rows, y: Rows) -> f32 {
    return sum_of_four(products(x.a, y.a) + products(x.b, y.b));
}

// This part's rows of the key that begins at `at`.
fn key_rows(at: u32, part: u32) -> Rows {
    return Rows(key_sixteen(at, part, 0u), key_sixteen(at, part, 4u));
}

// This part's rows of the query that begins at `at`.
fn query_rows(at: u32, part: u32) -> Rows {
    return Rows(query_sixteen(at, part, 0u), query_sixteen(at, part, 4u));
}

// The same of a key in workgroup memory: the second sixteen lie four fours of every part further.
fn tile_key_rows(first: u32) -> Rows {
    return Rows(tile_key_sixteen(first), tile_key_sixteen(first + 4u * PARTS));
}

// The same of a query.
fn tile_query_rows(first: u32) -> Rows {
    return Rows(tile_query_sixteen(first), tile_query_sixteen(first + 4u * PARTS));
}
