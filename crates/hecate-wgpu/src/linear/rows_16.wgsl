// Sixteen rows of a column.

// One matrix of four fours: registers of one invocation.
alias Rows = mat4x4<f32>;

// Four vectors of four rows each become the columns of a matrix.
fn rows_of(x: array<vec4<f32>, 4>) -> Rows {
    return Rows(x[0], x[1], x[2], x[3]);
}

// The way back, for writing.
fn fours_of(x: Rows) -> array<vec4<f32>, 4> {
    return array<vec4<f32>, 4>(x[0], x[1], x[2], x[3]);
}

// Sixteen products in registers.
fn scaled(x: Rows, by: f32) -> Rows {
    return x * by;
}

// Sixteen sums in registers.
fn sum_of(x: Rows, y: Rows) -> Rows {
    return x + y;
}

// The share of this invocation of the inner product of two columns.
fn product_of(x: Rows, y: Rows) -> f32 {
    return sum_of_four(products(x, y));
}

// This part's rows of the key that begins at `at`.
fn key_rows(at: u32, part: u32) -> Rows {
    return key_sixteen(at, part, 0u);
}

// This part's rows of the query that begins at `at`.
fn query_rows(at: u32, part: u32) -> Rows {
    return query_sixteen(at, part, 0u);
}

// The same of a key in workgroup memory, whose first four for this part is number `first`.
fn tile_key_rows(first: u32) -> Rows {
    return tile_key_sixteen(first);
}

// The same of a query.
fn tile_query_rows(first: u32) -> Rows {
    return tile_query_sixteen(first);
}
