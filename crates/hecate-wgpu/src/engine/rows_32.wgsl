// Thirty-two rows of a column, written out, because registers have no index.

struct Rows {
    a: mat4x4<f32>, b: mat4x4<f32>,
}

fn rows_of(x: array<vec4<f32>, 8>) -> Rows {
    return Rows(mat4x4<f32>(x[0], x[1], x[2], x[3]), mat4x4<f32>(x[4], x[5], x[6], x[7]));
}

fn fours_of(x: Rows) -> array<vec4<f32>, 8> {
    return array<vec4<f32>, 8>(x.a[0], x.a[1], x.a[2], x.a[3], x.b[0], x.b[1], x.b[2], x.b[3]);
}

fn scaled(x: Rows, by: f32) -> Rows {
    return Rows(x.a * by, x.b * by);
}

fn sum_of(x: Rows, y: Rows) -> Rows {
    return Rows(x.a + y.a, x.b + y.b);
}

fn product_of(x: Rows, y: Rows) -> f32 {
    return sum_of_four(products(x.a, y.a) + products(x.b, y.b));
}

fn key_rows(at: u32, part: u32) -> Rows {
    return Rows(key_sixteen(at, part, 0u), key_sixteen(at, part, 4u));
}

fn query_rows(at: u32, part: u32) -> Rows {
    return Rows(query_sixteen(at, part, 0u), query_sixteen(at, part, 4u));
}

fn tile_key_rows(first: u32) -> Rows {
    return Rows(tile_key_sixteen(first), tile_key_sixteen(first + 4u * PARTS));
}

fn tile_query_rows(first: u32) -> Rows {
    return Rows(tile_query_sixteen(first), tile_query_sixteen(first + 4u * PARTS));
}
