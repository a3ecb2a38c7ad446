// Products of packed factors by matrices that a subgroup holds together: a square of the result by each subgroup.
//
// Constants: LANES invocations of a subgroup, SUBGROUPS of a workgroup. SIDE rows and columns of one matrix; a square is DOWN of
// them high and ACROSS wide, 1 or 2. A_DEEP and B_DEEP as in `pack.wgsl`. Nothing has an edge.
//
// Of two parts of each factor, (h + l) (h' + l') is h h' + h l' + l h': what is left out is beyond the digits of the sum.
//
// No workgroup memory: `matmul_cooperative.wgsl` says why.

// As `pack.wgsl` has them.
@group(0) @binding(2) var<storage, read> halves: array<f16>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;

// Some rows of a left factor [rows, depth] that begins at `origin`, and as many terms.
fn factor_a(origin: u32, row: u32, term: u32, depth: u32) -> FactorA {
    if A_DEEP == 1u { return coopLoadT<FactorA>(&halves[origin + row * depth + term], depth); }
    return coopLoad<FactorA>(&halves[origin + term * args.rows + row], args.rows);
}

// Terms first, then columns, of a right factor.
fn factor_b(origin: u32, term: u32, column: u32, depth: u32) -> FactorB {
    if B_DEEP == 1u { return coopLoad<FactorB>(&halves[origin + column * depth + term], depth); }
    return coopLoadT<FactorB>(&halves[origin + term * args.columns + column], args.columns);
}

// High and low parts of both: the small products first.
fn added(x: FactorA, x_low: FactorA, y: FactorB, y_low: FactorB, sums: Sums) -> Sums {
    return coopMultiplyAdd(x, y, coopMultiplyAdd(x, y_low, coopMultiplyAdd(x_low, y, sums)));
}

@compute @workgroup_size(SUBGROUPS * LANES)
fn multiply(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_id) subgroup: u32) {
    base = group.y * args.each;
    let square = group.x * SUBGROUPS + subgroup;
    let across = args.columns / (ACROSS * SIDE);
    let row = square / across * DOWN * SIDE;
    let column = square % across * ACROSS * SIDE;
    let lefts = args.rows / SIDE;
    let blocks = lefts + args.columns / SIDE;

    // Sums of all terms, and of one. Names, because an array of them would not stay in registers.
    var t00 = Sums(); var t01 = Sums(); var t10 = Sums(); var t11 = Sums();
    var origin = group.y * args.halves;
    for (var n = 0u; n < args.count; n++) {
        let depth = args.terms[n].depth;
        let low_a = args.rows * depth;
        let low_b = args.columns * depth;
        let right = origin + 2u * low_a;
        var s00 = Sums(); var s01 = Sums(); var s10 = Sums(); var s11 = Sums();
        for (var term = 0u; term < depth; term += SIDE) {
            let x0 = factor_a(origin, row, term, depth);
            let x0_low = factor_a(origin + low_a, row, term, depth);
            let y0 = factor_b(right, term, column, depth);
            let y0_low = factor_b(right + low_b, term, column, depth);
            s00 = added(x0, x0_low, y0, y0_low, s00);
            if DOWN == 2u {
                let x1 = factor_a(origin, row + SIDE, term, depth);
                let x1_low = factor_a(origin + low_a, row + SIDE, term, depth);
                s10 = added(x1, x1_low, y0, y0_low, s10);
                if ACROSS == 2u {
                    let y1 = factor_b(right, term, column + SIDE, depth);
                    let y1_low = factor_b(right + low_b, term, column + SIDE, depth);
                    s01 = added(x0, x0_low, y1, y1_low, s01);
                    s11 = added(x1, x1_low, y1, y1_low, s11);
                }
            } else if ACROSS == 2u {
                let y1 = factor_b(right, term, column + SIDE, depth);
                let y1_low = factor_b(right + low_b, term, column + SIDE, depth);
                s01 = added(x0, x0_low, y1, y1_low, s01);
            }
        }
        // One after another, since the product of two scales may be too small for 32 bits where sums are not.
        let scale = (group.y * args.count + n) * blocks;
        let a = scale + row / SIDE;
        let b = scale + lefts + column / SIDE;
        t00 = t00 + scales[b] * (scales[a] * s00);
        if DOWN == 2u { t10 = t10 + scales[b] * (scales[a + 1u] * s10); }
        if ACROSS == 2u { t01 = t01 + scales[b + 1u] * (scales[a] * s01); }
        if DOWN == 2u && ACROSS == 2u { t11 = t11 + scales[b + 1u] * (scales[a + 1u] * s11); }
        origin = right + 2u * low_b;
    }
    put(t00, group.y, row, column);
    if DOWN == 2u { put(t10, group.y, row + SIDE, column); }
    if ACROSS == 2u { put(t01, group.y, row, column + SIDE); }
    if DOWN == 2u && ACROSS == 2u { put(t11, group.y, row + SIDE, column + SIDE); }
}
