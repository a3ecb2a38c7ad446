// From the state to the weights, and back: equations (53) to (55).

// Values of RETENTION, in the order of `Retention`.
const DECAY: u32 = 0u;
const LQ: u32 = 1u;
const KL: u32 = 2u;
const LQ_EPSILON: f32 = 1e-12;

// |x|^q.
// Small whole powers are products: faster than `power`, and closer.
fn to_the_q(x: f32) -> f32 {
    let q = args.cell.q;
    if (q == 2.0) {
        return x * x;
    }
    if (q == 3.0) {
        return x * x * x;
    }
    if (q == 4.0) {
        return (x * x) * (x * x);
    }
    return power(x, q);
}

// What ν of (54) is measured in: powers are taken of values up to 1 alone, since fourth powers of large values are larger
// than a float.
// The largest element of a matrix, and no less than ε^{1/q}.
fn lq_size(top: f32) -> f32 {
    return larger(top, power(LQ_EPSILON, 1.0 / args.cell.q));
}

// ν, from the sum of (|x| / size)^q.
// ν = size (Σ (|x| / size)^q + (ε^{1/q} / size)^q)^{1/q}.
fn lq_norm(size: f32, sum: f32) -> f32 {
    let least = power(LQ_EPSILON, 1.0 / args.cell.q) / size;
    return size * power(sum + to_the_q(least), 1.0 / args.cell.q);
}

// With y = x/ν, |y|^{q−2}.
// y² to half the power: no sign to lose.
fn steepness(y: f32) -> f32 {
    return power(y * y, (args.cell.q - 2.0) / 2.0);
}

// A weight from its element of the state, and the ν of its matrix. Not called for DECAY, where they are the same.
// KL: scale eˣ. Mirror: ν |y|^{q-2} y. Literal: ν^{2-q} x.
fn to_weight(x: f32, norm: f32) -> f32 {
    if (RETENTION == KL) {
        return args.cell.scale * exponential(x);
    }
    if (args.cell.literal != 0u) {
        return power(norm, 2.0 - args.cell.q) * x;
    }
    return norm * (x / norm * steepness(x / norm));
}

// The gradient of an element of the state, given that of the weight. With y = x/ν and B = |y|^{q−2} y, (54) is
//     mirror:  X̄ = (q−1) |y|^{q−2} W̄ + (2−q) ⟨W̄, B⟩ B
//     literal: X̄ = ν^{2−q} (W̄ + (2−q) ⟨W̄, y⟩ B)
// where `along_it` is the product in brackets.
fn pullback(x: f32, dw: f32, norm: f32, along_it: f32) -> f32 {
    if (RETENTION == KL) {
        return args.cell.scale * exponential(x) * dw;
    }
    let q = args.cell.q;
    let y = x / norm;
    let steep = steepness(y);
    let rest = (2.0 - q) * along_it * (y * steep);
    if (args.cell.literal != 0u) {
        return power(norm, 2.0 - q) * (dw + rest);
    }
    return (q - 1.0) * steep * dw + rest;
}

// What `along_it` adds up.
// ⟨W̄, B⟩ for the mirror map, ⟨W̄, y⟩ for the literal one.
fn pullback_along(x: f32, dw: f32, norm: f32) -> f32 {
    let y = x / norm;
    return dw * select(y * steepness(y), y, args.cell.literal != 0u);
}
