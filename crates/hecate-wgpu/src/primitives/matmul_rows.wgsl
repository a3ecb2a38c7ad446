// Products of few rows: out = a b', where every element of `b` is read once, by whoever has all rows of `a`.
//
// Constant: ROWS, at least as many as `a` has, whose sums an invocation keeps in registers.

// Defined in `matmul_rows.rs`.
@group(0) @binding(0) var<uniform> args: MatmulRowsArgs;
// [batch, rows, inner]
@group(0) @binding(1) var<storage, read> a: array<One>;
// [batch, inner, columns] or [batch, columns, inner]
@group(0) @binding(2) var<storage, read> b: array<One>;
// [batch, rows, columns]
@group(0) @binding(3) var<storage, read_write> out: array<Output>;

// Term `term` of row `row` of a product.
fn of_a(product: u32, row: u32, term: u32) -> f32 {
    let at = (product * args.rows + row) * args.inner + term;
    return one(a[at / EACH], at);
}

// Element `at` of all products.
fn of_b(at: u32) -> f32 {
    return one(b[at / EACH], at);
}
