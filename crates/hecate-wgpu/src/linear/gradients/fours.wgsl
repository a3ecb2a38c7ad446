// Bindings 5 and 6 have two names: what one kernel reads there another one writes.
// Rows of any length, element by element. A kernel uses those arrays that it has bound.

@group(0) @binding(2) var<storage, read> k: array<f32>;         // [rows,H,K]
@group(0) @binding(3) var<storage, read> x: array<f32>;         // [rows,H,width]
@group(0) @binding(4) var<storage, read> y: array<f32>;         // [rows,H,width] or [kept,H,M and S,K,V]
@group(0) @binding(5) var<storage, read> z: array<f32>;         // [rows,H,width]
@group(0) @binding(6) var<storage, read> q: array<f32>;         // [rows,H,K]
@group(0) @binding(5) var<storage, read_write> dq: array<f32>;  // [rows,H,K]
@group(0) @binding(6) var<storage, read_write> dk: array<f32>;  // [rows,H,K]

// Columns `c` to `c + 3` of a row of this width; those after the end are the last.
fn inside(c: u32, width: u32) -> vec4<u32> {
    return min(vec4<u32>(c, c + 1u, c + 2u, c + 3u), vec4<u32>(width - 1u));
}

// Four elements from column `c` on; zeros after the end.
fn cut(four: vec4<f32>, c: u32, width: u32) -> vec4<f32> {
    return select(vec4<f32>(), four, vec4<u32>(c, c + 1u, c + 2u, c + 3u) < vec4<u32>(width));
}

// Elements `c` to `c + 3` of the row that begins at `at`.
fn k_four(at: u32, c: u32) -> vec4<f32> {
    let i = at + inside(c, args.key);
    return cut(vec4<f32>(k[i.x], k[i.y], k[i.z], k[i.w]), c, args.key);
}

// Returns elements c to c + 3 of the row of q at `at`; zeros after the end.
fn q_four(at: u32, c: u32) -> vec4<f32> {
    let i = at + inside(c, args.key);
    return cut(vec4<f32>(q[i.x], q[i.y], q[i.z], q[i.w]), c, args.key);
}

// The rows of these three have `args.width` elements.
fn x_four(at: u32, c: u32) -> vec4<f32> {
    let i = at + inside(c, args.width);
    return cut(vec4<f32>(x[i.x], x[i.y], x[i.z], x[i.w]), c, args.width);
}

// Returns elements c to c + 3 of the row of y at `at`; zeros after the end.
fn y_four(at: u32, c: u32) -> vec4<f32> {
    let i = at + inside(c, args.width);
    return cut(vec4<f32>(y[i.x], y[i.y], y[i.z], y[i.w]), c, args.width);
}

// Returns elements c to c + 3 of the row of z at `at`; zeros after the end.
fn z_four(at: u32, c: u32) -> vec4<f32> {
    let i = at + inside(c, args.width);
    return cut(vec4<f32>(z[i.x], z[i.y], z[i.z], z[i.w]), c, args.width);
}

// An invocation owns what it adds to, so nothing is lost between a read and a write.
// Adds to a gradient, or begins it; columns after the end are nobody's.
fn add_dq(at: u32, c: u32, more: vec4<f32>) {
    for (var i = 0u; i < 4u && c + i < args.key; i++) {
        dq[at + c + i] += more[i];
    }
}

// Adds `more` to elements c to c + 3 of the row of dk at `at`, or stores it if it begins the sum.
fn add_dk(at: u32, c: u32, more: vec4<f32>, begins: bool) {
    for (var i = 0u; i < 4u && c + i < args.key; i++) {
        let to = at + c + i;
        dk[to] = more[i] + select(dk[to], 0.0, begins);
    }
}
