// The inner gradient: u = ψ(e), the derivative of the attentional bias by the error, and its own derivative. Equations
// (47) to (52), and (94) after them.

// Values of BIAS, in the order of `AttentionalBias`.
const L2: u32 = 0u;
const LP: u32 = 1u;
const HUBER: u32 = 2u;
// In the order of `Huber`.
const COORDINATE: u32 = 0u;
const NORM: u32 = 1u;

// An element of ψ(e) of (48), (49).
// ψ(e) = p e (e² + ε)^{(p-2)/2}, or with the smooth sign tanh(10 e) in place of e / |e|.
fn power_grad(e: f32) -> f32 {
    let p = args.cell.p;
    let m = e * e + args.cell.epsilon;
    if (args.cell.error != 0u) {
        return p * hyperbolic_tangent(10.0 * e) * power(m, (p - 1.0) / 2.0);
    }
    return p * e * power(m, (p - 2.0) / 2.0);
}

// Its derivative.
// ψ is element by element: its Jacobian is a diagonal.
fn power_second_derivative(e: f32) -> f32 {
    let p = args.cell.p;
    let m = e * e + args.cell.epsilon;
    if (args.cell.error != 0u) {
        let t = hyperbolic_tangent(10.0 * e);
        let steep = 10.0 * (1.0 - t * t) * power(m, (p - 1.0) / 2.0);
        return p * (steep + t * (p - 1.0) * e * power(m, (p - 3.0) / 2.0));
    }
    return p * power(m, (p - 2.0) / 2.0) * (1.0 + (p - 2.0) * (e * e / m));
}

// An element of ψ(e) of (50), (51), (52), for errors of this length.
// COORDINATE cuts each element at δ; NORM and the mix decide by the length of the whole error.
fn huber_grad(e: f32, delta: f32, length: f32) -> f32 {
    if (args.cell.error == COORDINATE) {
        return select(delta * sign_of(e), e, abs(e) <= delta);
    }
    let outside = select(delta * sign_of(e), delta / length * e, args.cell.error == NORM);
    return select(outside, e, length <= delta);
}

// An element of u = ψ(e).
// BIAS is a constant: what is left out is not compiled.
fn inner_grad(e: f32, delta: f32, length: f32) -> f32 {
    if (BIAS == L2) {
        return e;
    }
    if (BIAS == LP) {
        return power_grad(e);
    }
    return huber_grad(e, delta, length);
}

// What the gradients of (50), (51), (52) add up: |e|², e·ū, sign(e)·ū, and that over the coordinates outside.
// Four sums over one row of V elements.
fn sums_of_bias(e: f32, du: f32, delta: f32) -> vec4<f32> {
    let signed = sign_of(e) * du;
    return vec4(e * e, e * du, signed, select(signed, 0.0, abs(e) <= delta));
}

// An element of ψ′(e)ᵀ ū.
// The Jacobian of NORM has a part along the error: e (e·ū) / |e|².
fn inner_grad_vjp(e: f32, du: f32, delta: f32, sums: vec4<f32>) -> f32 {
    if (BIAS == L2) {
        return du;
    }
    if (BIAS == LP) {
        return power_second_derivative(e) * du;
    }
    if (args.cell.error == COORDINATE) {
        return select(0.0, du, abs(e) <= delta);
    }
    let length = sqrt(sums.x);
    let cut = delta / length * (du - e * (sums.y / sums.x));
    return select(select(0.0, cut, args.cell.error == NORM), du, length <= delta);
}

// The gradient of δ.
// δ counts where it cuts, and nowhere else.
fn delta_vjp(delta: f32, sums: vec4<f32>) -> f32 {
    if (args.cell.error == COORDINATE) {
        return sums.w;
    }
    let length = sqrt(sums.x);
    return select(select(sums.z, sums.y / length, args.cell.error == NORM), 0.0, length <= delta);
}

// Whether the inner gradient is clipped.
fn clips() -> bool {
    return args.cell.per_clip != 0.0;
}

// s of (94), given |ψ|². The length first, since 1 / c may be of any size and its square may not.
fn shrink_of(square: f32) -> f32 {
    let ratio = sqrt(square) * args.cell.per_clip;
    return select(1.0, 1.0 / sqrt(1.0 + ratio * ratio), clips());
}

// An element of ψ̄, given u·ū. What shortens an error grows with it: part of the gradient along it goes.
fn clip_vjp(u: f32, du: f32, shrink: f32, along: f32) -> f32 {
    let per_clip = args.cell.per_clip;
    return shrink * (du - along * per_clip * per_clip * u);
}
