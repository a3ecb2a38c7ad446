// Bindings 5 and 6 have two names: what one kernel reads there another one writes.
// Rows of a multiple of four elements, four at once. A kernel uses those arrays that it has bound.

@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;         // [rows,H,K]
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;         // [rows,H,width]
@group(0) @binding(4) var<storage, read> y: array<vec4<f32>>;         // [rows,H,width] or [kept,H,M and S,K,V]
@group(0) @binding(5) var<storage, read> z: array<vec4<f32>>;         // [rows,H,width]
@group(0) @binding(6) var<storage, read> q: array<vec4<f32>>;         // [rows,H,K]
@group(0) @binding(5) var<storage, read_write> dq: array<vec4<f32>>;  // [rows,H,K]
@group(0) @binding(6) var<storage, read_write> dk: array<vec4<f32>>;  // [rows,H,K]

// Elements `c` to `c + 3` of the row that begins at `at`, a multiple of four; zeros after the end.
fn k_four(at: u32, c: u32) -> vec4<f32> {
    if c >= args.key {
        return vec4<f32>();
    }
    return k[(at + c) / 4u];
}

// Returns elements c to c + 3 of the row of q at `at`; zeros after the end.
fn q_four(at: u32, c: u32) -> vec4<f32> {
    if c >= args.key {
        return vec4<f32>();
    }
    return q[(at + c) / 4u];
}

// The rows of these three have `args.width` elements.
fn x_four(at: u32, c: u32) -> vec4<f32> {
    if c >= args.width {
        return vec4<f32>();
    }
    return x[(at + c) / 4u];
}

// Returns elements c to c + 3 of the row of y at `at`; zeros after the end.
fn y_four(at: u32, c: u32) -> vec4<f32> {
    if c >= args.width {
        return vec4<f32>();
    }
    return y[(at + c) / 4u];
}

// Returns elements c to c + 3 of the row of z at `at`; zeros after the end.
fn z_four(at: u32, c: u32) -> vec4<f32> {
    if c >= args.width {
        return vec4<f32>();
    }
    return z[(at + c) / 4u];
}

// An invocation owns what it adds to, so nothing is lost between a read and a write.
// Adds to a gradient, or begins it; columns after the end are nobody's.
fn add_dq(at: u32, c: u32, more: vec4<f32>) {
    if c < args.key {
        dq[(at + c) / 4u] += more;
    }
}

// Adds `more` to elements c to c + 3 of the row of dk at `at`, or stores it if it begins the sum.
fn add_dk(at: u32, c: u32, more: vec4<f32>, begins: bool) {
    if c < args.key {
        let i = (at + c) / 4u;
        dk[i] = more + select(dk[i], vec4<f32>(), begins);
    }
}
