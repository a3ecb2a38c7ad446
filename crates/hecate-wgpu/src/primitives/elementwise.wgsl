// Element by element. `MAP` is the number of a map, `COMBINE` that of what two arrays become.

// Values of MAP, in the order of `Map::ALL`; the one that is left, 5, is EXP.
const SILU: u32 = 0u;
const SIGMOID: u32 = 1u;
const LOG_SIGMOID: u32 = 2u;
const SOFTPLUS: u32 = 3u;
const GELU: u32 = 4u;
const RELU: u32 = 6u;
const RELU_SQUARED: u32 = 7u;

// Values of COMBINE, in the order of `Combine`; the one that is left, 0, is a sum.
const PRODUCT: u32 = 1u;
const DIFFERENCE: u32 = 2u;
const QUOTIENT: u32 = 3u;

// Defined in `elementwise.rs`.
@group(0) @binding(0) var<uniform> args: ElementwiseArgs;
// [count]; every array has as many elements, but for b of `combine` and `biased`.
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
// [count], or [width] where it serves every row.
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> c: array<f32>;
// A second result, of `gated_backward` alone.
@group(0) @binding(5) var<storage, read_write> z: array<f32>;

// 2 √(2/π) (x + 0.044715 x³): ½ (1 + tanh u) = σ(2u).
fn gelu_argument(x: f32) -> f32 {
    return 1.595769 * x * (1.0 + 0.044715 * x * x);
}

// max(x, 0), and NaN of NaN.
fn above_zero(x: f32) -> f32 {
    return select(x, 0.0, x < 0.0);
}

// The map: MAP is a constant, so that one case is compiled.
fn curve(x: f32) -> f32 {
    switch MAP {
        case SILU: { return x * sigmoids(x).x; }
        case SIGMOID: { return sigmoids(x).x; }
        case LOG_SIGMOID: { return -softplus(-x); }
        case SOFTPLUS: { return softplus(x); }
        case GELU: { return x * sigmoids(gelu_argument(x)).x; }
        case RELU: { return above_zero(x); }
        case RELU_SQUARED: { return above_zero(x) * above_zero(x); }
        default: { return exponential(x); }
    }
}

// The derivative of the map, from x alone.
fn slope(x: f32) -> f32 {
    switch MAP {
        case SILU: {
            let s = sigmoids(x);
            return s.x * (1.0 + x * s.y);
        }
        case SIGMOID: {
            let s = sigmoids(x);
            return s.x * s.y;
        }
        case LOG_SIGMOID: { return sigmoids(x).y; }
        case SOFTPLUS: { return sigmoids(x).x; }
        case GELU: {
            let s = sigmoids(gelu_argument(x));
            // Where x² would overflow, one of the two has long been 0.
            let near = select(clamp(x, -1e6, 1e6), x, is_nan(x));
            return s.x * (1.0 + near * s.y * 1.595769 * (1.0 + 0.134145 * near * near));
        }
        case RELU: { return select(select(0.0, 1.0, x > 0.0), x, is_nan(x)); }
        case RELU_SQUARED: { return 2.0 * above_zero(x); }
        default: { return exponential(x); }
    }
}

// y = map(a)
@compute @workgroup_size(256)
// An invocation makes one element, here and below.
fn map_forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        y[i] = curve(a[i]);
    }
}

// dx = map'(x) dy, with x = a, dy = b
@compute @workgroup_size(256)
fn map_backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        y[i] = slope(a[i]) * b[i];
    }
}

// y = x map(g), with x = a, g = b
@compute @workgroup_size(256)
fn gated(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        y[i] = a[i] * curve(b[i]);
    }
}

// dx = map(g) dy, dg = map'(g) x dy, with x = a, g = b, dy = c, dx = y, dg = z
@compute @workgroup_size(256)
fn gated_backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        // Two results from one read of each input.
        y[i] = curve(b[i]) * c[i];
        z[i] = slope(b[i]) * (c[i] * a[i]);
    }
}

// y = map(x + b), with x = a; b serves every row
@compute @workgroup_size(256)
fn biased(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        y[i] = curve(a[i] + b[i % args.width]);
    }
}

// dx = map'(x + b) dy, with x = a, dy = c
@compute @workgroup_size(256)
fn biased_backward(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        y[i] = slope(a[i] + b[i % args.width]) * c[i];
    }
}

// a + b, or what else COMBINE says: a constant, so that one case is compiled.
fn combined(a: f32, b: f32) -> f32 {
    switch COMBINE {
        case PRODUCT: { return a * b; }
        case DIFFERENCE: { return a - b; }
        case QUOTIENT: { return a / b; }
        default: { return a + b; }
    }
}

// y = combined(a, b); b serves every row
@compute @workgroup_size(256)
fn combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        // `width` is `count` where both have one shape.
        y[i] = combined(a[i], b[i % args.width]);
    }
}

// y = factor a
@compute @workgroup_size(256)
fn scale(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        y[i] = args.factor * a[i];
    }
}

// Two random words of the key and a block's number: Threefry-2x32 with 20 rounds, as `DropMask` of `hecate-core`.
fn threefry(block: u32) -> vec2<u32> {
    var keys = array<u32, 3>(args.key.x, args.key.y, 0x1BD11BDAu ^ args.key.x ^ args.key.y);
    var rotations = array<u32, 8>(13u, 15u, 26u, 6u, 17u, 29u, 16u, 24u);
    var x = block + keys[0];
    // Arrays here have fewer than 2^32 elements: a counter's upper word is 0.
    var y = keys[1];
    for (var n = 1u; n < 6u; n++) {
        // Four rounds, then the key once more.
        for (var i = 0u; i < 4u; i++) {
            let turn = rotations[(4u * n - 4u + i) % 8u];
            x += y;
            y = ((y << turn) | (y >> (32u - turn))) ^ x;
        }
        x += keys[n % 3u];
        y += keys[(n + 1u) % 3u] + n;
    }
    return vec2(x, y);
}

// y = a where it is kept, times factor; 0 where it is dropped
@compute @workgroup_size(256)
fn dropout(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        let word = threefry(i / 2u)[i % 2u];
        y[i] = select(args.factor, 0.0, word < args.dropped) * a[i];
    }
}
