// What products of matrices are told, whichever way they go. Places are counted from the start of a memory's part of `workspace`.

// by ∘ (a b), `by` a number for each row of a, or for each of the terms of a sum.
struct Term {
    a: u32,
    b: u32,
    // NOTHING: without.
    by: u32,
    // 0: no term.
    depth: u32,
    a_row: u32,
    a_column: u32,
    b_row: u32,
    b_column: u32,
}

// The launch hands this over; `product.rs` has its twin.
struct ProductArgs {
    cell: Cell,
    terms: array<Term, 4>,
    rows: u32,
    columns: u32,
    // Elements of a memory's part of `workspace`.
    each: u32,
    // Where the numbers of its tokens are, and tokens of a group.
    numbers: u32,
    group: u32,
    // One bit a term: whether `by` belongs to the terms of its sums.
    by_depth: u32,
    // What becomes of the sums.
    kind: u32,
    out: u32,
    // How much of what was in `out` stays.
    own_by: u32,
    // Panels that join, and how much of each.
    first: u32,
    first_by: u32,
    second: u32,
    second_by: u32,
    third: u32,
    third_by: u32,
    // Pre-activations whose slopes the result is multiplied with, or NOTHING.
    slope: u32,
    // A second result.
    also: u32,
    // Whether tokens read after their own write.
    read_after: u32,
    // Terms that there are, and tiles of a memory's packed factors: of cooperative products alone.
    count: u32,
    tiles: u32,
}

@group(0) @binding(0) var<uniform> args: ProductArgs;
@group(0) @binding(1) var<storage, read_write> workspace: array<f32>;

// No place.
const NOTHING: u32 = 0u;

// Where the memory's part of `workspace` begins.
var<private> base: u32;
