// Rows `[rows, width]` that invocations read as a whole: LANES of them, a power of two, of a workgroup of INVOCATIONS.

// Defined in `whole_rows.rs`.
@group(0) @binding(0) var<uniform> args: RowArgs;

// A number an invocation, folded row by row.
var<workgroup> folded: array<f32, INVOCATIONS>;

// Where an invocation's elements are, LANES apart. Rows after the last have none, and reach the barriers all the same.
struct Own {
    row: u32,
    first: u32,
    end: u32,
}

// Returns the invocation's row, its first element and the row's end.
fn own_elements(id: vec3<u32>, lane: u32) -> Own {
    let row = group_index(id) * (INVOCATIONS / LANES) + lane / LANES;
    return Own(row, row * args.width + lane % LANES, select(0u, (row + 1u) * args.width, row < args.rows));
}

// The sum over the invocations of a row; all of a workgroup call it.
fn row_sum(lane: u32, own: f32) -> f32 {
    // Whoever read what was folded before is through with it.
    workgroupBarrier();
    folded[lane] = own;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % LANES < step { folded[lane] += folded[lane + step]; }
    }
    workgroupBarrier();
    return folded[lane - lane % LANES];
}

// The maximum, likewise; NaN where there is one.
fn row_max(lane: u32, own: f32) -> f32 {
    workgroupBarrier();
    folded[lane] = own;
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane % LANES < step { folded[lane] = larger(folded[lane], folded[lane + step]); }
    }
    workgroupBarrier();
    return folded[lane - lane % LANES];
}
