//! Sliding-window attention as a layer.

use super::{Behind, Context, Linear, Mixer, Projection};
use crate::{AttentionConfig, Builder, Init, LayerCache, Parameters, Result, Tape, Var};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, AttentionInputs, AttentionOptions, Cache},
};

/// Softmax attention over the last tokens: rotary positions, and query heads that share key-value heads.
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    qkv: [Projection; 3],
    back: Linear,
    kv_heads: usize,
    width: usize,
    base: f32,
    options: AttentionOptions,
}

impl SlidingWindow {
    /// Attention beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new<B: Backend>(build: &mut Builder<'_, B>, config: &AttentionConfig, hidden: usize) -> Result<Self> {
        let (heads, (kv_heads, width)) = (config.heads, config.sizes(hidden));
        let behind = Behind { taps: config.conv, activate: false };
        let mut project = |names, heads| Projection::new(build, names, hidden, (heads, width), behind);
        let qkv = [
            project(("q_proj", "q_conv1d"), heads)?,
            project(("k_proj", "k_conv1d"), kv_heads)?,
            project(("v_proj", "v_conv1d"), kv_heads)?,
        ];
        let options = AttentionOptions { window: config.window, scale: (width as f32).sqrt().recip() };
        let back = Linear::new(build, "o_proj", heads * width, hidden, Init::Residual)?;
        Ok(Self { qkv, back, kv_heads, width, base: config.rope_base, options })
    }
}

impl<B: Backend> Mixer<B> for SlidingWindow {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let [q, k, v] = &self.qkv;
        let q = q.forward(tape, x, context)?;
        let k = k.forward(tape, x, context)?;
        let v = v.forward(tape, x, context)?;
        let q = tape.rotary(&q, &context.sequences, context.position, self.base)?;
        let k = tape.rotary(&k, &context.sequences, context.position, self.base)?;
        let cache = context.cache.as_ref().and_then(|cache| {
            Some(Cache { k: cache.get("k")?.clone(), v: cache.get("v")?.clone(), valid: cache.get("valid")?.clone() })
        });
        if cache.is_some() {
            let [q, k, v] = [&q, &k, &v].map(|x| x.value().clone());
            let inputs = AttentionInputs { q, k, v, cache: cache.clone(), prefix: None };
            let next = primitives::attention_cache(self.options, &context.sequences, &inputs)?;
            [("k", next.k), ("v", next.v), ("valid", next.valid)].iter().for_each(|(name, x)| context.keep(name, x));
        }
        let y = tape.attention(self.options, &context.sequences, [&q, &k, &v], cache)?;
        let (batch, tokens, heads) = (y.axes()[0], y.axes()[1], y.axes()[2]);
        self.back.forward(tape, &tape.reshape(&y, [batch, tokens, heads * self.width])?)
    }

    fn cache(&self, device: &B, _: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let convs = self.qkv.iter().filter_map(Projection::conv).map(|conv| conv.cache(device, batch));
        let mut arrays = convs.collect::<Result<Vec<_>>>()?;
        let kept = self.options.window - 1;
        let zeros = || Tensor::zeros(device, [batch, kept, self.kv_heads, self.width], DType::F32);
        arrays.push(("k", zeros()?));
        arrays.push(("v", zeros()?));
        arrays.push(("valid", Tensor::zeros(device, [batch, kept], DType::F32)?));
        Ok(LayerCache::new(arrays))
    }
}
