//! Softmax attention over a sliding window.
//!
//! Forward and `dq` have 32 queries in a workgroup and pass the keys these see; `dk` and `dv` have 32 keys in a workgroup
//! and pass the queries that see them; the keys of the prefix, which everyone sees, are summed in parts. For all of them
//! keys lie in one array: the prefix, the cache and the tokens, one behind another; where there are tokens alone, nothing
//! is copied.

use super::{
    sequences::{add_last, last_rows},
    sums::sum_parts,
};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, Source},
};
use hecate_core::{
    DType, Result, Shape, Tensor,
    primitives::{Attention, AttentionDims, AttentionInputs, Cache, Layout, Prefix, Span},
};

const TEXT: &str = include_str!("attention.wgsl");
const BACK: &str = include_str!("attention_backward.wgsl");
const FORWARD: Source =
    Source { name: "attention_forward", parts: &[PRELUDE, TEXT, include_str!("attention_forward.wgsl")] };
const QUERIES: Source =
    Source { name: "attention_queries", parts: &[PRELUDE, TEXT, BACK, include_str!("attention_queries.wgsl")] };
const KEYS: Source =
    Source { name: "attention_keys", parts: &[PRELUDE, TEXT, BACK, include_str!("attention_keys.wgsl")] };

const RESULTS: Kernel<'static> = Kernel { source: &FORWARD, entry: "attention_forward", constants: &[("KINDS", 1)] };
const QUERY_GRADS: Kernel<'static> = Kernel { source: &QUERIES, entry: "attention_dq", constants: &[("KINDS", 2)] };
const KEY_GRADS: Kernel<'static> = Kernel { source: &KEYS, entry: "attention_dkv", constants: &[("KINDS", 2)] };
const PREFIX_GRADS: Kernel<'static> = Kernel { source: &KEYS, entry: "attention_dprefix", constants: &[("KINDS", 2)] };

pub(crate) const KERNELS: &[Kernel<'static>] = &[RESULTS, QUERY_GRADS, KEY_GRADS, PREFIX_GRADS];

/// Queries, and keys, of a workgroup.
const TILE: usize = 32;

/// Columns of a result that a workgroup makes.
const SLAB: usize = 64;

/// Fewest queries in a part of the prefix's gradients, and most parts.
const PARTS: [usize; 2] = [1024, 256];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    query_heads: u32,
    heads: u32,
    key: u32,
    value: u32,
    prefix: u32,
    kept: u32,
    tokens_at: u32,
    valid_at: u32,
    cached: u32,
    scale: f32,
    slabs: u32,
    stretch: u32,
    groups: u32,
    unused: [u32; 3],
}

/// What is common to the kernels of a call.
struct Problem<'a> {
    device: &'a Wgpu,
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

/// Work of the workgroups: four numbers each on the device.
struct Jobs {
    table: Tensor<Wgpu>,
    count: usize,
}

/// Arrays one behind another, in 32 bits; a single one as it is.
fn joined(device: &Wgpu, parts: &[Option<&Tensor<Wgpu>>]) -> Result<Tensor<Wgpu>> {
    let parts = parts.iter().flatten().filter(|x| x.shape().count() > 0).map(|x| device.widened(x));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    match &parts[..] {
        [one] => Ok(one.clone()),
        several => device.concat(1, 1, &several.iter().collect::<Vec<_>>()),
    }
}

/// Numbers from `start` on, in the shape of `like`.
fn stretch(device: &Wgpu, x: &Tensor<Wgpu>, start: usize, like: &Tensor<Wgpu>) -> Result<Tensor<Wgpu>> {
    if x.shape().count() == like.shape().count() {
        return x.reshape(like.shape().clone());
    }
    let span = Span { outer: 1, length: x.shape().count(), inner: 1, start, count: like.shape().count() };
    device.narrow(span, x)?.reshape(like.shape().clone())
}

impl<'a> Problem<'a> {
    /// `exact`: the window is not shortened to the text, because there is a cache in front or behind.
    fn new(
        device: &'a Wgpu,
        dims: &'a AttentionDims,
        inputs: &AttentionInputs<Tensor<Wgpu>>,
        exact: bool,
    ) -> Result<Self> {
        let kept = if exact { dims.kept() } else { dims.kept().min(dims.sequences.longest()) };
        let cached = if inputs.cache.is_some() { dims.sequences.count() * kept } else { 0 };
        let rows = dims.prefix.saturating_add(cached).saturating_add(dims.sequences.rows());
        let numbers = rows.saturating_mul(dims.query_heads.saturating_mul(dims.key.max(dims.value)));
        if numbers.saturating_add(kept) > i32::MAX as usize - 2 * PARTS[0] {
            let found = format!("{rows} rows of tokens, {} heads, window {kept}", dims.query_heads);
            return Err(unsupported("attention of this size", found));
        }
        let (cache, prefix) = (inputs.cache.as_ref(), inputs.prefix.as_ref());
        let valid = cache.map(|cache| &cache.valid);
        let k = joined(device, &[prefix.map(|prefix| &prefix.k), cache.map(|cache| &cache.k), Some(&inputs.k), valid])?;
        let v = joined(device, &[prefix.map(|prefix| &prefix.v), cache.map(|cache| &cache.v), Some(&inputs.v)])?;
        Ok(Self { device, dims, kept, cached, q: device.widened(&inputs.q)?, k, v })
    }

    fn group(&self) -> usize {
        self.dims.query_heads / self.dims.heads
    }

    fn jobs(&self, list: impl Iterator<Item = [i64; 4]>) -> Result<Jobs> {
        // All fit 32 bits by now; keys of the cache are negative.
        let numbers: Vec<u32> = list.flatten().map(|number| number as u32).collect();
        Ok(Jobs { table: self.device.table(&numbers)?, count: numbers.len() / 4 })
    }

    /// Tiles of 32 numbers from `first` to `end(tokens)` in each sequence.
    fn tiles(&self, first: i64, end: impl Fn(usize) -> usize) -> Result<Jobs> {
        let sequences = self.dims.sequences.ranges().enumerate();
        self.jobs(sequences.flat_map(|(n, rows)| {
            let tiles = (first..end(rows.len()) as i64).step_by(TILE);
            tiles.map(move |first| [n as i64, rows.start as i64, rows.len() as i64, first])
        }))
    }

    /// Runs a kernel on a workgroup for each job, key-value head and slab of `width` columns; `arrays` follow the inputs.
    fn run(
        &self,
        kernel: &Kernel<'_>,
        (jobs, stretch): (&Jobs, usize),
        width: usize,
        arrays: &[Binding<'_>],
    ) -> Result<()> {
        let (dims, slabs) = (self.dims, width.div_ceil(SLAB));
        let rows = dims.prefix + self.cached;
        let groups = jobs.count * dims.heads * slabs;
        let args = Args {
            query_heads: dims.query_heads as u32,
            heads: dims.heads as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            prefix: dims.prefix as u32,
            kept: self.kept as u32,
            tokens_at: rows as u32,
            valid_at: ((rows + dims.sequences.rows()) * dims.heads * dims.key) as u32,
            cached: u32::from(self.cached > 0),
            scale: dims.options.scale,
            slabs: slabs as u32,
            stretch: stretch as u32,
            groups: groups as u32,
            unused: [0; 3],
        };
        let inputs = [&jobs.table, &self.q, &self.k, &self.v].map(Binding::Read);
        self.device.launch(kernel, (groups, 1, 1), &args, &[&inputs, arrays].concat())
    }

    /// `y` and `lse`, in 32 bits.
    fn forward(&self) -> Result<(Tensor<Wgpu>, Tensor<Wgpu>)> {
        let [batch, tokens] = [0, 1].map(|axis| self.q.shape().axes()[axis]);
        let y = self.device.empty([batch, tokens, self.dims.query_heads, self.dims.value], DType::F32)?;
        let lse = self.device.empty([batch, tokens, self.dims.query_heads], DType::F32)?;
        let jobs = self.tiles(0, |tokens| tokens * self.group())?;
        self.run(&RESULTS, (&jobs, 0), self.dims.value, &[Binding::Write(&y), Binding::Write(&lse)])?;
        Ok((y, lse))
    }

    /// `dq`, and what queries tell keys beside `dy`: `lse` and `D`, `[B,T,Hq,2]`.
    fn query_grads(&self, lse: &Tensor<Wgpu>, dy: &Tensor<Wgpu>) -> Result<(Tensor<Wgpu>, Tensor<Wgpu>)> {
        let dq = self.device.empty(self.q.shape().clone(), DType::F32)?;
        let told = self.device.empty([lse.shape().count(), 2], DType::F32)?;
        let jobs = self.tiles(0, |tokens| tokens * self.group())?;
        let arrays = [Binding::Read(dy), Binding::Read(lse), Binding::Write(&dq), Binding::Write(&told)];
        self.run(&QUERY_GRADS, (&jobs, 0), self.dims.key, &arrays)?;
        Ok((dq, told))
    }

    /// Gradients of keys and values: of the cache where there is one, and behind it of the tokens.
    fn key_grads(&self, told: &Told<'_>, dcache: Option<&Cache<Tensor<Wgpu>>>) -> Result<[Tensor<Wgpu>; 2]> {
        let (device, dims) = (self.device, self.dims);
        let rows = self.cached + dims.sequences.rows();
        let grads = |width| device.empty([rows, dims.heads, width], DType::F32);
        let (dk, dv) = (grads(dims.key)?, grads(dims.value)?);
        let first = if self.cached > 0 { -(self.kept as i64) } else { 0 };
        let jobs = self.tiles(first, |tokens| tokens)?;
        self.run(&KEY_GRADS, (&jobs, 0), dims.key.max(dims.value), &told.arrays(&dk, &dv))?;
        if let Some(last) = dcache {
            let cached = self.cached > 0;
            add_last(device, &dims.sequences, &device.widened(&last.k)?, &dk, cached)?;
            add_last(device, &dims.sequences, &device.widened(&last.v)?, &dv, cached)?;
        }
        Ok([dk, dv])
    }

    /// Gradients of the prefix: parts over stretches of queries, and their sum.
    fn prefix_grads(&self, told: &Told<'_>) -> Result<[Tensor<Wgpu>; 2]> {
        let (device, dims, rows) = (self.device, self.dims, self.dims.sequences.rows());
        let units = rows * self.group();
        let stretch = PARTS[0].max(units.div_ceil(PARTS[1]));
        let jobs = self.jobs((0..units).step_by(stretch).map(|first| [0, 0, rows as i64, first as i64]))?;
        let part = |width| device.empty([jobs.count, dims.prefix, dims.heads, width], DType::F32);
        let (dk, dv) = (part(dims.key)?, part(dims.value)?);
        self.run(&PREFIX_GRADS, (&jobs, stretch), dims.key.max(dims.value), &told.arrays(&dk, &dv))?;
        Ok([sum_parts(device, &dk)?, sum_parts(device, &dv)?])
    }
}

/// What queries tell keys.
struct Told<'a> {
    dy: &'a Tensor<Wgpu>,
    /// `(lse, D)`.
    sums: &'a Tensor<Wgpu>,
}

impl<'a> Told<'a> {
    fn arrays(&self, dk: &'a Tensor<Wgpu>, dv: &'a Tensor<Wgpu>) -> [Binding<'a>; 4] {
        [Binding::Read(self.dy), Binding::Read(self.sums), Binding::Write(dk), Binding::Write(dv)]
    }
}

impl Attention for Wgpu {
    fn attention(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (y, lse) = Problem::new(self, dims, inputs, inputs.cache.is_some())?.forward()?;
        Ok((self.rounded(y, inputs.q.dtype())?, lse))
    }

    fn attention_backward(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
        _y: &Tensor<Self>,
        lse: &Tensor<Self>,
        dy: &Tensor<Self>,
        dcache: Option<&Cache<Tensor<Self>>>,
    ) -> Result<AttentionInputs<Tensor<Self>>> {
        let problem = Problem::new(self, dims, inputs, inputs.cache.is_some() || dcache.is_some())?;
        let dtype = inputs.q.dtype();
        let dy = self.widened(dy)?;
        let (dq, sums) = problem.query_grads(lse, &dy)?;
        let told = Told { dy: &dy, sums: &sums };
        let [dk, dv] = problem.key_grads(&told, dcache)?;
        let prefix = match &inputs.prefix {
            None => None,
            Some(_) => {
                let [k, v] = problem.prefix_grads(&told)?;
                Some(Prefix { k: self.rounded(k, dtype)?, v: self.rounded(v, dtype)? })
            }
        };
        let tokens = |grad, like: &Tensor<Self>, width| {
            self.rounded(stretch(self, grad, problem.cached * dims.heads * width, like)?, dtype)
        };
        let cache = match &inputs.cache {
            None => None,
            Some(Cache { k, v, valid }) => Some(Cache {
                k: self.rounded(stretch(self, &dk, 0, k)?, dtype)?,
                v: self.rounded(stretch(self, &dv, 0, v)?, dtype)?,
                valid: self.zeroed(valid.shape().clone(), DType::F32)?,
            }),
        };
        let (k, v) = (tokens(&dk, &inputs.k, dims.key)?, tokens(&dv, &inputs.v, dims.value)?);
        Ok(AttentionInputs { q: self.rounded(dq, dtype)?, k, v, cache, prefix })
    }

    fn attention_cache(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<Cache<Tensor<Self>>> {
        let (sequences, cache, dtype) = (&dims.sequences, inputs.cache.as_ref(), inputs.q.dtype());
        let (count, kept) = (sequences.count(), dims.kept());
        let last = |before: Option<&Tensor<Self>>, x: &Tensor<Self>, width| {
            let shape = Shape::from([count, kept, dims.heads, width]);
            let before = before.map(|before| self.widened(before)).transpose()?;
            let rows = last_rows(self, sequences, shape, before.as_ref(), Some(&self.widened(x)?))?;
            self.rounded(rows, dtype)
        };
        let k = last(cache.map(|cache| &cache.k), &inputs.k, dims.key)?;
        let v = last(cache.map(|cache| &cache.v), &inputs.v, dims.value)?;
        let valid = last_rows(self, sequences, [count, kept].into(), cache.map(|cache| &cache.valid), None)?;
        Ok(Cache { k, v, valid })
    }
}
