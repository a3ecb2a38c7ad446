//! Loops over rows of elements: small vectors against each other, and against the rows of a matrix.
//!
//! All are inlined into callers that run under SIMD dispatch ([`crate::simd`]).
//! Matrices `M [K,V]` are row-major slices whose width is the length of the vector `y [V]`.

/// `Σ x y`, in 16 partial sums so that it vectorises without reordering.
/// The order of the sums depends on the length alone, never on the processor.
#[inline(always)]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (xs, ys) = (x.chunks_exact(16), y.chunks_exact(16));
    // What is left of a length that is no multiple of 16.
    let tail: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    // Sixteen sums: one or two vectors on every processor.
    for (x, y) in xs.zip(ys) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    // The partial sums are added in a tree: 8 and 8, then 4 and 4, 2 and 2, 1 and 1.
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0] + tail
}

/// Elements that [`sum`] adds up in 32 bits.
const SHORT: usize = 1 << 10;

/// `Σ x`: short sums in 32 bits, sixteen side by side, and the sum of those in 64.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f64 {
    let short = |x: &[f32]| {
        let mut sums = [0.0f32; 16];
        let (whole, rest) = x.as_chunks::<16>();
        for x in whole {
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
        rest.iter().chain(&sums).sum::<f32>()
    };
    x.chunks(SHORT).map(|x| f64::from(short(x))).sum()
}

/// `out += factor x`.
#[inline(always)]
pub(crate) fn axpy(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += factor * x;
    }
}

/// `out *= factor`.
#[inline(always)]
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    for out in out {
        *out *= factor;
    }
}

/// `out = factor x`.
#[inline(always)]
pub(crate) fn set_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = factor * x;
    }
}

/// `out = a x + b y`: a memory's row after its decay and its update.
#[inline(always)]
pub(crate) fn set_sum(out: &mut [f32], a: f32, x: &[f32], b: f32, y: &[f32]) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = a * x + b * y;
    }
}

/// Row `t` of `out` plus `factors[t]` times row `t` of `x`; both `[n, width]`.
#[inline(always)]
pub(crate) fn add_scaled_rows(out: &mut [f32], factors: &[f32], x: &[f32], width: usize) {
    for ((out, x), &factor) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(factors) {
        axpy(out, factor, x);
    }
}

/// Row `t` of `out` becomes `factors[t]` times row `t` of `x`; both `[n, width]`.
#[inline(always)]
pub(crate) fn set_scaled_rows(out: &mut [f32], factors: &[f32], x: &[f32], width: usize) {
    for ((out, x), &factor) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(factors) {
        set_scaled(out, factor, x);
    }
}

/// `y = x M` with `x [K]`, `M [K,V]`, `y [V]`.
#[inline(always)]
pub(crate) fn read(y: &mut [f32], x: &[f32], m: &[f32]) {
    y.fill(0.0);
    add_read(y, x, m);
}

/// `y += x M`, row after row of `M`, so that memory is read in order.
#[inline(always)]
pub(crate) fn add_read(y: &mut [f32], x: &[f32], m: &[f32]) {
    for (m, &x) in m.chunks_exact(y.len()).zip(x) {
        axpy(y, x, m);
    }
}

/// `x += y Mᵀ` with `y [V]`, `M [K,V]`, `x [K]`: one dot product a row.
#[inline(always)]
pub(crate) fn add_transposed(x: &mut [f32], y: &[f32], m: &[f32]) {
    for (x, m) in x.iter_mut().zip(m.chunks_exact(y.len())) {
        *x += dot(y, m);
    }
}

/// `M += factor xᵀ y`, a rank-1 update with `x [K]`, `y [V]`.
#[inline(always)]
pub(crate) fn add_outer(m: &mut [f32], factor: f32, x: &[f32], y: &[f32]) {
    for (m, &x) in m.chunks_exact_mut(y.len()).zip(x) {
        axpy(m, factor * x, y);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    // Sums of small whole numbers are exact, so every order gives the same.
    fn dot_of_every_length() {
        for n in 0..70 {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f32 = x.iter().map(|x| x * x).sum();
            assert_eq!(super::dot(&x, &x), expected, "length {n}");
        }
    }
}
