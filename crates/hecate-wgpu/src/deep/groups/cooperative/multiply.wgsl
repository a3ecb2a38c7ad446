// Products of packed factors by matrices that a subgroup holds together: a square of the result by each subgroup.
//
// Constants: LANES invocations of a subgroup, SUBGROUPS of a workgroup. SIDE rows and columns of one matrix; a square is DOWN of
// them high and ACROSS wide, 1 or 2. STEPS matrices along the terms have one scale, as in `pack.wgsl`. Nothing has an edge.
// Each of PARTS workgroups has a part of the terms; where there are several, another kernel adds their sums in order.
//
// Of two parts of each factor, (h + l) (h' + l') is h h' + h l' + l h': what is left out is beyond the digits of the sum.
//
// No workgroup memory: `matmul_cooperative.wgsl` says why.

// As `pack.wgsl` has them. Terms' places are first tiles here.
@group(0) @binding(2) var<storage, read> halves: array<f16>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;

// Halves of one part of a tile.
const PART: u32 = SIDE * SIDE;

// Rows of a left factor.
fn factor_a(tile: u32, part: u32) -> FactorA {
    return coopLoadT<FactorA>(&halves[(2u * tile + part) * PART], SIDE);
}

// Columns of a right one.
fn factor_b(tile: u32, part: u32) -> FactorB {
    return coopLoad<FactorB>(&halves[(2u * tile + part) * PART], SIDE);
}

// High and low parts of both: the small products first.
fn added(x: FactorA, x_low: FactorA, y: FactorB, y_low: FactorB, sums: Sums) -> Sums {
    return coopMultiplyAdd(x, y, coopMultiplyAdd(x, y_low, coopMultiplyAdd(x_low, y, sums)));
}

// out [rows,columns] = Σ over terms of a [rows,depth] @ b [depth,columns]. A subgroup computes DOWN by ACROSS matrices of it.
@compute @workgroup_size(SUBGROUPS * LANES)
fn multiply(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_id) subgroup: u32) {
    base = group.y * args.each;
    let square = group.x * SUBGROUPS + subgroup;
    // Neighbours have the same columns: right factors are the larger ones.
    let down = args.rows / (DOWN * SIDE);
    let row = square % down * DOWN;
    let column = square / down * ACROSS;
    let first = group.y * args.tiles;

    // Sums of all blocks, and of one. Names, because an array of them would not stay in registers.
    var t00 = Sums(); var t01 = Sums(); var t10 = Sums(); var t11 = Sums();
    for (var n = 0u; n < args.count; n++) {
        let tiles = args.terms[n].depth / SIDE;
        let blocks = tiles / STEPS;
        // This part's tiles of the term, whole blocks of them.
        let from_tile = group.z * blocks / PARTS * STEPS;
        let end = (group.z + 1u) * blocks / PARTS * STEPS;
        // Short terms have fewer blocks than there are parts.
        if from_tile == end { continue; }
        let a = first + args.terms[n].a + row * tiles;
        let b = first + args.terms[n].b + column * tiles;
        // A wait for memory is longer than the products of a step.
        // Matrices of the step to come are on their way while this one's are multiplied.
        var x0 = factor_a(a + from_tile, 0u); var x0_low = factor_a(a + from_tile, 1u);
        var y0 = factor_b(b + from_tile, 0u); var y0_low = factor_b(b + from_tile, 1u);
        var x1 = FactorA(); var x1_low = FactorA();
        var y1 = FactorB(); var y1_low = FactorB();
        if DOWN == 2u { x1 = factor_a(a + tiles + from_tile, 0u); x1_low = factor_a(a + tiles + from_tile, 1u); }
        if ACROSS == 2u { y1 = factor_b(b + tiles + from_tile, 0u); y1_low = factor_b(b + tiles + from_tile, 1u); }
        for (var block = from_tile; block < end; block += STEPS) {
            let a0 = scales[a + block];
            let b0 = scales[b + block];
            var a1 = 0.0;
            var b1 = 0.0;
            if DOWN == 2u { a1 = scales[a + tiles + block]; }
            if ACROSS == 2u { b1 = scales[b + tiles + block]; }
            var s00 = Sums(); var s01 = Sums(); var s10 = Sums(); var s11 = Sums();
            for (var step = 0u; step < STEPS; step++) {
                // The last one loads its own again.
                let next = min(block + step + 1u, end - 1u);
                let next_x0 = factor_a(a + next, 0u); let next_x0_low = factor_a(a + next, 1u);
                let next_y0 = factor_b(b + next, 0u); let next_y0_low = factor_b(b + next, 1u);
                var next_x1 = x1; var next_x1_low = x1_low;
                var next_y1 = y1; var next_y1_low = y1_low;
                if DOWN == 2u { next_x1 = factor_a(a + tiles + next, 0u); next_x1_low = factor_a(a + tiles + next, 1u); }
                if ACROSS == 2u { next_y1 = factor_b(b + tiles + next, 0u); next_y1_low = factor_b(b + tiles + next, 1u); }
                s00 = added(x0, x0_low, y0, y0_low, s00);
                if DOWN == 2u { s10 = added(x1, x1_low, y0, y0_low, s10); }
                if ACROSS == 2u { s01 = added(x0, x0_low, y1, y1_low, s01); }
                if DOWN == 2u && ACROSS == 2u { s11 = added(x1, x1_low, y1, y1_low, s11); }
                x0 = next_x0; x0_low = next_x0_low; y0 = next_y0; y0_low = next_y0_low;
                x1 = next_x1; x1_low = next_x1_low; y1 = next_y1; y1_low = next_y1_low;
            }
            // A block's sums in the scale of all.
            // One after another, since the product of two scales may be too small for 32 bits where sums are not. Left factors
            // of 2^106 and more are too large for that.
            t00 = t00 + b0 * (a0 * s00);
            if DOWN == 2u { t10 = t10 + b0 * (a1 * s10); }
            if ACROSS == 2u { t01 = t01 + b1 * (a0 * s01); }
            if DOWN == 2u && ACROSS == 2u { t11 = t11 + b1 * (a1 * s11); }
        }
    }
    // Parts lie one behind another; where sums go into the result at once there is one.
    let to = group.z * args.rows + SIDE * row;
    put(t00, to, SIDE * column);
    if DOWN == 2u { put(t10, to + SIDE, SIDE * column); }
    if ACROSS == 2u { put(t01, to, SIDE * (column + 1u)); }
    if DOWN == 2u && ACROSS == 2u { put(t11, to + SIDE, SIDE * (column + 1u)); }
}
