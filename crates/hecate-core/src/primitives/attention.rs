//! Softmax attention over a sliding window: the baseline that memories are measured against, and their companion.

use super::{check_dtype, check_float, check_like, check_rank, check_shape};
use crate::{DType, Device, Error, Result, Sequences, Shape, Tensor};

/// How far and how sharply a token looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// `W`: tokens seen, the current one included; at least 2.
    pub window: usize,
    /// Factor of `q·k`; usually `d^{−1/2}`.
    pub scale: f32,
}

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
        self.options.window - 1
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
        let cache = self.cache.iter().flat_map(|Cache { k, v, valid }| [k, v, valid]);
        let prefix = self.prefix.iter().flat_map(|Prefix { k, v }| [k, v]);
        [&self.q, &self.k, &self.v].into_iter().chain(cache).chain(prefix)
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

/// Sliding-window attention. For token `t` over the keys `j` it sees: `s_j = scale q_t·k_j`,
/// `lse = log Σ e^{s_j}`, `p_j = e^{s_j − lse}`, `y_t = Σ p_j v_j`.
pub trait Attention: Device {
    /// Returns `(y [B,T,Hq,dv], lse [B,T,Hq])`, `lse` in 32 bits.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn attention(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)>;

    /// With `D_t = dy_t·y_t` and `ds_j = p_j (dy_t·v_j − D_t)`: `dq_t = scale Σ ds_j k_j`,
    /// `dk_j = scale Σ_t ds_j q_t`, `dv_j = Σ_t p_j dy_t`, summed over the query heads of a group. `dcache` is the
    /// gradient of [`Attention::attention_cache`]'s keys and values, absent where nothing used them.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn attention_backward(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
        y: &Tensor<Self>,
        lse: &Tensor<Self>,
        dy: &Tensor<Self>,
        dcache: Option<&Cache<Tensor<Self>>>,
    ) -> Result<AttentionInputs<Tensor<Self>>>;

    /// The cache for the call that goes on behind this one.
    ///
    /// # Errors
    /// Only what the caller could not foresee.
    fn attention_cache(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<Cache<Tensor<Self>>>;
}

/// Sliding-window attention: `(y [B,T,Hq,dv], lse [B,T,Hq])`; both are what the backward needs.
///
/// # Errors
/// Shapes that do not fit each other, `W < 2`, `Hq` no multiple of `Hkv`, mixed or integer types.
pub fn attention<D: Attention>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: &AttentionInputs<Tensor<D>>,
) -> Result<(Tensor<D>, Tensor<D>)> {
    let dims = check(options, sequences, inputs)?;
    inputs.q.device().attention(&dims, inputs)
}

/// Gradients of [`attention`] and [`attention_cache`].
///
/// # Errors
/// As [`attention`], and arguments unlike the forward's results.
pub fn attention_backward<D: Attention>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: &AttentionInputs<Tensor<D>>,
    (y, lse): (&Tensor<D>, &Tensor<D>),
    dy: &Tensor<D>,
    dcache: Option<&Cache<Tensor<D>>>,
) -> Result<AttentionInputs<Tensor<D>>> {
    let what = "attention";
    let dims = check(options, sequences, inputs)?;
    let [b, t, heads, _] = axes4(what, "q", &inputs.q)?;
    check_shape(what, "y", y, &[b, t, heads, dims.value].into())?;
    check_shape(what, "lse", lse, &[b, t, heads].into())?;
    check_dtype(what, "lse", lse, DType::F32)?;
    check_like(what, "dy", dy, y)?;
    if let Some(dcache) = dcache {
        check_cache(&dims, dcache, inputs.q.dtype())?;
    }
    inputs.q.device().attention_backward(&dims, inputs, y, lse, dy, dcache)
}

/// The last `W − 1` keys and values of each sequence, for the call that goes on behind this one.
///
/// # Errors
/// As [`attention`].
pub fn attention_cache<D: Attention>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: &AttentionInputs<Tensor<D>>,
) -> Result<Cache<Tensor<D>>> {
    let dims = check(options, sequences, inputs)?;
    inputs.q.device().attention_cache(&dims, inputs)
}

fn check<D: Device>(
    options: AttentionOptions,
    sequences: &Sequences,
    inputs: &AttentionInputs<Tensor<D>>,
) -> Result<AttentionDims> {
    let what = "attention";
    let AttentionInputs { q, k, v, cache, prefix } = inputs;
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
    if options.window < 2 {
        return fail("window", options.window.to_string(), "at least 2 tokens");
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
