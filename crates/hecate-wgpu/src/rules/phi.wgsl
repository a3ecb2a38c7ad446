// The function of Trellis's slots and its derivatives, equations (70) to (74), a part an element: between them there are
// sums over slots. A side is one of keys, values, query.

const LN_SILU: u32 = 1u;
const IDENTITY: u32 = 2u;

// Rows `[3,m]`: `f`, `silu′`, `silu″`, by side; scalars of each side: what `C` takes off, and `n`; sums, and those of `e`
// and `w` of (73).
// `places` cuts the first nine rows of `scratch`, and the scalars after all rows.
struct Places {
    f: u32,
    slope: u32,
    second_derivative: u32,
    middle: u32,
    n: u32,
    sums: u32,
    of_e: u32,
    of_w: u32,
}

// Three sides of m slots for each row.
fn places() -> Places {
    let m = args.cell.slots;
    let scalars = scratch + 28u * m;
    return Places(
        scratch, scratch + 3u * m, scratch + 6u * m, scalars, scalars + 4u, scalars + 8u, scalars + 12u, scalars + 16u,
    );
}

// Four neighbouring scalars from `at` on.
fn put_four(at: u32, x: vec4<f32>) {
    put(at, x.x);
    put(at + 1u, x.y);
    put(at + 2u, x.z);
    put(at + 3u, x.w);
}

// `x` as the sum of a side, in its place.
// A sum has one lane for each side: keys, values, query.
fn of_side(side: u32, x: f32) -> vec4<f32> {
    return select(vec4(0.0), vec4(x), vec4(0u, 1u, 2u, 3u) == vec4(side));
}

// Two sums of one of two sides.
// Two sums for keys and values at once: x in lanes 0 and 1, y in lanes 2 and 3.
fn pair(side: u32, x: f32, y: f32) -> vec4<f32> {
    return of_side(side, x) + of_side(side + 2u, y);
}

// 1/m where φ normalises by the mean, else 1.
fn share() -> f32 {
    return select(1.0, 1.0 / f32(args.cell.slots), args.cell.phi == LN_SILU);
}

// What `C` takes off, of sums.
// C takes the mean off for LN_SILU alone.
fn centre(sums: vec4<f32>) -> vec4<f32> {
    return select(vec4(0.0), sums * share(), args.cell.phi == LN_SILU);
}

// (70): `silu` and its derivatives at `z`, to place `i` of all sides.
// f, the slope and the second derivative lie side by side for all sides.
fn silu_at(i: u32, z: f32) -> f32 {
    let p = places();
    if (args.cell.phi == IDENTITY) {
        put(p.f + i, z);
        return 0.0;
    }
    let s = silu(z);
    put(p.f + i, s.value);
    put(p.slope + i, s.slope);
    put(p.second_derivative + i, s.second_derivative);
    return s.value;
}

// (70): `C s`.
// Returns the square, of which n is made.
fn centred_at(i: u32, side: u32) -> f32 {
    let p = places();
    let f = row(p.f + i) - row(p.middle + side);
    put(p.f + i, f);
    return f * f;
}

// (70): `f`.
// f = C s / n.
fn phi_at(i: u32, side: u32) -> f32 {
    let p = places();
    if (args.cell.phi != IDENTITY) {
        put(p.f + i, row(p.f + i) / row(p.n + side));
    }
    return row(p.f + i);
}

// `N e` of (71), at place `i` of a side; `sums` is where the means of `e` and the `f·e` of two sides are.
// N = (C - f fᵀ share) / n is symmetric.
fn times_jacobian(i: u32, side: u32, of_two: u32, sums: u32, e: f32) -> f32 {
    let p = places();
    return (e - row(sums + of_two) - share() * row(sums + 2u + of_two) * row(p.f + i)) / row(p.n + side);
}
