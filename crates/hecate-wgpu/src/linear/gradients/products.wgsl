// Products x yᵀ of slices: sums over the columns of rows.

// Where four `c` of row `t` is in a slice. Rows go by their place in fours first, and their fours are exchanged: so eight
// neighbours that read eight rows, four apart, meet eight different parts of workgroup memory.
fn place_of(slice: u32, t: u32, c: u32) -> u32 {
    let row = t % 4u * 16u + t / 4u;
    return slice * SLICE + row * 4u + (c ^ (row / 2u % 4u));
}

// Four `c` of rows `4 i` to `4 i + 3`: a row a vector.
fn four_rows(slice: u32, i: u32, c: u32) -> mat4x4<f32> {
    let t = 4u * i;
    return mat4x4<f32>(
        slices[place_of(slice, t, c)], slices[place_of(slice, t + 1u, c)],
        slices[place_of(slice, t + 2u, c)], slices[place_of(slice, t + 3u, c)]
    );
}

// One row of the sums: four terms, in their order.
// `y` has a term a vector.
fn with_terms(sum: vec4<f32>, x: vec4<f32>, y: mat4x4<f32>) -> vec4<f32> {
    return (((sum + x.x * y[0]) + x.y * y[1]) + x.z * y[2]) + x.w * y[3];
}

// Transposing four rows moves nothing: it names registers anew, so that each term is a multiply-add.
// Adds the products of four columns of four rows of x and of y.
fn with_products(sums: mat4x4<f32>, x: mat4x4<f32>, y: mat4x4<f32>) -> mat4x4<f32> {
    let columns = transpose(y);
    return mat4x4<f32>(
        with_terms(sums[0], x[0], columns), with_terms(sums[1], x[1], columns),
        with_terms(sums[2], x[2], columns), with_terms(sums[3], x[3], columns)
    );
}

// Shares of one row lie side by side, four rows a vector.
// A number a row of each invocation, in slice `slice`: the sum of row `t` over the columns.
fn row_sum(slice: u32, t: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) {
        sum += slices[slice * SLICE + t / 4u * 16u + i][t % 4u];
    }
    return sum;
}
