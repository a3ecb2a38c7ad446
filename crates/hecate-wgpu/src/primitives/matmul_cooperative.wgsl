// Products of f16 by matrices that a subgroup holds together: out = a' b', a square of the result by each subgroup.
//
// Constants: LANES invocations of a subgroup. SIDE rows and columns of one matrix, REACH of them along a side of the square,
// 2 or 4. A_DEEP and B_DEEP as in the other kernels.
//
// Factors come from memory straight, and nothing goes through workgroup memory. Kernels of this kind declare Vulkan's memory
// model, under which barriers order marked accesses alone; wgpu 30 marks none.
//
// Sizes are multiples: rows and columns of a workgroup's tile, terms of SIDE. So no matrix is cut at an edge.

// Defined in `matmul.rs`.
@group(0) @binding(0) var<uniform> args: MatmulArgs;
// [batch, rows, inner] or [batch, inner, rows]; [batch, inner, columns] or [batch, columns, inner].
@group(0) @binding(1) var<storage, read> a: array<f16>;
@group(0) @binding(2) var<storage, read> b: array<f16>;
// [parts, batch, rows, columns]
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// SIDE rows of `a` from `row` on, and as many terms from `term` on: [SIDE, SIDE].
fn factor_a(base: u32, row: u32, term: u32) -> FactorA {
    if A_DEEP == 1u { return coopLoadT<FactorA>(&a[base + row * args.inner + term], args.inner); }
    return coopLoad<FactorA>(&a[base + term * args.rows + row], args.rows);
}

// The terms first, then columns: [SIDE, SIDE].
fn factor_b(base: u32, term: u32, column: u32) -> FactorB {
    if B_DEEP == 1u { return coopLoad<FactorB>(&b[base + column * args.inner + term], args.inner); }
    return coopLoadT<FactorB>(&b[base + term * args.columns + column], args.columns);
}

// Matrix (i, j) of a square that begins at `to`.
fn put(sums: Sums, to: u32, i: u32, j: u32) {
    // Before the store, which naga 30 would write in front of what its arguments are made of.
    let at = to + SIDE * (i * args.columns + j);
    let stride = args.columns;
    coopStoreT(sums, &out[at], stride);
}

// out [rows,columns] = a @ b of each product, or a part of the sums over the inner dimension.
@compute @workgroup_size(4u * LANES)
// All branches and loops are the same for the whole workgroup, since matrices need every lane.
fn matmul_cooperative(@builtin(workgroup_id) id: vec3<u32>, @builtin(subgroup_id) subgroup: u32) {
    // As `group_index`, which naga would not see to be the same for all.
    let group = id.x + 65535u * id.y;
    if group >= args.groups { return; }
    // Tiles count fastest, then parts, then products.
    let at = group % args.tiles;
    let product = group / args.tiles / args.parts;
    let part = group / args.tiles % args.parts;
    let begin = part * args.split_depth;
    let end = min(begin + args.split_depth, args.inner);
    let base_a = product * args.rows * args.inner;
    let base_b = product * args.columns * args.inner;
    // Four subgroups share a tile, two by two.
    let row = (2u * (at / args.across) + subgroup / 2u) * REACH * SIDE;
    let column = (2u * (at % args.across) + subgroup % 2u) * REACH * SIDE;

    // The square in matrices: row, then column. Names, because an array of them would not stay in registers.
    var s00 = Sums(); var s01 = Sums(); var s02 = Sums(); var s03 = Sums();
    var s10 = Sums(); var s11 = Sums(); var s12 = Sums(); var s13 = Sums();
    var s20 = Sums(); var s21 = Sums(); var s22 = Sums(); var s23 = Sums();
    var s30 = Sums(); var s31 = Sums(); var s32 = Sums(); var s33 = Sums();
    for (var term = begin; term < end; term += SIDE) {
        let x0 = factor_a(base_a, row, term);
        let x1 = factor_a(base_a, row + SIDE, term);
        let y0 = factor_b(base_b, term, column);
        let y1 = factor_b(base_b, term, column + SIDE);
        s00 = coopMultiplyAdd(x0, y0, s00);
        s01 = coopMultiplyAdd(x0, y1, s01);
        s10 = coopMultiplyAdd(x1, y0, s10);
        s11 = coopMultiplyAdd(x1, y1, s11);
        if REACH == 4u {
            let x2 = factor_a(base_a, row + 2u * SIDE, term);
            let x3 = factor_a(base_a, row + 3u * SIDE, term);
            let y2 = factor_b(base_b, term, column + 2u * SIDE);
            let y3 = factor_b(base_b, term, column + 3u * SIDE);
            s02 = coopMultiplyAdd(x0, y2, s02);
            s03 = coopMultiplyAdd(x0, y3, s03);
            s12 = coopMultiplyAdd(x1, y2, s12);
            s13 = coopMultiplyAdd(x1, y3, s13);
            s20 = coopMultiplyAdd(x2, y0, s20);
            s21 = coopMultiplyAdd(x2, y1, s21);
            s22 = coopMultiplyAdd(x2, y2, s22);
            s23 = coopMultiplyAdd(x2, y3, s23);
            s30 = coopMultiplyAdd(x3, y0, s30);
            s31 = coopMultiplyAdd(x3, y1, s31);
            s32 = coopMultiplyAdd(x3, y2, s32);
            s33 = coopMultiplyAdd(x3, y3, s33);
        }
    }

    let batch = args.groups / args.tiles / args.parts;
    let to = ((part * batch + product) * args.rows + row) * args.columns + column;
    put(s00, to, 0u, 0u);
    put(s01, to, 0u, 1u);
    put(s10, to, 1u, 0u);
    put(s11, to, 1u, 1u);
    if REACH == 4u {
        put(s02, to, 0u, 2u);
        put(s03, to, 0u, 3u);
        put(s12, to, 1u, 2u);
        put(s13, to, 1u, 3u);
        put(s20, to, 2u, 0u);
        put(s21, to, 2u, 1u);
        put(s22, to, 2u, 2u);
        put(s23, to, 2u, 3u);
        put(s30, to, 3u, 0u);
        put(s31, to, 3u, 1u);
        put(s32, to, 3u, 2u);
        put(s33, to, 3u, 3u);
    }
}
