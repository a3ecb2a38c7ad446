//! Short causal convolution, on each sequence with its state in front: rows `0..W−1` are the state's, then the tokens.

use super::{
    elementwise::{Curve, Silu},
    fill, last_rows, places,
    reduce::over_rows,
};
use crate::{
    Cpu,
    device::{floats, lent, tensor},
    kept::Lent,
    rows::dot,
};
use hecate_core::{
    Result, Tensor,
    primitives::{Conv, ConvDims, ConvOptions, Unit},
};

impl Conv for Cpu {
    fn has_unit(&self, _dims: &ConvDims) -> bool {
        true
    }

    fn conv(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (tokens, before, taps) = (floats(x), floats(state), by_tap(dims, &floats(weight)));
        let rows = Rows { dims, x: &tokens, state: &before };
        let mut y = self.take(tokens.len());
        fill(
            self,
            dims.channels,
            &mut y,
            #[inline(always)]
            |first, y| {
                rows.convolve(&taps, first, y);
                if dims.options.silu {
                    y.iter_mut().for_each(|y| *y = Silu::value(*y));
                }
                if let Some(unit) = dims.options.unit {
                    for head in y.chunks_exact_mut(unit.width) {
                        let r = reciprocal_length(dot(head, head), unit.epsilon);
                        head.iter_mut().for_each(|y| *y *= r);
                    }
                }
            },
        );
        let last = last_rows(&dims.sequences, [dims.width - 1, dims.channels], Some(&before), &tokens);
        Ok((lent(self, x.shape().clone(), x.dtype(), y), tensor(self, dims.state(), x.dtype(), last)))
    }

    fn conv_backward(
        &self,
        dims: &ConvDims,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        state: &Tensor<Self>,
        dy: &Tensor<Self>,
        dfinal: Option<&Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let (tokens, before, slopes) = (floats(x), floats(state), floats(dy));
        let taps = by_tap(dims, &floats(weight));
        let rows = Rows { dims, x: &tokens, state: &before };
        let ConvOptions { silu, unit } = dims.options;
        let through = (silu || unit.is_some()).then(|| through(self, &rows, &taps, &slopes));
        let slopes = through.as_deref().unwrap_or(&slopes);
        let dfinal = dfinal.map(floats);
        let grads = Grads { dims, taps: &taps, dy: slopes, dfinal: dfinal.as_deref() };
        let (channels, kept) = (dims.channels, dims.width - 1);
        let mut dx = self.take(tokens.len());
        fill(
            self,
            channels,
            &mut dx,
            #[inline(always)]
            |first, dx| {
                let range = first..first + dx.len() / channels;
                for (row, (n, t)) in dx.chunks_exact_mut(channels).zip(places(&dims.sequences, range)) {
                    row.fill(0.0);
                    grads.add(n, kept + t, row);
                }
            },
        );
        let mut dstate = vec![0.0; before.len()];
        for (i, row) in dstate.chunks_exact_mut(channels).enumerate() {
            grads.add(i / kept, i % kept, row);
        }
        let dtaps = dtaps(self, &rows, slopes);
        let dweight = (0..channels * dims.width).map(|i| dtaps[i % dims.width * channels + i / dims.width]).collect();
        let array = |like: &Tensor<Self>, values| tensor(self, like.shape().clone(), like.dtype(), values);
        Ok((lent(self, x.shape().clone(), x.dtype(), dx), array(weight, dweight), array(state, dstate)))
    }
}

/// Inputs of each sequence with the state in front.
struct Rows<'a> {
    dims: &'a ConvDims,
    x: &'a [f32],
    state: &'a [f32],
}

impl Rows<'_> {
    /// Row `i` of sequence `n`, `[channels]`.
    #[inline(always)]
    fn get(&self, n: usize, i: usize) -> &[f32] {
        let (channels, kept) = (self.dims.channels, self.dims.width - 1);
        if i < kept {
            return &self.state[(n * kept + i) * channels..][..channels];
        }
        &self.x[(self.dims.sequences.range(n).start + i - kept) * channels..][..channels]
    }

    /// The sums `u` of some tokens, from row `first` on.
    #[inline(always)]
    fn convolve(&self, taps: &[f32], first: usize, out: &mut [f32]) {
        let (dims, channels) = (self.dims, self.dims.channels);
        let range = first..first + out.len() / channels;
        for (row, (n, t)) in out.chunks_exact_mut(channels).zip(places(&dims.sequences, range)) {
            row.fill(0.0);
            for (j, tap) in taps.chunks_exact(channels).enumerate() {
                add_product(row, tap, self.get(n, t + j));
            }
        }
    }
}

/// The gradient of the sums.
fn through(device: &Cpu, rows: &Rows<'_>, taps: &[f32], dy: &[f32]) -> Lent {
    let (channels, ConvOptions { silu, unit }) = (rows.dims.channels, rows.dims.options);
    let mut du = device.take(dy.len());
    fill(
        device,
        channels,
        &mut du,
        #[inline(always)]
        |first, du| {
            rows.convolve(taps, first, du);
            let dy = &dy[first * channels..][..du.len()];
            match unit {
                None => du.iter_mut().zip(dy).for_each(|(u, dy)| *u = Silu::slope(*u) * dy),
                Some(unit) => {
                    for (u, dy) in du.chunks_exact_mut(unit.width).zip(dy.chunks_exact(unit.width)) {
                        if silu { through_unit::<Silu>(u, dy, unit) } else { through_unit::<Itself>(u, dy, unit) }
                    }
                }
            }
        },
    );
    du
}

/// No curve behind the sums.
struct Itself;
impl Curve for Itself {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn slope(_: f32) -> f32 {
        1.0
    }
}

/// The gradient of a head's sums `u`, in their place, where `y = s r`: `C'(u) r (dy − s r² (s·dy))`, `s = C(u)`.
#[inline(always)]
fn through_unit<C: Curve>(u: &mut [f32], dy: &[f32], unit: Unit) {
    let (mut square, mut along) = (0.0, 0.0);
    for (&u, dy) in u.iter().zip(dy) {
        let s = C::value(u);
        square += s * s;
        along += s * dy;
    }
    let r = reciprocal_length(square, unit.epsilon);
    let along = (r * along) * r;
    for (u, dy) in u.iter_mut().zip(dy) {
        *u = C::slope(*u) * (r * (dy - along * C::value(*u)));
    }
}

/// `1/√(square + ε²)`.
#[inline(always)]
fn reciprocal_length(square: f32, epsilon: f32) -> f32 {
    (1.0 / (f64::from(square) + f64::from(epsilon) * f64::from(epsilon)).sqrt()) as f32
}

/// What the gradients by the inputs are made from.
struct Grads<'a> {
    dims: &'a ConvDims,
    taps: &'a [f32],
    dy: &'a [f32],
    dfinal: Option<&'a [f32]>,
}

impl Grads<'_> {
    /// Adds the gradient by row `i` of sequence `n`: `Σ_j taps[j] dy[i − j]`, and what came through the final state.
    #[inline(always)]
    fn add(&self, n: usize, i: usize, out: &mut [f32]) {
        let (channels, kept, range) = (self.dims.channels, self.dims.width - 1, self.dims.sequences.range(n));
        for (j, tap) in self.taps.chunks_exact(channels).enumerate() {
            if j <= i && i - j < range.len() {
                add_product(out, tap, &self.dy[(range.start + i - j) * channels..][..channels]);
            }
        }
        if let Some(dfinal) = self.dfinal
            && i >= range.len()
        {
            let row = &dfinal[(n * kept + i - range.len()) * channels..][..channels];
            out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
        }
    }
}

/// Gradient by the weights, `[W, D]`.
fn dtaps(device: &Cpu, rows: &Rows<'_>, dy: &[f32]) -> Vec<f32> {
    let (dims, channels) = (rows.dims, rows.dims.channels);
    over_rows(
        device,
        dims.sequences.rows(),
        dims.width * channels,
        #[inline(always)]
        |range, sums| {
            for (r, (n, t)) in range.clone().zip(places(&dims.sequences, range)) {
                let dy = &dy[r * channels..][..channels];
                for (j, sums) in sums.chunks_exact_mut(channels).enumerate() {
                    add_product(sums, dy, rows.get(n, t + j));
                }
            }
        },
    )
}

/// `weight [D, W]` as `[W, D]`.
fn by_tap(dims: &ConvDims, weight: &[f32]) -> Vec<f32> {
    (0..weight.len()).map(|i| weight[i % dims.channels * dims.width + i / dims.channels]).collect()
}

#[inline(always)]
fn add_product(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out += a * b;
    }
}
