//! Attention over the whole text as a layer, as released models have it.

use super::{Context, Counts, Linear, Mixer, RmsNorm, attention::cached};
use crate::{
    Builder, Error, Init, LayerCache, Parameters, Result, Tape, Var,
    bounds::{ELEMENTS, SIZE, at_most, product, within},
    cache::{in_places, room},
};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, AttentionInputs, AttentionOptions, Cache, Map},
};

/// Sizes and options of a [`FullAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullAttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads `H`.
    pub heads: usize,
    /// Key-value heads, a divisor of `H`.
    pub kv_heads: usize,
    /// Width of a head, `D`.
    pub width: usize,
    /// Rotary positions of queries and keys; none where tokens have no position.
    pub rotary: Option<Rotary>,
    /// Norm of queries and keys before they are turned.
    pub norm: HeadNorm,
    /// Whether outputs pass a gate `σ(x W_g)`.
    pub gate: bool,
    /// Factor of scores before the softmax, over 0: `D^(-1/2)` unless given.
    pub scale: Option<f32>,
}

/// Rotary positions of a head's first channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies, over 0.
    pub base: f32,
    /// Channels that are turned, even and at most `D`: the first half of them with the second.
    pub channels: usize,
}

/// A norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadNorm {
    /// None.
    Nothing,
    /// Of each head by itself, times `1 + w`, with `w [D]` for all of them; this is added to mean squares.
    Each(f32),
    /// As [`HeadNorm::Each`], times `w`.
    EachAlone(f32),
    /// Of all heads together, times `w [H · D]`; this is added to mean squares.
    Together(f32),
}

/// Softmax attention over all tokens so far: query heads share key-value heads, and the room for keys and values grows with the
/// text. Parameters `q_proj`, `k_proj`, `v_proj`, `o_proj`; `q_norm` and `k_norm` with a norm, `gate_proj` with a gate.
#[derive(Clone, Copy, Debug)]
pub struct FullAttention {
    config: FullAttentionConfig,
    qkv: [Linear; 3],
    /// Of queries and keys.
    norms: Option<[RmsNorm; 2]>,
    gate: Option<Linear>,
    /// From the heads to the residual stream.
    back: Linear,
    /// Share of what was seen that is dropped.
    dropout: f32,
}

impl FullAttention {
    /// Attention beside a residual stream.
    ///
    /// # Errors
    /// [`Error::Config`] for heads that do not divide, and channels that cannot be turned. The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, config: FullAttentionConfig) -> Result<Self> {
        config.check()?;
        let FullAttentionConfig { hidden, heads, kv_heads, width, .. } = config;
        let mut map = |name, heads: usize| Linear::new(build, name, hidden, heads * width, Init::Normal);
        let qkv = [map("q_proj", heads)?, map("k_proj", kv_heads)?, map("v_proj", kv_heads)?];
        let gate = if config.gate { Some(map("gate_proj", heads)?) } else { None };
        let norms = match config.norm {
            HeadNorm::Nothing => None,
            HeadNorm::Each(epsilon) => Some([
                RmsNorm::one_plus(build, "q_norm", width, epsilon)?,
                RmsNorm::one_plus(build, "k_norm", width, epsilon)?,
            ]),
            HeadNorm::EachAlone(epsilon) => {
                Some([RmsNorm::new(build, "q_norm", width, epsilon)?, RmsNorm::new(build, "k_norm", width, epsilon)?])
            }
            HeadNorm::Together(epsilon) => Some([
                RmsNorm::new(build, "q_norm", heads * width, epsilon)?,
                RmsNorm::new(build, "k_norm", kv_heads * width, epsilon)?,
            ]),
        };
        let back = Linear::new(build, "o_proj", heads * width, hidden, Init::Residual)?;
        Ok(Self { config, qkv, norms, gate, back, dropout: build.dropout().attention })
    }

    /// Queries or keys of `x [B,T,hidden]`, `[B,T,heads,D]`: normed and turned.
    fn rotated<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        (map, norm): (usize, Option<&RmsNorm>),
        x: &Var<B>,
        context: &Context<'_, B>,
    ) -> Result<Var<B>> {
        let y = self.qkv[map].forward(tape, x)?;
        let y = match (self.config.norm, norm) {
            (HeadNorm::Together(_), Some(norm)) => self.heads(tape, &norm.forward(tape, &y)?)?,
            (_, Some(norm)) => norm.forward(tape, &self.heads(tape, &y)?)?,
            (_, None) => self.heads(tape, &y)?,
        };
        let Some(Rotary { base, channels }) = self.config.rotary else { return Ok(y) };
        let turn = |x: &Var<B>| match &context.positions {
            Some(positions) => tape.rotary_from(x, &context.sequences, positions, base),
            None => tape.rotary(x, &context.sequences, context.position, base),
        };
        if channels == self.config.width {
            return turn(&y);
        }
        let parts = tape.split(&y, 3, &[channels, self.config.width - channels])?;
        tape.concat(&[&turn(&parts[0])?, &parts[1]], 3)
    }

    /// `y [B,T,heads · D]` as `[B,T,heads,D]`.
    fn heads<B: Backend>(&self, tape: &Tape<'_, B>, y: &Var<B>) -> Result<Var<B>> {
        let (axes, width) = (y.axes(), self.config.width);
        tape.reshape(y, [axes[0], axes[1], axes[2] / width, width])
    }

    /// Options of a call whose tokens see `kept` tokens before them, and each other.
    fn options(&self, kept: usize) -> AttentionOptions {
        let scale = self.config.scale.unwrap_or_else(|| (self.config.width as f32).sqrt().recip());
        AttentionOptions { window: kept + 1, scale }
    }

    /// What the tokens see, `[B,T,H,D]`, of `inputs` without a cache: where anything is remembered, with it. Then keys and
    /// values of the call are remembered too.
    fn see<B: Backend>(
        &self,
        tape: &Tape<'_, B>,
        mut inputs: AttentionInputs<Var<B>>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let longest = context.sequences.ranges().map(|rows| rows.len()).max().unwrap_or(0);
        if context.cache.is_none() {
            return tape.attention(self.options(longest.max(1)), &context.sequences, inputs);
        }
        let all = context.position.saturating_add(longest);
        // Before the first token there is room for none.
        let has = context.known("k").map_or(0, |k| k.axes()[1]);
        inputs.cache = if has == 0 { None } else { cached(tape, &inputs.q, context)? };
        let kept = if has >= all { has } else { room(all) };
        inputs.cache = inputs.cache.map(|cache| widened(tape, &cache, kept)).transpose()?;
        let options = self.options(kept);
        let values = inputs.clone().map(Var::into_value);
        let next = primitives::attention_cache(options, &context.sequences, &values)?;
        let y = tape.attention(options, &context.sequences, inputs)?;
        [("k", next.k), ("v", next.v), ("valid", next.valid)].iter().for_each(|(name, x)| context.keep(name, x));
        Ok(y)
    }
}

/// The same tokens in so many places.
fn widened<B: Backend>(tape: &Tape<'_, B>, cache: &Cache<Var<B>>, places: usize) -> Result<Cache<Var<B>>> {
    let [k, v, valid] = [&cache.k, &cache.v, &cache.valid].map(|x| in_places(tape, x, places));
    Ok(Cache { k: k?, v: v?, valid: valid? })
}

impl FullAttentionConfig {
    /// Refuses sizes that nothing has, heads that do not divide, and channels that cannot be turned.
    fn check(&self) -> Result<()> {
        let Self { hidden, heads, kv_heads, width, rotary, scale, .. } = *self;
        [("hidden", hidden), ("query heads", heads), ("width of a head", width)]
            .into_iter()
            .try_for_each(|(name, size)| within(name, size, 1..=SIZE))?;
        at_most("elements of a map", product(&[hidden, heads, width]), ELEMENTS)?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::config("key-value heads", kv_heads, format!("a divisor of the {heads} query heads")));
        }
        if let Some(scale) = scale.filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
            return Err(Error::config("factor of attention's scores", scale, "a finite number over 0"));
        }
        let Some(Rotary { base, channels }) = rotary else { return Ok(()) };
        if channels == 0 || channels > width || !channels.is_multiple_of(2) {
            let expected = format!("an even number over 0, and at most the head's width {width}");
            return Err(Error::config("channels that rotary positions turn", channels, expected));
        }
        if base.is_finite() && base > 0.0 {
            return Ok(());
        }
        Err(Error::config("base of rotary positions", base, "a finite number over 0"))
    }
}

impl<B: Backend> Mixer<B> for FullAttention {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let [of_queries, of_keys] = self.norms.as_ref().map_or([None; 2], |[q, k]| [Some(q), Some(k)]);
        let q = self.rotated(tape, (0, of_queries), x, context)?;
        let k = self.rotated(tape, (1, of_keys), x, context)?;
        let v = self.heads(tape, &self.qkv[2].forward(tape, x)?)?;
        let y = self.see(tape, AttentionInputs { q, k, v, cache: None, prefix: None }, context)?;
        let [batch, tokens] = [0, 1].map(|axis| y.axes()[axis]);
        let y = tape.reshape(&y, [batch, tokens, self.config.heads * self.config.width])?;
        let y = match &self.gate {
            Some(gate) => tape.gated(Map::Sigmoid, &y, &gate.forward(tape, x)?)?,
            None => y,
        };
        self.back.forward(tape, &tape.dropout(self.dropout, &y)?)
    }

    /// Keys and values `[B,P,H',D]`, and `valid [B,P]`, 1 where there is a token: of none, `P = 0`.
    fn cache(&self, device: &B, _: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let FullAttentionConfig { kv_heads, width, .. } = self.config;
        let none = || Tensor::zeros(device, [batch, 0, kv_heads, width], DType::F32);
        let valid = Tensor::zeros(device, [batch, 0], DType::F32)?;
        Ok(LayerCache::new(vec![("k", none()?), ("v", none()?), ("valid", valid)]).growing())
    }

    /// Room for keys and values is made by the host.
    fn counts(&self) -> Counts {
        Counts::Host
    }

    /// A text of fewer tokens has empty places before them.
    fn takes_unlike_texts(&self) -> bool {
        true
    }
}
