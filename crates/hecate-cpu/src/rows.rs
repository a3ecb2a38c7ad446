//! Loops over rows of numbers. All are inlined into callers that run under SIMD dispatch.

/// `Σ x y`, in 16 partial sums so that it vectorises; their order does not depend on the processor.
#[inline(always)]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (xs, ys) = (x.chunks_exact(16), y.chunks_exact(16));
    let tail: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in xs.zip(ys) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0] + tail
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
        for (out, x) in out.iter_mut().zip(x) {
            *out = factor * x;
        }
    }
}

/// `y = x M`.
#[inline(always)]
pub(crate) fn read(y: &mut [f32], x: &[f32], m: &[f32]) {
    y.fill(0.0);
    add_read(y, x, m);
}

/// `y += x M`.
#[inline(always)]
pub(crate) fn add_read(y: &mut [f32], x: &[f32], m: &[f32]) {
    for (m, &x) in m.chunks_exact(y.len()).zip(x) {
        axpy(y, x, m);
    }
}

/// `x += y Mᵀ`.
#[inline(always)]
pub(crate) fn add_transposed(x: &mut [f32], y: &[f32], m: &[f32]) {
    for (x, m) in x.iter_mut().zip(m.chunks_exact(y.len())) {
        *x += dot(y, m);
    }
}

/// `M += factor xᵀ y`.
#[inline(always)]
pub(crate) fn add_outer(m: &mut [f32], factor: f32, x: &[f32], y: &[f32]) {
    for (m, &x) in m.chunks_exact_mut(y.len()).zip(x) {
        axpy(m, factor * x, y);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn dot_of_every_length() {
        for n in 0..70 {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f32 = x.iter().map(|x| x * x).sum();
            assert_eq!(super::dot(&x, &x), expected, "length {n}");
        }
    }
}
