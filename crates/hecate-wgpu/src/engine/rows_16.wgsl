// Sixteen rows of a column.

alias Rows = mat4x4<f32>;

fn rows_of(x: array<vec4<f32>, 4>) -> Rows {
    return Rows(x[0], x[1], x[2], x[3]);
}

fn fours_of(x: Rows) -> array<vec4<f32>, 4> {
    return array<vec4<f32>, 4>(x[0], x[1], x[2], x[3]);
}

fn scaled(x: Rows, by: f32) -> Rows {
    return x * by;
}

fn sum_of(x: Rows, y: Rows) -> Rows {
    return x + y;
}

fn product_of(x: Rows, y: Rows) -> f32 {
    return sum_of_four(products(x, y));
}

fn key_rows(at: u32, part: u32) -> Rows {
    return key_sixteen(at, part, 0u);
}

fn query_rows(at: u32, part: u32) -> Rows {
    return query_sixteen(at, part, 0u);
}

fn tile_key_rows(first: u32) -> Rows {
    return tile_key_sixteen(first);
}

fn tile_query_rows(first: u32) -> Rows {
    return tile_query_sixteen(first);
}
