//! Short causal convolution, on each sequence with its state in front.
//!
//! Every channel has `W` taps of its own. Rows `0..W−1` of a sequence are its state's, then come the tokens.
//! Taps are turned into `[W,D]` first, so that a tap is one row against one row of channels.
//! SiLU and the L2 norm of heads follow in the same pass, and are computed again on the way back.

use super::{
    elementwise::{Curve, Silu},
    fill, last_rows, places,
    reduce::over_rows,
};
use crate::{
    Cpu,
    buffer_pool::PooledBuf,
    device::{floats, pooled_tensor, tensor},
    rows::dot,
};
use hecate_core::{
    Checked, Result, Tensor, memory,
    primitives::{Conv, ConvBackward, ConvDims, ConvInputs, ConvOptions, ConvOutputs, L2Norm},
};

impl Conv for Cpu {
    /// The norm is part of the pass.
    fn has_l2_norm(&self, _dims: &ConvDims) -> bool {
        true
    }

    /// Rows are convolved where they are written; the state is the last `W − 1` inputs of each sequence.
    /// `x [rows, D]`, `weight [D, W]`, `state [N, W−1, D]`; `y` is like `x`.
    fn conv(
        &self,
        _: Checked<Self>,
        dims: &ConvDims,
        inputs: &ConvInputs<&Tensor<Self>>,
    ) -> Result<ConvOutputs<Tensor<Self>>> {
        let ConvInputs { x, weight, state } = *inputs;
        let (tokens, before, taps) = (floats(x)?, floats(state)?, by_tap(dims, &floats(weight)?));
        let rows = ConvRows { dims, x: &tokens, state: &before };
        let mut y = self.take("conv", tokens.len())?;
        fill(
            self,
            dims.channels,
            &mut y,
            #[inline(always)]
            |first, y| {
                // Sums, curve and norm of a few rows while they are in the near cache.
                rows.convolve(&taps, first, y);
                if dims.options.silu {
                    y.iter_mut().for_each(|y| *y = Silu::value(*y));
                }
                // Heads' norms see the sums after SiLU.
                if let Some(unit) = dims.options.l2_norm {
                    for head in y.chunks_exact_mut(unit.width) {
                        let r = reciprocal_length(dot(head, head), unit.epsilon);
                        head.iter_mut().for_each(|y| *y *= r);
                    }
                }
            },
        );
        // The final state is copied from the inputs: nothing of the convolution is in it.
        let last = last_rows(&dims.sequences, [dims.width - 1, dims.channels], Some(&before), &tokens)?;
        let y = pooled_tensor(self, x.shape().clone(), x.dtype(), y)?;
        Ok(ConvOutputs { y, state: tensor(self, dims.state(), x.dtype(), last)? })
    }

    /// Gradients of tokens, weight and state. The convolution's sums are computed again where a curve follows them.
    /// `dfinal [N, W−1, D]` is there where a later call went on from the final state.
    fn conv_backward(
        &self,
        _: Checked<Self>,
        dims: &ConvDims,
        call: &ConvBackward<'_, Self>,
    ) -> Result<ConvInputs<Tensor<Self>>> {
        let ConvInputs { x, weight, state } = call.inputs;
        let (tokens, before, slopes) = (floats(x)?, floats(state)?, floats(call.dy)?);
        let taps = by_tap(dims, &floats(weight)?);
        let rows = ConvRows { dims, x: &tokens, state: &before };
        let ConvOptions { silu, l2_norm: unit } = dims.options;
        // Without a curve or norm the gradient of the sums is that of the output.
        let through = (silu || unit.is_some()).then(|| activation_vjp(self, &rows, &taps, &slopes)).transpose()?;
        let slopes = through.as_deref().unwrap_or(&slopes);
        let dfinal = call.dfinal.map(floats).transpose()?;
        // Gradients of inputs are a convolution too, with the taps in reverse and later rows.
        let grads = ConvGrads { dims, taps: &taps, dy: slopes, dfinal: dfinal.as_deref() };
        // `D`, and rows of a state.
        let (channels, kept) = (dims.channels, dims.width - 1);
        let mut dx = self.take("conv", tokens.len())?;
        fill(
            self,
            channels,
            &mut dx,
            #[inline(always)]
            |first, dx| {
                let range = first..first + dx.len() / channels;
                for (row, (n, t)) in dx.chunks_exact_mut(channels).zip(places(&dims.sequences, range)) {
                    row.fill(0.0);
                    // Token `t` stands after the `W − 1` rows of its sequence's state.
                    grads.add(n, kept + t, row);
                }
            },
        );
        // Short, `N (W−1) D`: one thread makes it.
        let mut dstate = memory::zeros("conv", before.len())?;
        // The state's rows are those in front of a sequence's tokens.
        for (i, row) in dstate.chunks_exact_mut(channels).enumerate() {
            grads.add(i / kept, i % kept, row);
        }
        // Back from `[W,D]` to `[D,W]`.
        let dtaps = dtaps(self, &rows, slopes);
        let dweight = (0..channels * dims.width).map(|i| dtaps[i % dims.width * channels + i / dims.width]).collect();
        let array = |like: &Tensor<Self>, values| tensor(self, like.shape().clone(), like.dtype(), values);
        let x = pooled_tensor(self, x.shape().clone(), x.dtype(), dx)?;
        Ok(ConvInputs { x, weight: array(weight, dweight)?, state: array(state, dstate)? })
    }
}

/// Inputs of each sequence with the state in front.
struct ConvRows<'a> {
    /// Sequences `N`, channels `D`, taps `W` and options.
    dims: &'a ConvDims,
    /// `[rows, D]`.
    x: &'a [f32],
    /// `[N, W−1, D]`.
    state: &'a [f32],
}

impl ConvRows<'_> {
    /// Row `i` of sequence `n`, `[D]`: of its state first, then of its tokens.
    #[inline(always)]
    fn get(&self, n: usize, i: usize) -> &[f32] {
        // `W − 1` rows of the state come before a sequence's tokens.
        let (channels, kept) = (self.dims.channels, self.dims.width - 1);
        if i < kept {
            return &self.state[(n * kept + i) * channels..][..channels];
        }
        &self.x[(self.dims.sequences.range(n).start + i - kept) * channels..][..channels]
    }

    /// The sums `u [.., D]` of some tokens, from row `first` on: `W` products a row.
    #[inline(always)]
    fn convolve(&self, taps: &[f32], first: usize, out: &mut [f32]) {
        let (dims, channels) = (self.dims, self.dims.channels);
        let range = first..first + out.len() / channels;
        for (row, (n, t)) in out.chunks_exact_mut(channels).zip(places(&dims.sequences, range)) {
            row.fill(0.0);
            // All channels of one tap together: the loop inside vectorises.
            for (j, tap) in taps.chunks_exact(channels).enumerate() {
                add_product(row, tap, self.get(n, t + j));
            }
        }
    }
}

/// The gradient of the sums, `[rows, D]`: back through norm and SiLU at sums computed again.
///
/// # Errors
/// [`hecate_core::Error::OutOfMemory`].
fn activation_vjp(device: &Cpu, rows: &ConvRows<'_>, taps: &[f32], dy: &[f32]) -> Result<PooledBuf> {
    let (channels, ConvOptions { silu, l2_norm: unit }) = (rows.dims.channels, rows.dims.options);
    let mut du = device.take("conv", dy.len())?;
    fill(
        device,
        channels,
        &mut du,
        #[inline(always)]
        |first, du| {
            // Cheaper again than kept: `W` products a number against a read and a write of an array.
            rows.convolve(taps, first, du);
            let dy = &dy[first * channels..][..du.len()];
            match unit {
                // `du` holds the sums, and becomes their gradient.
                None => du.iter_mut().zip(dy).for_each(|(u, dy)| *u = Silu::slope(*u) * dy),
                Some(unit) => {
                    for (u, dy) in du.chunks_exact_mut(unit.width).zip(dy.chunks_exact(unit.width)) {
                        if silu { l2_norm_vjp::<Silu>(u, dy, unit) } else { l2_norm_vjp::<Identity>(u, dy, unit) }
                    }
                }
            }
        },
    );
    Ok(du)
}

/// No curve after the sums.
struct Identity;
impl Curve for Identity {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn slope(_: f32) -> f32 {
        1.0
    }
}

/// The gradient of a head's sums `u`, in their place, where `y = s r` and `s = C(u)`.
/// It is `C'(u) r (dy − s r² (s·dy))`.
#[inline(always)]
fn l2_norm_vjp<C: Curve>(u: &mut [f32], dy: &[f32], unit: L2Norm) {
    // One pass for the head's norm and the gradient along it, one for the gradient itself.
    let (mut square, mut along) = (0.0, 0.0);
    for (&u, dy) in u.iter().zip(dy) {
        let s = C::value(u);
        square += s * s;
        along += s * dy;
    }
    let r = reciprocal_length(square, unit.epsilon);
    // The part of the gradient along the head, which the norm takes away.
    let along = (r * along) * r;
    for (u, dy) in u.iter_mut().zip(dy) {
        *u = C::slope(*u) * (r * (dy - along * C::value(*u)));
    }
}

/// `1/√(square + ε²)`, in 64 bits: the square of a small `ε` is no normal 32-bit float.
#[inline(always)]
fn reciprocal_length(square: f32, epsilon: f32) -> f32 {
    (1.0 / (f64::from(square) + f64::from(epsilon) * f64::from(epsilon)).sqrt()) as f32
}

/// What the gradients of the inputs are made from.
struct ConvGrads<'a> {
    /// As of the forward.
    dims: &'a ConvDims,
    /// `[W,D]`.
    taps: &'a [f32],
    /// Gradient of the sums, `[rows, D]`.
    dy: &'a [f32],
    /// Gradient of the final state `[N, W−1, D]`, where something was made of it.
    dfinal: Option<&'a [f32]>,
}

impl ConvGrads<'_> {
    /// Adds the gradient of row `i` of sequence `n`: `Σ_j taps[j] dy[i − j]`, and what came through the final state.
    #[inline(always)]
    fn add(&self, n: usize, i: usize, out: &mut [f32]) {
        let (channels, kept, range) = (self.dims.channels, self.dims.width - 1, self.dims.sequences.range(n));
        for (j, tap) in self.taps.chunks_exact(channels).enumerate() {
            // Row `i` was tap `j` of token `i − j`, where there is such a token.
            if j <= i && i - j < range.len() {
                add_product(out, tap, &self.dy[(range.start + i - j) * channels..][..channels]);
            }
        }
        // The last rows of a sequence are also its final state.
        if let Some(dfinal) = self.dfinal
            && i >= range.len()
        {
            let row = &dfinal[(n * kept + i - range.len()) * channels..][..channels];
            out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
        }
    }
}

/// Gradient of the weights, `[W,D]`: sums over all rows, in an order that the sizes fix.
fn dtaps(device: &Cpu, rows: &ConvRows<'_>, dy: &[f32]) -> Vec<f32> {
    let (dims, channels) = (rows.dims, rows.dims.channels);
    over_rows(
        device,
        dims.sequences.rows(),
        dims.width * channels,
        #[inline(always)]
        |range, sums| {
            // A weight's gradient: the row's gradient times the row under that tap.
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

/// `out += a∘b`, `[D]` each.
#[inline(always)]
fn add_product(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out += a * b;
    }
}
