//! Softmax attention over a sliding window.
//!
//! Forward and `dq` have 64 queries in a block and pass the keys these see; `dk` and `dv` have 64 keys in a block and
//! pass the queries that see them; the keys of the prefix, which everyone sees, are summed in parts.

use super::sequences::{last_rows, sum_parts};
use crate::{
    Cuda,
    error::unsupported,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{
    DType, Result, Shape, Tensor,
    primitives::{Attention, AttentionDims, AttentionInputs, Cache, Prefix},
};

pub(crate) const SOURCE: Source = source!("attention", "attention.cu");
pub(crate) const BACKWARD: Source = source!("attention_backward", "attention_backward.cu");

/// Arrays and sizes of a call; the structures here are those of the same names in the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Call {
    q: Array,
    k: Array,
    v: Array,
    cache_k: Array,
    cache_v: Array,
    prefix_k: Array,
    prefix_v: Array,
    valid: Pointer,
    jobs: Pointer,
    query_heads: i32,
    heads: i32,
    key: i32,
    value: i32,
    prefix: i32,
    kept: i32,
    scale: f32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Forward {
    call: Call,
    y: Array,
    lse: Pointer,
    slabs: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct QueryGrads {
    call: Call,
    dy: Array,
    dq: Array,
    lse: Pointer,
    along: Pointer,
    slabs: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct KeyGrads {
    call: Call,
    dy: Array,
    last_k: Array,
    last_v: Array,
    dcache_k: Array,
    dcache_v: Array,
    dk: Array,
    dv: Array,
    lse: Pointer,
    along: Pointer,
    slabs: i32,
    stretch: i32,
}

// A structure of one field lies as the field does.
kernels! { SOURCE {
    "attention_forward" ForwardNarrow { arguments: Forward }
    "attention_forward_wide" ForwardWide { arguments: Forward }
} }
kernels! { BACKWARD {
    "attention_dq" QueriesNarrow { arguments: QueryGrads }
    "attention_dq_wide" QueriesWide { arguments: QueryGrads }
    "attention_dkv" KeysNarrow { arguments: KeyGrads }
    "attention_dkv_wide" KeysWide { arguments: KeyGrads }
    "attention_dprefix" PrefixNarrow { arguments: KeyGrads }
    "attention_dprefix_wide" PrefixWide { arguments: KeyGrads }
} }

/// Starts the kernel for rows of at most 64 numbers, or the one for wider rows.
macro_rules! launch {
    ($device:ident, $width:expr, $grid:expr, $narrow:ident | $wide:ident, $arguments:expr) => {{
        let arguments = $arguments;
        match $width <= TILE {
            true => $device.launch($grid, &$narrow { arguments }),
            false => $device.launch($grid, &$wide { arguments }),
        }
    }};
}

/// Queries, and keys, of a block.
const TILE: usize = 64;

/// Most columns of a result that a block makes.
const SLAB: usize = 128;

/// Threads of a block.
const THREADS: u32 = 256;

/// Fewest queries in a part of the prefix's gradients, and most parts.
const PARTS: [usize; 2] = [1024, 256];

/// What is common to the kernels of a call.
struct Problem<'a> {
    device: &'a Cuda,
    dims: &'a AttentionDims,
    inputs: &'a AttentionInputs<Tensor<Cuda>>,
    /// Tokens that are seen beside the current one; no more than there are.
    kept: usize,
}

/// Work of the blocks: four numbers each on the device.
struct Jobs {
    table: Tensor<Cuda>,
    count: usize,
}

fn optional(x: Option<&Tensor<Cuda>>) -> Array {
    x.map_or(Array::NONE, Array::from)
}

impl<'a> Problem<'a> {
    /// `exact`: the window is not shortened to the text, because there is a cache in front or behind.
    fn new(
        device: &'a Cuda,
        dims: &'a AttentionDims,
        inputs: &'a AttentionInputs<Tensor<Cuda>>,
        exact: bool,
    ) -> Result<Self> {
        let group = dims.query_heads / dims.heads;
        let kept = if exact { dims.kept() } else { dims.kept().min(dims.sequences.longest()) };
        let numbers = [kept, dims.prefix, dims.key, dims.value, dims.query_heads];
        let most = numbers.into_iter().fold(dims.sequences.rows().saturating_mul(group), usize::saturating_add);
        if most > i32::MAX as usize - 2 * PARTS[0] {
            let found =
                format!("{} rows of tokens, {} heads, window {}", dims.sequences.rows(), dims.query_heads, kept);
            return Err(unsupported("attention of this size", found));
        }
        Ok(Self { device, dims, inputs, kept })
    }

    fn group(&self) -> usize {
        self.dims.query_heads / self.dims.heads
    }

    /// Columns of blocks for results of this width.
    fn slabs(width: usize) -> usize {
        width.div_ceil(SLAB)
    }

    fn jobs(&self, list: impl Iterator<Item = [i64; 4]>) -> Result<Jobs> {
        // All fit 32 bits by now; keys of the cache are negative.
        let numbers: Vec<u32> = list.flatten().map(|number| number as u32).collect();
        Ok(Jobs { table: self.device.table(&numbers)?, count: numbers.len() / 4 })
    }

    /// Tiles of 64 numbers from `first` to `end(tokens)` in each sequence.
    fn tiles(&self, first: i64, end: impl Fn(usize) -> usize) -> Result<Jobs> {
        let sequences = self.dims.sequences.ranges().enumerate();
        self.jobs(sequences.flat_map(|(n, rows)| {
            let tiles = (first..end(rows.len()) as i64).step_by(TILE);
            tiles.map(move |first| [n as i64, rows.start as i64, rows.len() as i64, first])
        }))
    }

    /// A block a job, key-value head and slab.
    fn grid(&self, jobs: &Jobs, slabs: usize) -> Result<Grid> {
        let blocks = jobs.count.saturating_mul(self.dims.heads).saturating_mul(slabs);
        if blocks > i32::MAX as usize {
            return Err(unsupported("attention of this size", format!("{blocks} blocks of work")));
        }
        Ok(Grid::blocks(blocks, THREADS))
    }

    fn call(&self, jobs: &Jobs) -> Call {
        let (dims, inputs) = (self.dims, self.inputs);
        let (cache, prefix) = (inputs.cache.as_ref(), inputs.prefix.as_ref());
        Call {
            q: (&inputs.q).into(),
            k: (&inputs.k).into(),
            v: (&inputs.v).into(),
            cache_k: optional(cache.map(|cache| &cache.k)),
            cache_v: optional(cache.map(|cache| &cache.v)),
            prefix_k: optional(prefix.map(|prefix| &prefix.k)),
            prefix_v: optional(prefix.map(|prefix| &prefix.v)),
            valid: cache.map_or(0, |cache| pointer(&cache.valid)),
            jobs: pointer(&jobs.table),
            query_heads: dims.query_heads as i32,
            heads: dims.heads as i32,
            key: dims.key as i32,
            value: dims.value as i32,
            prefix: dims.prefix as i32,
            kept: self.kept as i32,
            scale: dims.options.scale,
        }
    }

    fn forward(&self) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
        let (device, dims) = (self.device, self.dims);
        let [batch, tokens] = [0, 1].map(|axis| self.inputs.q.shape().axes()[axis]);
        let y = device.empty([batch, tokens, dims.query_heads, dims.value], self.inputs.q.dtype())?;
        let lse = device.empty([batch, tokens, dims.query_heads], DType::F32)?;
        let (jobs, slabs) = (self.tiles(0, |tokens| tokens * self.group())?, Self::slabs(dims.value));
        let arguments = Forward { call: self.call(&jobs), y: (&y).into(), lse: pointer(&lse), slabs: slabs as i32 };
        launch!(device, dims.value, self.grid(&jobs, slabs)?, ForwardNarrow | ForwardWide, arguments)?;
        Ok((y, lse))
    }

    /// `dq`, and `D [B,T,Hq]`.
    fn query_grads(&self, lse: &Tensor<Cuda>, dy: &Tensor<Cuda>) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
        let (device, dims, q) = (self.device, self.dims, &self.inputs.q);
        let (dq, along) = (device.empty(q.shape().clone(), q.dtype())?, device.empty(lse.shape().clone(), DType::F32)?);
        let (jobs, slabs) = (self.tiles(0, |tokens| tokens * self.group())?, Self::slabs(dims.key));
        let arguments = QueryGrads {
            call: self.call(&jobs),
            dy: dy.into(),
            dq: (&dq).into(),
            lse: pointer(lse),
            along: pointer(&along),
            slabs: slabs as i32,
        };
        launch!(device, dims.key, self.grid(&jobs, slabs)?, QueriesNarrow | QueriesWide, arguments)?;
        Ok((dq, along))
    }

    /// Gradients of keys and values: of the tokens, and of the cache.
    fn key_grads(
        &self,
        told: &Told<'_>,
        last: Option<&Cache<Tensor<Cuda>>>,
    ) -> Result<([Tensor<Cuda>; 2], Option<Cache<Tensor<Cuda>>>)> {
        let (device, dims, inputs) = (self.device, self.dims, self.inputs);
        let like = |x: &Tensor<Cuda>| device.empty(x.shape().clone(), x.dtype());
        let (dk, dv) = (like(&inputs.k)?, like(&inputs.v)?);
        let dcache = match &inputs.cache {
            None => None,
            Some(Cache { k, v, valid }) => {
                Some(Cache { k: like(k)?, v: like(v)?, valid: device.zeroed(valid.shape().clone(), DType::F32)? })
            }
        };
        let first = if inputs.cache.is_some() { -(self.kept as i64) } else { 0 };
        let (jobs, width) = (self.tiles(first, |tokens| tokens)?, dims.key.max(dims.value));
        let slabs = Self::slabs(width);
        let arguments = KeyGrads {
            last_k: optional(last.map(|last| &last.k)),
            last_v: optional(last.map(|last| &last.v)),
            dcache_k: optional(dcache.as_ref().map(|dcache| &dcache.k)),
            dcache_v: optional(dcache.as_ref().map(|dcache| &dcache.v)),
            ..told.arguments(self.call(&jobs), [&dk, &dv], slabs)
        };
        launch!(device, width, self.grid(&jobs, slabs)?, KeysNarrow | KeysWide, arguments)?;
        Ok(([dk, dv], dcache))
    }

    /// Gradients of the prefix: parts over stretches of queries, and their sum.
    fn prefix_grads(&self, told: &Told<'_>, prefix: &Prefix<Tensor<Cuda>>) -> Result<Prefix<Tensor<Cuda>>> {
        let (device, dims, rows) = (self.device, self.dims, self.dims.sequences.rows());
        let units = rows * self.group();
        let stretch = PARTS[0].max(units.div_ceil(PARTS[1]));
        let jobs = self.jobs((0..units).step_by(stretch).map(|first| [0, 0, rows as i64, first as i64]))?;
        let part = |width| device.empty([jobs.count, dims.prefix, dims.heads, width], DType::F32);
        let (dk, dv, width) = (part(dims.key)?, part(dims.value)?, dims.key.max(dims.value));
        let slabs = Self::slabs(width);
        let arguments = KeyGrads { stretch: stretch as i32, ..told.arguments(self.call(&jobs), [&dk, &dv], slabs) };
        launch!(device, width, self.grid(&jobs, slabs)?, PrefixNarrow | PrefixWide, arguments)?;
        Ok(Prefix { k: sum_parts(device, &dk, &prefix.k)?, v: sum_parts(device, &dv, &prefix.v)? })
    }
}

/// What queries tell keys: `dy`, and from the forward and from `dq` the numbers `lse` and `D`.
struct Told<'a> {
    dy: &'a Tensor<Cuda>,
    lse: &'a Tensor<Cuda>,
    along: &'a Tensor<Cuda>,
}

impl Told<'_> {
    fn arguments(&self, call: Call, [dk, dv]: [&Tensor<Cuda>; 2], slabs: usize) -> KeyGrads {
        KeyGrads {
            call,
            dy: self.dy.into(),
            last_k: Array::NONE,
            last_v: Array::NONE,
            dcache_k: Array::NONE,
            dcache_v: Array::NONE,
            dk: dk.into(),
            dv: dv.into(),
            lse: pointer(self.lse),
            along: pointer(self.along),
            slabs: slabs as i32,
            stretch: 0,
        }
    }
}

impl Attention for Cuda {
    fn attention(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        Problem::new(self, dims, inputs, inputs.cache.is_some())?.forward()
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
        let (q, along) = problem.query_grads(lse, dy)?;
        let told = Told { dy, lse, along: &along };
        let ([k, v], cache) = problem.key_grads(&told, dcache)?;
        let prefix = inputs.prefix.as_ref().map(|prefix| problem.prefix_grads(&told, prefix)).transpose()?;
        Ok(AttentionInputs { q, k, v, cache, prefix })
    }

    fn attention_cache(
        &self,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<Cache<Tensor<Self>>> {
        let (sequences, cache) = (&dims.sequences, inputs.cache.as_ref());
        let (count, kept) = (sequences.count(), dims.kept());
        let last = |before: Option<&Tensor<Self>>, x: &Tensor<Self>, width| {
            let shape = Shape::from([count, kept, dims.heads, width]);
            last_rows(self, sequences, (shape, x.dtype()), before, Some(x))
        };
        let k = last(cache.map(|cache| &cache.k), &inputs.k, dims.key)?;
        let v = last(cache.map(|cache| &cache.v), &inputs.v, dims.value)?;
        let valid = cache.map(|cache| &cache.valid);
        let valid = last_rows(self, sequences, ([count, kept].into(), DType::F32), valid, None)?;
        Ok(Cache { k, v, valid })
    }
}
