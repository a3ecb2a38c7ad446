//! Sliding-window attention as a layer.

use super::{Context, Counts, Linear, Mixer, Projection, ProjectionTail};
use crate::{AttentionConfig, Builder, Init, LayerCache, Parameters, Result, Tape, Var};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, AttentionInputs, AttentionOptions, Cache, Prefix},
};

/// Softmax attention over the last tokens: rotary positions, and query heads that share key-value heads.
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    qkv: [Projection; 3],
    /// From the heads to the residual stream.
    back: Linear,
    /// Key-value heads `H'`, a divisor of the query heads `H`.
    kv_heads: usize,
    /// Width of a head, `D`.
    width: usize,
    /// Base of the rotary frequencies.
    base: f32,
    options: AttentionOptions,
    /// Share of what was seen that is dropped.
    dropout: f32,
}

impl SlidingWindow {
    /// Attention beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, config: &AttentionConfig, hidden: usize) -> Result<Self> {
        config.validate(hidden, str::to_owned)?;
        let (heads, (kv_heads, width)) = (config.heads, config.sizes(hidden));
        let tail = ProjectionTail { taps: config.conv, activate: false };
        let mut project = |names, heads| Projection::new(build, names, hidden, (heads, width), tail);
        let qkv = [
            project(("q_proj", "q_conv1d"), heads)?,
            project(("k_proj", "k_conv1d"), kv_heads)?,
            project(("v_proj", "v_conv1d"), kv_heads)?,
        ];
        let options = AttentionOptions { window: config.window, scale: (width as f32).sqrt().recip() };
        let back = Linear::new(build, "o_proj", heads * width, hidden, Init::Residual)?;
        let dropout = build.dropout().attention;
        Ok(Self { qkv, back, kv_heads, width, base: config.rope_base, options, dropout })
    }

    /// `x [B,T,hidden]` to the same shape. Every token sees the rows `prefix [1,Np,hidden]` as well, whatever the window.
    ///
    /// Persistent rows have no position in the text: queries meet their keys without rotation, so what a token makes of
    /// them does not depend on where it stands. One product of twice the width `D` gives both scores,
    /// `[R_t q, q]·[R_j k, 0]` and `[R_t q, q]·[0, k]`.
    ///
    /// # Errors
    /// An `x` or `prefix` of another width; the device's own failures.
    pub(super) fn attend<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        prefix: Option<&Var<B>>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let [q_proj, k_proj, v_proj] = &self.qkv;
        let q = q_proj.forward(tape, x, context)?;
        let k = k_proj.forward(tape, x, context)?;
        let v = v_proj.forward(tape, x, context)?;
        let rotate = |x| match &context.positions {
            Some(positions) => tape.rotary_from(x, &context.sequences, positions, self.base),
            None => tape.rotary(x, &context.sequences, context.position, self.base),
        };
        let inputs =
            AttentionInputs { q: rotate(&q)?, k: rotate(&k)?, v, cache: cached(tape, &q, context)?, prefix: None };
        self.keep(&inputs, context)?;
        let inputs = match prefix {
            Some(prefix) => self.beside(tape, inputs, &q, prefix)?,
            None => inputs,
        };
        let y = tape.attention(self.options, &context.sequences, inputs)?;
        let (batch, tokens, heads) = (y.axes()[0], y.axes()[1], y.axes()[2]);
        let y = tape.dropout(self.dropout, &tape.reshape(&y, [batch, tokens, heads * self.width])?)?;
        self.back.forward(tape, &y)
    }

    /// What is remembered of `batch` texts of which nothing was seen. These are keys and values `[B,W−1,H',D]` of the window
    /// before the next token, and `valid [B,W−1]`, 1 where there is a token.
    pub(super) fn empty_cache<B: Backend>(&self, device: &B, batch: usize) -> Result<LayerCache<B>> {
        let convs = self.qkv.iter().filter_map(Projection::conv).map(|conv| conv.cache(device, batch));
        let mut arrays = convs.collect::<Result<Vec<_>>>()?;
        let kept = self.options.window - 1;
        let zeros = || Tensor::zeros(device, [batch, kept, self.kv_heads, self.width], DType::F32);
        arrays.push(("k", zeros()?));
        arrays.push(("v", zeros()?));
        arrays.push(("valid", Tensor::zeros(device, [batch, kept], DType::F32)?));
        Ok(LayerCache::new(arrays))
    }

    /// Remembers the last `W − 1` keys, rotated, and values, where there is a cache.
    fn keep<B: Backend>(&self, inputs: &AttentionInputs<Var<B>>, context: &mut Context<'_, B>) -> Result<()> {
        if inputs.cache.is_some() {
            let values = inputs.clone().map(Var::into_value);
            let next = primitives::attention_cache(self.options, &context.sequences, &values)?;
            [("k", next.k), ("v", next.v), ("valid", next.valid)].iter().for_each(|(name, x)| context.keep(name, x));
        }
        Ok(())
    }

    /// The arguments with a prefix: keys and queries `[B,T,H,2D]`, each rotated half beside its half without rotation. `q`
    /// `[B,T,H,D]` is not rotated, `rows` are `[1,Np,hidden]`.
    fn beside<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        inputs: AttentionInputs<Var<B>>,
        q: &Var<B>,
        rows: &Var<B>,
    ) -> Result<AttentionInputs<Var<B>>> {
        let [_, k_proj, v_proj] = &self.qkv;
        let count = rows.axes()[1];
        let k = k_proj.forward(tape, rows, &mut Context::whole(1, count))?;
        let v = v_proj.forward(tape, rows, &mut Context::whole(1, count))?;
        let wide = |left: &Var<B>, right: &Var<B>| tape.concat(&[left, right], 3);
        let padded = |x: &Var<B>| wide(x, &zeros_like(x)?);
        let cache = match inputs.cache {
            Some(cache) => Some(Cache { k: padded(&cache.k)?, ..cache }),
            None => None,
        };
        let k = tape.reshape(&wide(&zeros_like(&k)?, &k)?, [count, self.kv_heads, 2 * self.width])?;
        let v = tape.reshape(&v, [count, self.kv_heads, self.width])?;
        let prefix = Some(Prefix { k, v });
        Ok(AttentionInputs { q: wide(&inputs.q, q)?, k: padded(&inputs.k)?, v: inputs.v, cache, prefix })
    }
}

/// Zeros of the shape and element type of `x`.
fn zeros_like<B: Backend>(x: &Var<B>) -> Result<Var<B>> {
    let x = x.value();
    Ok(Var::constant(Tensor::zeros(x.device(), x.shape().clone(), x.dtype())?))
}

/// Keys and values of the tokens before, where they are remembered, in the type of the queries `q`.
pub(super) fn cached<B: Backend>(
    tape: &Tape<'_, B>,
    q: &Var<B>,
    context: &Context<'_, B>,
) -> Result<Option<Cache<Var<B>>>> {
    let (Some(k), Some(v), Some(valid)) = (context.known("k"), context.known("v"), context.known("valid")) else {
        return Ok(None);
    };
    let cast = |x| tape.cast(q.value().dtype(), x);
    Ok(Some(Cache { k: cast(k)?, v: cast(v)?, valid: valid.clone() }))
}

impl<B: Backend> Mixer<B> for SlidingWindow {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        self.attend(tape, x, None, context)
    }

    fn cache(&self, device: &B, _: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        self.empty_cache(device, batch)
    }

    fn counts(&self) -> Counts {
        Counts::Device
    }
}
