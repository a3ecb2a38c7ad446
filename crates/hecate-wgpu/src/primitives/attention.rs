//! Softmax attention over a sliding window.
//!
//! Forward and `dq` have 32 queries in a workgroup and pass the keys these see. `dk` and `dv` have 32 keys in a workgroup
//! and pass the queries that see them. The keys of the prefix, which everyone sees, are summed in parts. For all of them
//! keys lie in one array: the prefix, the cache and the tokens, one after another; where there are tokens alone, nothing
//! is copied.
//!
//! Few queries with many keys, such as a decoded token after a long cache, share the keys out: workgroups read parts of
//! them, and a second kernel puts the results together. Sums over a row go through subgroups where the adapter has them.

use super::{
    sequences::{add_last, last_rows},
    sums::sum_parts,
};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{
        Attention, AttentionBackward, AttentionDims, AttentionInputs, AttentionOutputs, Cache, LastRows, Prefix,
        concat, narrow,
    },
};

/// What all kernels share.
const TEXT: &str = include_str!("attention.wgsl");
/// What the kernels of the backward share.
const BACK: &str = include_str!("attention_backward.wgsl");
/// Sums and maxima over the invocations of a row, on any adapter and on one with subgroups.
pub(crate) const ROWS: [&str; 2] = [include_str!("attention_rows.wgsl"), include_str!("attention_rows_subgroups.wgsl")];
/// Softmax and its product with values in one pass over the keys.
const FORWARDS: [WgslSource; 2] = {
    const FORWARD: &str = include_str!("attention_forward.wgsl");
    [
        WgslSource { name: "attention_forward", parts: &[PRELUDE, AttentionArgs::WGSL, TEXT, ROWS[0], FORWARD] },
        WgslSource {
            name: "attention_forward_subgroups",
            parts: &[PRELUDE, AttentionArgs::WGSL, TEXT, ROWS[1], FORWARD],
        },
    ]
};
/// `dq`, where sums over a row of keys are needed again.
const QUERIES: [WgslSource; 2] = {
    const QUERIES: &str = include_str!("attention_queries.wgsl");
    [
        WgslSource { name: "attention_queries", parts: &[PRELUDE, AttentionArgs::WGSL, TEXT, ROWS[0], BACK, QUERIES] },
        WgslSource {
            name: "attention_queries_subgroups",
            parts: &[PRELUDE, AttentionArgs::WGSL, TEXT, ROWS[1], BACK, QUERIES],
        },
    ]
};
/// `dk` and `dv`: rows of queries are passed, and no sums over keys are needed.
const KEYS: WgslSource = WgslSource {
    name: "attention_keys",
    parts: &[PRELUDE, AttentionArgs::WGSL, TEXT, ROWS[0], BACK, include_str!("attention_keys.wgsl")],
};
/// Results of parts of the keys put together by their log-sums.
const PARTS_OF_KEYS: WgslSource =
    WgslSource { name: "attention_parts", parts: &[PRELUDE, PartsArgs::WGSL, include_str!("attention_parts.wgsl")] };

/// `y` and `lse`: a workgroup owns 32 queries and 64 columns.
const fn results(rows: Rows) -> Kernel<'static> {
    let constants: &[_] = match rows {
        Rows::Memory => &[("KINDS", 1)],
        Rows::Subgroups(4) => &[("KINDS", 1), ("NEIGHBOURS", 4)],
        Rows::Subgroups(_) => &[("KINDS", 1), ("NEIGHBOURS", 8)],
    };
    Kernel { source: &FORWARDS[rows.which()], entry: "attention_forward", constants }
}

/// `dq`, and `(lse, D)` for the kernels after it.
const fn query_grads(rows: Rows) -> Kernel<'static> {
    let constants: &[_] = match rows {
        Rows::Memory => &[("KINDS", 2)],
        Rows::Subgroups(4) => &[("KINDS", 2), ("NEIGHBOURS", 4)],
        Rows::Subgroups(_) => &[("KINDS", 2), ("NEIGHBOURS", 8)],
    };
    Kernel { source: &QUERIES[rows.which()], entry: "attention_dq", constants }
}

/// `dk` and `dv` of tokens and cache: a workgroup owns 32 keys and 64 columns.
const KEY_GRADS: Kernel<'static> = Kernel { source: &KEYS, entry: "attention_dkv", constants: &[("KINDS", 2)] };
/// Parts of `dk` and `dv` of the prefix, over runs of queries.
const PREFIX_GRADS: Kernel<'static> = Kernel { source: &KEYS, entry: "attention_dprefix", constants: &[("KINDS", 2)] };
/// `y` and `lse` of all keys from those of parts of them; an invocation makes one element.
const JOIN: Kernel<'static> = Kernel { source: &PARTS_OF_KEYS, entry: "attention_parts", constants: &[] };

/// Every kernel of the files.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    results(Rows::Memory),
    results(Rows::Subgroups(4)),
    results(Rows::Subgroups(8)),
    query_grads(Rows::Memory),
    query_grads(Rows::Subgroups(4)),
    query_grads(Rows::Subgroups(8)),
    KEY_GRADS,
    PREFIX_GRADS,
    JOIN,
];

/// Where the 8 invocations of a row add up and find maxima.
#[derive(Clone, Copy)]
enum Rows {
    /// In workgroup memory.
    Memory,
    /// In subgroups of at least so many: 4, where the two halves then meet in memory, or 8.
    Subgroups(usize),
}

impl Rows {
    /// What the adapter has.
    fn new(device: &Wgpu) -> Self {
        match device.adapter().smallest_subgroup {
            _ if !device.has_subgroups() => Self::Memory,
            8.. => Self::Subgroups(8),
            4.. => Self::Subgroups(4),
            _ => Self::Memory,
        }
    }

    /// The place of its text among the two.
    const fn which(self) -> usize {
        matches!(self, Self::Subgroups(_)) as usize
    }
}

/// Queries, and keys, of a workgroup.
const TILE: usize = 32;

/// Columns of a result that a workgroup makes.
const SLAB: usize = 64;

/// Fewest queries in a part of the prefix's gradients, and most parts.
const PARTS: [usize; 2] = [1024, 256];

/// Workgroups that a forward is cut into where it has fewer tiles of queries, by sharing out their keys.
const WORKGROUPS: usize = 128;

/// Fewest keys in a part: combining parts must cost little beside making them.
const PART_KEYS: usize = 8 * TILE;

parameters! {
    /// Sizes and offsets of a call.
    struct AttentionArgs {
        /// `Hq`.
        query_heads: u32,
        /// `Hkv`.
        heads: u32,
        /// `d`.
        key: u32,
        /// `dv`.
        value: u32,
        /// `Np`: keys that every token sees.
        prefix: i32,
        /// Tokens of the cache of a sequence.
        kept: i32,
        /// Row of the first token's key; prefix and cache come before it.
        tokens_at: u32,
        /// Place of the cache's flags, after all keys.
        valid_at: u32,
        /// 1 where there is a cache.
        cached: u32,
        /// Factor of `q·k`.
        scale: f32,
        /// Slabs of 64 columns of a result.
        slabs: u32,
        /// Units of a job of the prefix's gradients.
        part_units: i32,
        /// Workgroups in all.
        groups: u32,
        /// Keys of a part of them, workgroups of a part, and rows of its results.
        part_keys: i32,
        part_groups: u32,
        part_rows: u32,
    }
}

parameters! {
    /// What joins parts of the keys.
    struct PartsArgs {
        /// Rows of results.
        rows: u32,
        /// Elements of a row.
        width: u32,
        /// Parts.
        number: u32,
    }
}

/// What is common to the kernels of a call.
struct AttentionCall<'a> {
    /// Where it runs.
    device: &'a Wgpu,
    /// Sizes and options.
    dims: &'a AttentionDims,
    /// Tokens that are seen beside the current one; no more than there are.
    kept: usize,
    /// Rows of the cache.
    cached: usize,
    /// Queries, and keys and values in the order of the kernels; all in 32 bits.
    q: Tensor<Wgpu>,
    k: Tensor<Wgpu>,
    v: Tensor<Wgpu>,
}

/// What a launch is told beside the call.
#[derive(Clone, Copy)]
struct Share {
    /// Units of a job where it is a run of them.
    part_units: usize,
    /// Parts that the keys of a query are shared out to.
    parts: usize,
}

/// Workgroups that pass all keys of their queries.
const WHOLE: Share = Share { part_units: 0, parts: 1 };

/// Work of the workgroups: four words each on the device.
struct Jobs {
    /// Words `[jobs,4]`: sequence, its first row, its tokens, first unit or key.
    table: Tensor<Wgpu>,
    /// Number of jobs.
    count: usize,
}

/// Arrays one after another, in 32 bits; a single one as it is.
fn joined(device: &Wgpu, parts: &[Option<&Tensor<Wgpu>>]) -> Result<Tensor<Wgpu>> {
    let parts = parts.iter().flatten().filter(|x| x.shape().count() > 0);
    let parts = parts.map(|x| device.widened(x)?.reshape([x.shape().count()]));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    match &parts[..] {
        [one] => Ok(one.clone()),
        several => concat(&several.iter().collect::<Vec<_>>(), 0),
    }
}

/// Elements from `start` on, in the shape of `like`.
fn slice_like(x: &Tensor<Wgpu>, start: usize, like: &Tensor<Wgpu>) -> Result<Tensor<Wgpu>> {
    if x.shape().count() == like.shape().count() {
        return x.reshape(like.shape().clone());
    }
    narrow(&x.reshape([x.shape().count()])?, 0, start, like.shape().count())?.reshape(like.shape().clone())
}

impl<'a> AttentionCall<'a> {
    /// `exact`: the window is not shortened to the text, because there is a cache in front or after.
    fn new(
        device: &'a Wgpu,
        dims: &'a AttentionDims,
        inputs: &AttentionInputs<Tensor<Wgpu>>,
        exact: bool,
    ) -> Result<Self> {
        // A window longer than every text sees no more than the text.
        let kept = if exact { dims.kept() } else { dims.kept().min(dims.sequences.longest()) };
        let cached = if inputs.cache.is_some() { dims.sequences.count() * kept } else { 0 };
        let rows = dims.prefix.saturating_add(cached).saturating_add(dims.sequences.rows());
        // Kernels count places in 32 bits, some of them with a sign.
        let elements = rows.saturating_mul(dims.query_heads.saturating_mul(dims.key.max(dims.value)));
        if elements.saturating_add(kept) > i32::MAX as usize - 2 * PARTS[0] {
            let found = format!("{rows} rows of tokens, {} heads, window {kept}", dims.query_heads);
            return Err(unsupported("attention of this size", found));
        }
        let (cache, prefix) = (inputs.cache.as_ref(), inputs.prefix.as_ref());
        let valid = cache.map(|cache| &cache.valid);
        let k = joined(device, &[prefix.map(|prefix| &prefix.k), cache.map(|cache| &cache.k), Some(&inputs.k), valid])?;
        let v = joined(device, &[prefix.map(|prefix| &prefix.v), cache.map(|cache| &cache.v), Some(&inputs.v)])?;
        Ok(Self { device, dims, kept, cached, q: device.widened(&inputs.q)?, k, v })
    }

    /// Query heads that share a key.
    fn group(&self) -> usize {
        self.dims.query_heads / self.dims.heads
    }

    /// The words of the jobs on the device.
    fn jobs(&self, list: impl Iterator<Item = [i64; 4]>) -> Result<Jobs> {
        // All fit 32 bits by now; keys of the cache are negative.
        let elements: Vec<u32> = list.flatten().map(|element| element as u32).collect();
        Ok(Jobs { table: self.device.table(&elements)?, count: elements.len() / 4 })
    }

    /// Runs a kernel on a workgroup for each job, key-value head and slab of `width` columns; `arrays` follow the inputs.
    fn run(
        &self,
        kernel: &Kernel<'_>,
        (jobs, share): (&Jobs, Share),
        width: usize,
        arrays: &[Binding<'_>],
    ) -> Result<()> {
        let (dims, slabs) = (self.dims, width.div_ceil(SLAB));
        // Rows of keys in front of the tokens'.
        let rows = dims.prefix + self.cached;
        let groups = jobs.count * dims.heads * slabs;
        let part_keys = self.keys().div_ceil(share.parts).next_multiple_of(TILE);
        let args = AttentionArgs {
            query_heads: dims.query_heads as u32,
            heads: dims.heads as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            prefix: dims.prefix as i32,
            kept: self.kept as i32,
            tokens_at: rows as u32,
            valid_at: ((rows + dims.sequences.rows()) * dims.heads * dims.key) as u32,
            cached: u32::from(self.cached > 0),
            scale: dims.options.scale,
            slabs: slabs as u32,
            part_units: share.part_units as i32,
            groups: (groups * share.parts) as u32,
            part_keys: part_keys as i32,
            part_groups: groups as u32,
            part_rows: (dims.sequences.rows() * dims.query_heads) as u32,
        };
        let inputs = [&jobs.table, &self.q, &self.k, &self.v].map(Binding::Read);
        self.device.launch(kernel, (groups * share.parts, 1, 1), &args, &[&inputs, arrays].concat())
    }

    /// Keys that the queries of a tile see at most.
    fn keys(&self) -> usize {
        (self.dims.prefix + self.kept).saturating_add(TILE).min(i32::MAX as usize - TILE)
    }

    /// Parts of the keys that are read side by side, where tiles of queries are few and keys many. By sizes alone.
    fn parts(&self, jobs: &Jobs) -> usize {
        let groups = jobs.count * self.dims.heads * self.dims.value.div_ceil(SLAB);
        (WORKGROUPS / groups.max(1)).min(self.keys() / PART_KEYS).max(1)
    }

    /// `y` and `lse`, in 32 bits.
    fn forward(&self) -> Result<AttentionOutputs<Tensor<Wgpu>>> {
        let [batch, tokens] = [0, 1].map(|axis| self.q.shape().axes()[axis]);
        let heads = self.dims.query_heads;
        let jobs = self.jobs(self.dims.sequences.tiles(TILE, 0, |tokens| tokens * self.group()))?;
        let parts = self.parts(&jobs);
        let y = self.device.empty([parts * batch, tokens, heads, self.dims.value], DType::F32)?;
        let lse = self.device.empty([parts * batch, tokens, heads], DType::F32)?;
        let arrays = [Binding::Write(&y), Binding::Write(&lse)];
        let share = Share { parts, ..WHOLE };
        self.run(&results(Rows::new(self.device)), (&jobs, share), self.dims.value, &arrays)?;
        if parts == 1 { Ok(AttentionOutputs { y, lse }) } else { self.joined_parts(&y, &lse, parts) }
    }

    /// Results of all keys from those of parts of them, `[parts * B, ..]`.
    fn joined_parts(
        &self,
        part_y: &Tensor<Wgpu>,
        part_lse: &Tensor<Wgpu>,
        parts: usize,
    ) -> Result<AttentionOutputs<Tensor<Wgpu>>> {
        let [batch, tokens] = [0, 1].map(|axis| self.q.shape().axes()[axis]);
        let (heads, width) = (self.dims.query_heads, self.dims.value);
        let y = self.device.empty([batch, tokens, heads, width], DType::F32)?;
        let lse = self.device.empty([batch, tokens, heads], DType::F32)?;
        let rows = lse.shape().count();
        let args = PartsArgs { rows: rows as u32, width: width as u32, number: parts as u32 };
        let arrays = [Binding::Read(part_y), Binding::Read(part_lse), Binding::Write(&y), Binding::Write(&lse)];
        self.device.launch(&JOIN, ((rows * width).div_ceil(64), 1, 1), &args, &arrays)?;
        Ok(AttentionOutputs { y, lse })
    }

    /// `dq`, and what queries tell keys beside `dy`: `lse` and `D`, `[B,T,Hq,2]`.
    fn query_grads(&self, lse: &Tensor<Wgpu>, dy: &Tensor<Wgpu>) -> Result<(Tensor<Wgpu>, Tensor<Wgpu>)> {
        let dq = self.device.empty(self.q.shape().clone(), DType::F32)?;
        let query_terms = self.device.empty([lse.shape().count(), 2], DType::F32)?;
        let jobs = self.jobs(self.dims.sequences.tiles(TILE, 0, |tokens| tokens * self.group()))?;
        let arrays = [Binding::Read(dy), Binding::Read(lse), Binding::Write(&dq), Binding::Write(&query_terms)];
        self.run(&query_grads(Rows::new(self.device)), (&jobs, WHOLE), self.dims.key, &arrays)?;
        Ok((dq, query_terms))
    }

    /// Gradients of keys and values: of the cache where there is one, and after it of the tokens.
    fn key_grads(
        &self,
        query_terms: &QueryTerms<'_>,
        dcache: Option<&Cache<Tensor<Wgpu>>>,
    ) -> Result<[Tensor<Wgpu>; 2]> {
        let (device, dims) = (self.device, self.dims);
        let rows = self.cached + dims.sequences.rows();
        let grads = |width| device.empty([rows, dims.heads, width], DType::F32);
        let (dk, dv) = (grads(dims.key)?, grads(dims.value)?);
        // Keys of the cache have negative numbers.
        let first = if self.cached > 0 { -(self.kept as i64) } else { 0 };
        let jobs = self.jobs(dims.sequences.tiles(TILE, first, |tokens| tokens))?;
        self.run(&KEY_GRADS, (&jobs, WHOLE), dims.key.max(dims.value), &query_terms.arrays(&dk, &dv))?;
        if let Some(last) = dcache {
            let cached = self.cached > 0;
            add_last(device, &dims.sequences, &device.widened(&last.k)?, &dk, cached)?;
            add_last(device, &dims.sequences, &device.widened(&last.v)?, &dv, cached)?;
        }
        Ok([dk, dv])
    }

    /// Gradients of the prefix: parts over runs of queries, and their sum.
    fn prefix_grads(&self, query_terms: &QueryTerms<'_>) -> Result<[Tensor<Wgpu>; 2]> {
        let (device, dims, rows) = (self.device, self.dims, self.dims.sequences.rows());
        // All rows count as one sequence, since everyone sees the prefix.
        let units = rows * self.group();
        let part_units = PARTS[0].max(units.div_ceil(PARTS[1]));
        let jobs = self.jobs((0..units).step_by(part_units).map(|first| [0, 0, rows as i64, first as i64]))?;
        let part = |width| device.empty([jobs.count, dims.prefix, dims.heads, width], DType::F32);
        let (dk, dv) = (part(dims.key)?, part(dims.value)?);
        let share = Share { part_units, ..WHOLE };
        self.run(&PREFIX_GRADS, (&jobs, share), dims.key.max(dims.value), &query_terms.arrays(&dk, &dv))?;
        Ok([sum_parts(device, &dk)?, sum_parts(device, &dv)?])
    }
}

/// What queries tell keys.
struct QueryTerms<'a> {
    /// The gradient of the outputs `[B,T,Hq,dv]`.
    dy: &'a Tensor<Wgpu>,
    /// `(lse, D)`.
    sums: &'a Tensor<Wgpu>,
}

impl<'a> QueryTerms<'a> {
    /// Bindings 5 to 8 of the kernels of keys.
    fn arrays(&self, dk: &'a Tensor<Wgpu>, dv: &'a Tensor<Wgpu>) -> [Binding<'a>; 4] {
        [Binding::Read(self.dy), Binding::Read(self.sums), Binding::Write(dk), Binding::Write(dv)]
    }
}

impl Attention for Wgpu {
    /// `q [B,T,Hq,d]` over at most `Np + W` keys a token.
    /// `y [B,T,Hq,dv]` of the type of `q`, `lse [B,T,Hq]` in 32 bits.
    fn attention(
        &self,
        _: Checked<Self>,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<AttentionOutputs<Tensor<Self>>> {
        let AttentionOutputs { y, lse } = AttentionCall::new(self, dims, inputs, inputs.cache.is_some())?.forward()?;
        Ok(AttentionOutputs { y: self.rounded(y, inputs.q.dtype())?, lse })
    }

    /// Weights are made again from `lse`, so that `y` is not read.
    fn attention_backward(
        &self,
        _: Checked<Self>,
        call: &AttentionBackward<'_, Self>,
    ) -> Result<AttentionInputs<Tensor<Self>>> {
        let AttentionBackward { dims, inputs, outputs, dy, dcache } = *call;
        let call = AttentionCall::new(self, dims, inputs, inputs.cache.is_some() || dcache.is_some())?;
        let dtype = inputs.q.dtype();
        let dy = self.widened(dy)?;
        let (dq, sums) = call.query_grads(&outputs.lse, &dy)?;
        let query_terms = QueryTerms { dy: &dy, sums: &sums };
        let [dk, dv] = call.key_grads(&query_terms, dcache)?;
        let prefix = match &inputs.prefix {
            None => None,
            Some(_) => {
                let [k, v] = call.prefix_grads(&query_terms)?;
                Some(Prefix { k: self.rounded(k, dtype)?, v: self.rounded(v, dtype)? })
            }
        };
        // The tokens' part of an array that begins with the cache's.
        let tokens = |grad, like: &Tensor<Self>, width| {
            self.rounded(slice_like(grad, call.cached * dims.heads * width, like)?, dtype)
        };
        let cache = match &inputs.cache {
            None => None,
            Some(Cache { k, v, valid }) => Some(Cache {
                k: self.rounded(slice_like(&dk, 0, k)?, dtype)?,
                v: self.rounded(slice_like(&dv, 0, v)?, dtype)?,
                valid: self.zeroed(valid.shape().clone(), DType::F32)?,
            }),
        };
        let (k, v) = (tokens(&dk, &inputs.k, dims.key)?, tokens(&dv, &inputs.v, dims.value)?);
        Ok(AttentionInputs { q: self.rounded(dq, dtype)?, k, v, cache, prefix })
    }

    /// Copies alone, in 32 bits.
    fn last_rows(&self, _: Checked<Self>, last: &LastRows<'_, Self>) -> Result<Tensor<Self>> {
        let dtype = last.x.map_or(DType::F32, Tensor::dtype);
        let [before, x] = [last.before, last.x].map(|x| x.map(|x| self.widened(x)).transpose());
        let (before, x) = (before?, x?);
        self.rounded(last_rows(self, &LastRows { before: before.as_ref(), x: x.as_ref(), ..last.clone() })?, dtype)
    }
}
