//! Softmax attention over a sliding window: the baseline that memories are measured against, and their companion.

use super::{check_dtype, check_float, check_like, check_rank, check_shape, check_size};
use crate::{Checked, DType, Device, Error, Result, Sequences, Shape, Tensor};

/// How far and how sharply a token looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// `W`: tokens seen, the current one included; 2 to 2³¹ − 1.
    pub window: usize,
    /// Factor of `q·k`; usually `d^{−1/2}`.
    pub scale: f32,
}

/// Widest window: kernels count its tokens in 32 bits.
const WINDOW: usize = i32::MAX as usize;

/// Sizes of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionDims {
    /// How the rows split into sequences.
    pub sequences: Sequences,
    /// `Hq`, a multiple of `Hkv`.
    pub query_heads: usize,
    /// `Hkv`: query head `h` reads key-value head `h / (Hq / Hkv)`.
    pub heads: usize,
    /// `d`: width of queries and keys.
    pub key: usize,
    /// `dv`: width of values.
    pub value: usize,
    /// `Np`: keys seen by every token; 0 without a prefix.
    pub prefix: usize,
    /// Window and scale.
    pub options: AttentionOptions,
}

impl AttentionDims {
    /// `P = W − 1`: tokens kept for the next call.
    pub fn kept(&self) -> usize {
        self.options.window.saturating_sub(1)
    }
}

/// Keys and values of the last `P = W − 1` tokens of each sequence, oldest first.
#[derive(Clone, Debug)]
pub struct Cache<T> {
    /// `[N,P,Hkv,d]`.
    pub k: T,
    /// `[N,P,Hkv,dv]`.
    pub v: T,
    /// `[N,P]` in 32 bits: 1 where a token stands, 0 where none came yet.
    pub valid: T,
}

impl<T> Cache<T> {
    /// Names in messages and references to all arrays.
    fn list(&self) -> [(&'static str, &T); 3] {
        [("cache k", &self.k), ("cache v", &self.v), ("cache valid", &self.valid)]
    }
}

/// Keys and values that every token of every sequence sees, whatever the window (persistent tokens).
#[derive(Clone, Debug)]
pub struct Prefix<T> {
    /// `[Np,Hkv,d]`.
    pub k: T,
    /// `[Np,Hkv,dv]`.
    pub v: T,
}

/// Arguments, and, filled with gradients, what the backward returns (there `valid` is zero).
#[derive(Clone, Debug)]
pub struct AttentionInputs<T> {
    /// `[B,T,Hq,d]`.
    pub q: T,
    /// `[B,T,Hkv,d]`.
    pub k: T,
    /// `[B,T,Hkv,dv]`.
    pub v: T,
    /// What came before; absent at the start of a text.
    pub cache: Option<Cache<T>>,
    /// Persistent tokens.
    pub prefix: Option<Prefix<T>>,
}

impl<T> AttentionInputs<T> {
    /// References to all arrays, in the order `q, k, v`, cache, prefix.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.list().map(|(_, x)| x)
    }

    /// Names in messages and references to all arrays, in the order of [`AttentionInputs::iter`].
    fn list(&self) -> impl Iterator<Item = (&'static str, &T)> {
        let cache = self.cache.iter().flat_map(Cache::list);
        let prefix = self.prefix.iter().flat_map(|Prefix { k, v }| [("prefix k", k), ("prefix v", v)]);
        [("q", &self.q), ("k", &self.k), ("v", &self.v)].into_iter().chain(cache).chain(prefix)
    }

    /// Applies `f` to each, in the order of [`AttentionInputs::iter`].
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> AttentionInputs<U> {
        AttentionInputs {
            q: f(self.q),
            k: f(self.k),
            v: f(self.v),
            cache: self.cache.map(|Cache { k, v, valid }| Cache { k: f(k), v: f(v), valid: f(valid) }),
            prefix: self.prefix.map(|Prefix { k, v }| Prefix { k: f(k), v: f(v) }),
        }
    }
}

/// Results of [`Attention::attention`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionOutputs<T> {
    /// `[B,T,Hq,dv]`.
    pub y: T,
    /// `[B,T,Hq]` in 32 bits: logarithm of the sum of the exponentials of a token's scores.
    pub lse: T,
}

/// What the gradients of [`attention`] are made from.
#[derive(Clone, Debug)]
pub struct AttentionBackward<'a, D: Device> {
    /// Sizes of the forward.
    pub dims: &'a AttentionDims,
    /// Arguments of the forward.
    pub inputs: &'a AttentionInputs<Tensor<D>>,
    /// What the forward gave.
    pub outputs: &'a AttentionOutputs<Tensor<D>>,
    /// Gradient of `y`, and like it.
    pub dy: &'a Tensor<D>,
    /// Gradient of [`attention_cache`]'s keys and values, absent where nothing used them.
    pub dcache: Option<&'a Cache<Tensor<D>>>,
}

/// Rows that stand at the end of each sequence.
#[derive(Clone, Debug)]
pub struct LastRows<'a, D: Device> {
    /// How the rows split into `N` sequences.
    pub sequences: &'a Sequences,
    /// Of the result: `[N, kept, ..]`.
    pub shape: Shape,
    /// `[N, kept, ..]`: what stands in front of each sequence; zeros where absent.
    pub before: Option<&'a Tensor<D>>,
    /// `[rows, ..]`; ones in 32 bits where absent.
    pub x: Option<&'a Tensor<D>>,
}

/// Sliding-window attention. For token `t` over the keys `j` it sees: `s_j = scale q_t·k_j`,
/// `lse = log Σ e^{s_j}`, `p_j = e^{s_j − lse}`, `y_t = Σ p_j v_j`.
pub trait Attention: Device {
    /// `y` and `lse`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn attention(
        &self,
        checked: Checked<Self>,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<AttentionOutputs<Tensor<Self>>>;

    /// With `D_t = dy_t·y_t` and `ds_j = p_j (dy_t·v_j − D_t)`: `dq_t = scale Σ ds_j k_j`,
    /// `dk_j = scale Σ_t ds_j q_t`, `dv_j = Σ_t p_j dy_t`, summed over the query heads of a group.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn attention_backward(
        &self,
        checked: Checked<Self>,
        call: &AttentionBackward<'_, Self>,
    ) -> Result<AttentionInputs<Tensor<Self>>>;

    /// The last `kept` rows of each sequence, oldest first, in an array of their own: of `x`, and in front of it of `before`.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn last_rows(&self, checked: Checked<Self>, last: &LastRows<'_, Self>) -> Result<Tensor<Self>>;
}

/// A forward of [`attention`] that can be turned around: it owns what the gradient needs and is consumed by it.
pub struct AttentionPass<D: Attention> {
    dims: AttentionDims,
    inputs: AttentionInputs<Tensor<D>>,
    outputs: AttentionOutputs<Tensor<D>>,
}

/// What [`attention`] gives.
#[derive(Debug)]
pub struct Attended<D: Attention> {
    /// `[B,T,Hq,dv]`.
    pub y: Tensor<D>,
    /// Turns the call around.
    pub pass: AttentionPass<D>,
}

impl<D: Attention> AttentionPass<D> {
    /// Gradients of all inputs, given that of the result and, where something used it, that of the [`attention_cache`].
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] if a gradient is unlike what it is the gradient of; the device's own failures.
    pub fn backward(self, dy: &Tensor<D>, dcache: Option<&Cache<Tensor<D>>>) -> Result<AttentionInputs<Tensor<D>>> {
        let Self { dims, inputs, outputs } = &self;
        let (what, device) = ("attention", inputs.q.device());
        dy.check_device(device, what, "dy")?;
        dcache.iter().flat_map(|dcache| dcache.list()).try_for_each(|(slot, x)| x.check_device(device, what, slot))?;
        check_like(what, "dy", dy, &outputs.y)?;
        if let Some(dcache) = dcache {
            check_cache(dims, dcache, inputs.q.dtype())?;
        }
        device.attention_backward(Checked::new(), &AttentionBackward { dims, inputs, outputs, dy, dcache })
    }

    /// `lse [B,T,Hq]`: logarithm of the sum of the exponentials of a token's scores, in 32 bits.
    pub fn lse(&self) -> &Tensor<D> {
        &self.outputs.lse
    }

    /// Sizes of the call.
    pub fn dims(&self) -> &AttentionDims {
        &self.dims
    }
}

impl<D: Attention> std::fmt::Debug for AttentionPass<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttentionPass").field("dims", &self.dims).finish_non_exhaustive()
    }
}

/// Sliding-window attention: `y [B,T,Hq,dv]`, and the pass that gives gradients.
///
/// # Errors
/// Shapes that do not fit each other, `W` out of its range, `Hq` no multiple of `Hkv`, mixed or integer types.
pub fn attention<D: Attention>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: AttentionInputs<Tensor<D>>,
) -> Result<Attended<D>> {
    let dims = check(options, sequences, &inputs)?;
    let outputs = inputs.q.device().attention(Checked::new(), &dims, &inputs)?;
    Ok(Attended { y: outputs.y.clone(), pass: AttentionPass { dims, inputs, outputs } })
}

/// The last `W − 1` keys and values of each sequence, for the call that follows this one.
///
/// # Errors
/// As [`attention`].
pub fn attention_cache<D: Attention>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: &AttentionInputs<Tensor<D>>,
) -> Result<Cache<Tensor<D>>> {
    let dims = check(options, sequences, inputs)?;
    let (device, cache) = (inputs.q.device(), inputs.cache.as_ref());
    let (count, kept) = (sequences.count(), dims.kept());
    let last = |shape, before, x| device.last_rows(Checked::new(), &LastRows { sequences, shape, before, x });
    let rows = |width| Shape::from([count, kept, dims.heads, width]);
    check_size("attention", &rows(dims.key.max(dims.value)), DType::F32)?;
    Ok(Cache {
        k: last(rows(dims.key), cache.map(|cache| &cache.k), Some(&inputs.k))?,
        v: last(rows(dims.value), cache.map(|cache| &cache.v), Some(&inputs.v))?,
        valid: last([count, kept].into(), cache.map(|cache| &cache.valid), None)?,
    })
}

fn check<D: Device>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: &AttentionInputs<Tensor<D>>,
) -> Result<AttentionDims> {
    let what = "attention";
    let AttentionInputs { q, k, v, cache, prefix } = inputs;
    inputs.list().try_for_each(|(slot, x)| x.check_device(q.device(), what, slot))?;
    check_float(what, "q", q)?;
    let [batch, tokens, query_heads, key] = axes4(what, "q", q)?;
    let [_, _, heads, _] = axes4(what, "k", k)?;
    let [_, _, _, value] = axes4(what, "v", v)?;
    sequences.check(what, "q", q.shape())?;
    check_shape(what, "k", k, &[batch, tokens, heads, key].into())?;
    check_shape(what, "v", v, &[batch, tokens, heads, value].into())?;
    check_dtype(what, "k", k, q.dtype())?;
    check_dtype(what, "v", v, q.dtype())?;
    check_float(what, "v", v)?;
    let fail = |option, found: String, expected| Err(Error::Config { what, option, found, expected });
    if heads == 0 || query_heads % heads != 0 {
        return fail("query heads", query_heads.to_string(), "a multiple of the key-value heads");
    }
    if !(2..=WINDOW).contains(&options.window) {
        return fail("window", options.window.to_string(), "at least 2 tokens, and at most 2147483647");
    }
    if !options.scale.is_finite() {
        return fail("scale", options.scale.to_string(), "a finite number");
    }
    let prefix_tokens = match prefix {
        None => 0,
        Some(prefix) => check_prefix(heads, key, value, prefix, q.dtype())?,
    };
    let sequences = sequences.clone();
    let dims = AttentionDims { sequences, query_heads, heads, key, value, prefix: prefix_tokens, options };
    if let Some(cache) = cache {
        check_cache(&dims, cache, q.dtype())?;
    }
    Ok(dims)
}

fn check_prefix<D: Device>(
    heads: usize,
    key: usize,
    value: usize,
    prefix: &Prefix<Tensor<D>>,
    dtype: DType,
) -> Result<usize> {
    let what = "attention";
    check_float(what, "prefix k", &prefix.k)?;
    check_rank(what, "prefix k", &prefix.k, 3, "3 ([Np,Hkv,d])")?;
    let tokens = prefix.k.shape().axes()[0];
    check_shape(what, "prefix k", &prefix.k, &[tokens, heads, key].into())?;
    check_shape(what, "prefix v", &prefix.v, &[tokens, heads, value].into())?;
    check_dtype(what, "prefix k", &prefix.k, dtype)?;
    check_dtype(what, "prefix v", &prefix.v, dtype)?;
    Ok(tokens)
}

fn check_cache<D: Device>(dims: &AttentionDims, cache: &Cache<Tensor<D>>, dtype: DType) -> Result<()> {
    let what = "attention";
    let (count, kept) = (dims.sequences.count(), dims.kept());
    let shape = |width| Shape::from([count, kept, dims.heads, width]);
    check_shape(what, "cache k", &cache.k, &shape(dims.key))?;
    check_shape(what, "cache v", &cache.v, &shape(dims.value))?;
    check_shape(what, "cache valid", &cache.valid, &[count, kept].into())?;
    check_dtype(what, "cache k", &cache.k, dtype)?;
    check_dtype(what, "cache v", &cache.v, dtype)?;
    check_dtype(what, "cache valid", &cache.valid, DType::F32)
}

fn axes4<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>) -> Result<[usize; 4]> {
    check_rank(what, slot, x, 4, "4 ([B,T,H,width])")?;
    let axes = x.shape().axes();
    Ok([axes[0], axes[1], axes[2], axes[3]])
}
