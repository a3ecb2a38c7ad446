//! Softmax attention over a sliding window.
//!
//! Forward and `dq` have 64 queries in a block and pass the keys these see. `dk` and `dv` have 64 keys in a block and
//! pass the queries that see them. The keys of the prefix, which everyone sees, are summed in parts.
//!
//! With `P = exp(scale q kᵀ − lse)`, `y = P v`, `D = dy·y` and `dS = P ∘ (dy vᵀ − D)`: `dq = scale dS k`, `dk = scale
//! dSᵀ q`, `dv = Pᵀ dy`. Scores are made again in the backward, as in FlashAttention-2 (Dao, 2023), so no array is as
//! long as tokens times tokens.
//!
//! Arguments of 16 bits, `d` and `dv` multiples of 8 up to 256, go through the tensor cores ([`tiles`]). On capability 9.0
//! there are faster kernels for the commonest calls ([`groups`]). All others are multiplied in 32 bits:
//! forwards of few queries by [`few`], the rest by the kernels here.

pub(crate) mod few;
pub(crate) mod groups;
pub(crate) mod tiles;

use super::sequences::{last_rows, sum_parts};
use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    error::unsupported,
    launch::{Array, Grid, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{
        Attention, AttentionBackward, AttentionDims, AttentionInputs, AttentionOutputs, Cache, LastRows, Prefix,
    },
};

/// `(scale * q @ k.mT).masked_fill(outside, -inf).softmax(-1) @ v` in 32 bits, head by head.
pub(crate) const SOURCE: KernelSource = kernel_source!("attention", "attention.cu");
/// Its gradients `dq`, `dk` and `dv`.
pub(crate) const BACKWARD: KernelSource = kernel_source!("attention_backward", "attention_backward.cu");

arguments! {
    /// Arrays and sizes of a call; the structures here are those of the same names in the kernels.
    struct AttentionCall {
        /// `[rows, Hq, d]`; `k` and `v` are `[rows, Hkv, d]` and `[rows, Hkv, dv]`.
        q: Array,
        k: Array,
        v: Array,
        /// `[N, P, Hkv, ·]` each, or null.
        cache_k: Array,
        cache_v: Array,
        /// `[Np, Hkv, ·]` each, or null.
        prefix_k: Array,
        prefix_v: Array,
        /// `[N, P]`: which places of the cache count; null without a cache.
        valid: In<f32>,
        /// Four integers a job: sequence, first row, tokens, first query or key. After them stands a zero.
        jobs: In<u32>,
        /// `Hq`, `Hkv`, `d`, `dv`, `Np`, `P`, jobs.
        query_heads: i32,
        heads: i32,
        key: i32,
        value: i32,
        prefix: i32,
        kept: i32,
        count: i32,
        /// What scores are times.
        scale: f32,
    }
}

arguments! {
    /// `y [rows, Hq, dv]`, `lse [rows, Hq]`.
    struct Forward {
        call: AttentionCall,
        y: Array,
        lse: Out<f32>,
        /// Blocks of columns of the result, and parts of the keys, whose results lie `apart` rows apart.
        slabs: i32,
        parts: i32,
        apart: u64,
    }
}

arguments! {
    /// `dy [rows, Hq, dv]`, `dq [rows, Hq, d]`, `lse` and `along` `[rows, Hq]`.
    struct QueryGrads {
        call: AttentionCall,
        dy: Array,
        dq: Array,
        lse: In<f32>,
        along: Out<f32>,
        /// Blocks of columns of the result.
        slabs: i32,
    }
}

arguments! {
    /// `dk` and `dv` as `k` and `v`; of the cache `[N, P, Hkv, ·]`; of the prefix a part a job.
    struct KeyGrads {
        call: AttentionCall,
        dy: Array,
        /// The gradient of the cache after the call, or null.
        last_k: Array,
        last_v: Array,
        /// The gradient of the cache, or null.
        dcache_k: Array,
        dcache_v: Array,
        dk: Array,
        dv: Array,
        lse: In<f32>,
        along: In<f32>,
        slabs: i32,
        /// Queries of a job, for the prefix.
        segment: i32,
    }
}

// A structure of one field lies as the field does.
kernels! { SOURCE {
    "attention_forward" ForwardNarrow { arguments: Forward }
    "attention_forward_wide" ForwardWide { arguments: Forward }
    "attention_join" Join {
        y: Array, lse: Out<f32>, part_y: In<f32>, part_lse: In<f32>, rows: u64, value: i32, parts: i32,
    }
} }
kernels! { BACKWARD {
    "attention_dq" QueriesNarrow { arguments: QueryGrads }
    "attention_dq_wide" QueriesWide { arguments: QueryGrads }
    "attention_dkv" KeysNarrow { arguments: KeyGrads }
    "attention_dkv_wide" KeysWide { arguments: KeyGrads }
    "attention_dprefix" PrefixNarrow { arguments: KeyGrads }
    "attention_dprefix_wide" PrefixWide { arguments: KeyGrads }
} }

/// Starts the kernel for rows of at most 64 elements, or the one for wider rows.
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
///
/// A row of the tile is a query and one of its heads: query heads that share keys are neighbours.
const TILE: usize = 64;

/// Most columns of a result that a block makes.
const SLAB: usize = 128;

/// Threads of a block.
const THREADS: u32 = 256;

/// Fewest queries in a part of the prefix's gradients, and most parts.
const PARTS: [usize; 2] = [1024, 256];

/// Which kernels a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Those in 32 bits.
    Single,
    /// Those of warps on the tensor cores, for rows of at most so many elements.
    Tiles(usize),
    /// Those of groups of warps, likewise.
    Groups(usize),
}

impl Form {
    /// Queries, and keys, of a block.
    fn tile(self) -> usize {
        if matches!(self, Self::Groups(_)) { groups::TILE } else { TILE }
    }
}

/// What is common to the kernels of a call.
struct AttentionLaunch<'a> {
    device: &'a Cuda,
    dims: &'a AttentionDims,
    inputs: &'a AttentionInputs<Tensor<Cuda>>,
    /// Tokens that are seen beside the current one; no more than there are.
    kept: usize,
    form: Form,
}

/// Work of the blocks: four elements each on the device.
struct Jobs {
    /// `[jobs, 4]`, then a counter.
    table: Tensor<Cuda>,
    count: usize,
}

/// The array, or one that the kernel does not look at.
fn optional(x: Option<&Tensor<Cuda>>) -> Array {
    x.map_or(Array::NONE, Array::from)
}

impl<'a> AttentionLaunch<'a> {
    /// `exact`: the window is not shortened to the text, because there is a cache in front or after.
    fn new(
        device: &'a Cuda,
        dims: &'a AttentionDims,
        inputs: &'a AttentionInputs<Tensor<Cuda>>,
        exact: bool,
    ) -> Result<Self> {
        // Query heads share key-value heads in groups of this size.
        let group = dims.query_heads / dims.heads;
        let kept = if exact { dims.kept() } else { dims.kept().min(dims.sequences.longest()) };
        // All places that kernels count in 32 bits.
        let sizes = [kept, dims.prefix, dims.key, dims.value, dims.query_heads];
        let most = sizes.into_iter().fold(dims.sequences.rows().saturating_mul(group), usize::saturating_add);
        // Room for ends that are rounded up to tiles and segments.
        if most > i32::MAX as usize - 2 * PARTS[0] {
            let found =
                format!("{} rows of tokens, {} heads, window {}", dims.sequences.rows(), dims.query_heads, kept);
            return Err(unsupported("attention of this size", found));
        }
        let form = match tiles::width(device, dims, inputs.q.dtype()) {
            Some(width) if !exact && groups::exist(device, width) => Form::Groups(width),
            Some(width) => Form::Tiles(width),
            None => Form::Single,
        };
        Ok(Self { device, dims, inputs, kept, form })
    }

    /// Query heads of a key-value head.
    fn group(&self) -> usize {
        self.dims.query_heads / self.dims.heads
    }

    /// Rows of tokens.
    fn rows(&self) -> usize {
        self.dims.sequences.rows()
    }

    /// Columns of blocks for results of this width.
    fn slabs(width: usize) -> usize {
        width.div_ceil(SLAB)
    }

    /// Sizes of the kernel for few queries, where the forward takes it.
    fn few(&self) -> Option<(usize, usize)> {
        few::sizes(self.dims).filter(|_| self.form == Form::Single)
    }

    /// Tiles of queries, the last of a sequence first, since they see most keys.
    fn query_jobs(&self) -> Result<Jobs> {
        let mut list: Vec<_> = self.dims.sequences.tiles(self.form.tile(), 0, |tokens| tokens * self.group()).collect();
        list.reverse();
        self.jobs(list.into_iter())
    }

    /// A table of jobs `[jobs, 4]`.
    fn jobs(&self, list: impl Iterator<Item = [i64; 4]>) -> Result<Jobs> {
        // All fit 32 bits by now; keys of the cache are negative.
        let elements: Vec<u32> = list.flatten().map(|element| element as u32).chain([0]).collect();
        Ok(Jobs { table: self.device.table(&elements)?, count: elements.len() / 4 })
    }

    /// A block a job, key-value head and slab.
    fn grid(&self, jobs: &Jobs, slabs: usize) -> Result<Grid> {
        // The grid has one axis, of which the driver takes up to 2³¹ − 1 blocks.
        let blocks = jobs.count.saturating_mul(self.dims.heads).saturating_mul(slabs);
        if blocks > i32::MAX as usize {
            return Err(unsupported("attention of this size", format!("{blocks} blocks of work")));
        }
        Ok(Grid::blocks(blocks, THREADS))
    }

    /// Parts of the keys that the forward makes one by one, where a block a tile of queries is too few for the GPU.
    fn parts(&self, jobs: &Jobs, slabs: usize) -> usize {
        // Columns are put together in pairs; kernels of groups take calls without a cache, whose queries are not few.
        if matches!(self.form, Form::Groups(_)) || !self.dims.value.is_multiple_of(2) {
            return 1;
        }
        // Keys that a query sees at most; a part has a few tiles of them.
        let keys = self.dims.prefix + self.kept + 1;
        let least = if self.few().is_some() { few::KEYS } else { 4 * TILE };
        let multiprocessors = self.device.properties().multiprocessors as usize;
        let blocks = 2 * multiprocessors / (jobs.count * self.dims.heads * slabs).max(1);
        blocks.min(keys / least).max(1)
    }

    /// What all kernels of the call take.
    fn call(&self, jobs: &Jobs) -> AttentionCall {
        let (dims, inputs) = (self.dims, self.inputs);
        let (cache, prefix) = (inputs.cache.as_ref(), inputs.prefix.as_ref());
        AttentionCall {
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
            count: jobs.count as i32,
            scale: dims.options.scale,
        }
    }

    /// `y [B, T, Hq, dv]` and `lse [B, T, Hq]`.
    fn forward(&self) -> Result<AttentionOutputs<Tensor<Cuda>>> {
        let (device, dims) = (self.device, self.dims);
        let [batch, tokens] = [0, 1].map(|axis| self.inputs.q.shape().axes()[axis]);
        let y = device.empty([batch, tokens, dims.query_heads, dims.value], self.inputs.q.dtype())?;
        let lse = device.empty([batch, tokens, dims.query_heads], DType::F32)?;
        // Only kernels in 32 bits share out columns.
        let jobs = self.query_jobs()?;
        let slabs = if self.form == Form::Single && self.few().is_none() { Self::slabs(dims.value) } else { 1 };
        let parts = self.parts(&jobs, slabs);
        if parts == 1 {
            self.forward_into(&jobs, (slabs, parts), (&y, &lse))?;
        } else {
            // In 32 bits whatever `y` has: parts are rounded when they are put together.
            let rows = lse.shape().count();
            let part_y = device.empty([parts, rows, dims.value], DType::F32)?;
            let part_lse = device.empty([parts, rows], DType::F32)?;
            self.forward_into(&jobs, (slabs, parts), (&part_y, &part_lse))?;
            join(device, (&y, &lse), (&part_y, &part_lse))?;
        }
        Ok(AttentionOutputs { y, lse })
    }

    /// As [`AttentionLaunch::forward`], each part of the keys for itself.
    fn forward_into(
        &self,
        jobs: &Jobs,
        (slabs, parts): (usize, usize),
        (y, lse): (&Tensor<Cuda>, &Tensor<Cuda>),
    ) -> Result<()> {
        let (device, grid) = (self.device, self.grid(jobs, slabs * parts)?);
        let arguments = Forward {
            call: self.call(jobs),
            y: y.into(),
            lse: pointer(lse),
            slabs: slabs as i32,
            parts: parts as i32,
            // Rows of one part.
            apart: (lse.shape().count() / parts) as u64,
        };
        if let Some(sizes) = self.few() {
            return few::forward(device, sizes, grid, arguments);
        }
        match self.form {
            Form::Groups(width) => groups::forward(device, (grid, width, self.rows()), arguments),
            Form::Tiles(width) => tiles::forward(device, width, grid, arguments),
            Form::Single => launch!(device, self.dims.value, grid, ForwardNarrow | ForwardWide, arguments),
        }
    }

    /// `dq`, and `D [B,T,Hq]`.
    fn query_grads(
        &self,
        outputs: &AttentionOutputs<Tensor<Cuda>>,
        dy: &Tensor<Cuda>,
    ) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
        let AttentionOutputs { y, lse } = outputs;
        let (device, dims, q) = (self.device, self.dims, &self.inputs.q);
        // `D` in 32 bits: it is subtracted from numbers of its own size.
        let (dq, along) = (device.empty(q.shape().clone(), q.dtype())?, device.empty(lse.shape().clone(), DType::F32)?);
        let (jobs, slabs) = (self.query_jobs()?, Self::slabs(dims.key));
        let arguments = QueryGrads {
            call: self.call(&jobs),
            dy: dy.into(),
            dq: (&dq).into(),
            lse: pointer(lse),
            along: pointer(&along),
            slabs: slabs as i32,
        };
        if self.form != Form::Single {
            tiles::along(device, y, dy, &along)?;
        }
        match self.form {
            Form::Groups(width) => groups::query_grads(device, (self.grid(&jobs, 1)?, width, self.rows()), arguments)?,
            Form::Tiles(width) => tiles::query_grads(device, width, self.grid(&jobs, 1)?, arguments)?,
            Form::Single => {
                let grid = self.grid(&jobs, slabs)?;
                launch!(device, dims.key, grid, QueriesNarrow | QueriesWide, arguments)?;
            }
        }
        Ok((dq, along))
    }

    /// Gradients of keys and values: of the tokens, and of the cache.
    fn key_grads(
        &self,
        told: &Told<'_>,
        last: Option<&Cache<Tensor<Cuda>>>,
    ) -> Result<([Tensor<Cuda>; 2], Option<Cache<Tensor<Cuda>>>)> {
        let (device, dims, inputs) = (self.device, self.dims, self.inputs);
        // Gradients have the shape and type of what they belong to.
        let like = |x: &Tensor<Cuda>| device.empty(x.shape().clone(), x.dtype());
        let (dk, dv) = (like(&inputs.k)?, like(&inputs.v)?);
        let dcache = match &inputs.cache {
            None => None,
            Some(Cache { k, v, valid }) => {
                // Which places count is no number to differentiate by.
                Some(Cache { k: like(k)?, v: like(v)?, valid: device.zeroed(valid.shape().clone(), DType::F32)? })
            }
        };
        // Keys of the cache have negative numbers.
        let first = if inputs.cache.is_some() { -(self.kept as i64) } else { 0 };
        // Blocks have as many columns as the wider of keys and values.
        let (jobs, width) =
            (self.jobs(dims.sequences.tiles(self.form.tile(), first, |tokens| tokens))?, dims.key.max(dims.value));
        let slabs = Self::slabs(width);
        let arguments = KeyGrads {
            last_k: optional(last.map(|last| &last.k)),
            last_v: optional(last.map(|last| &last.v)),
            dcache_k: optional(dcache.as_ref().map(|dcache| &dcache.k)),
            dcache_v: optional(dcache.as_ref().map(|dcache| &dcache.v)),
            ..told.arguments(self.call(&jobs), &dk, &dv, slabs)
        };
        let grid = self.grid(&jobs, slabs)?;
        match self.form {
            Form::Groups(wide) => groups::key_grads(device, (grid, wide, self.rows()), arguments)?,
            Form::Tiles(wide) => tiles::key_grads(device, wide, grid, arguments)?,
            Form::Single => launch!(device, width, grid, KeysNarrow | KeysWide, arguments)?,
        }
        Ok(([dk, dv], dcache))
    }

    /// Gradients of the prefix: parts over segments of queries, and their sum.
    fn prefix_grads(&self, told: &Told<'_>, prefix: &Prefix<Tensor<Cuda>>) -> Result<Prefix<Tensor<Cuda>>> {
        let (device, dims, rows) = (self.device, self.dims, self.dims.sequences.rows());
        // Every query of every sequence sees the prefix: all rows count as one sequence.
        let units = rows * self.group();
        // At most 256 parts, however long the text is.
        let segment = PARTS[0].max(units.div_ceil(PARTS[1]));
        let jobs = self.jobs((0..units).step_by(segment).map(|first| [0, 0, rows as i64, first as i64]))?;
        // A part of the sums for each job, put together at the end.
        let part = |width| device.empty([jobs.count, dims.prefix, dims.heads, width], DType::F32);
        let (dk, dv, width) = (part(dims.key)?, part(dims.value)?, dims.key.max(dims.value));
        let slabs = Self::slabs(width);
        let arguments = KeyGrads { segment: segment as i32, ..told.arguments(self.call(&jobs), &dk, &dv, slabs) };
        let grid = self.grid(&jobs, slabs)?;
        match self.form {
            Form::Groups(wide) | Form::Tiles(wide) => tiles::prefix_grads(device, wide, grid, arguments)?,
            Form::Single => launch!(device, width, grid, PrefixNarrow | PrefixWide, arguments)?,
        }
        Ok(Prefix { k: sum_parts(device, &dk, &prefix.k)?, v: sum_parts(device, &dv, &prefix.v)? })
    }
}

/// Puts the parts of a call together: `[parts, rows, value]` and `[parts, rows]` in 32 bits, which are rounded once, here.
fn join(
    device: &Cuda,
    (y, lse): (&Tensor<Cuda>, &Tensor<Cuda>),
    (part_y, part_lse): (&Tensor<Cuda>, &Tensor<Cuda>),
) -> Result<()> {
    let (rows, value) = (lse.shape().count(), y.shape().axes()[3]);
    let join = Join {
        y: y.into(),
        lse: pointer(lse),
        part_y: pointer(part_y),
        part_lse: pointer(part_lse),
        rows: rows as u64,
        value: value as i32,
        parts: part_lse.shape().axes()[0] as i32,
    };
    // A warp a row.
    device.launch(Grid::blocks(rows.div_ceil(8), 256), &join)
}

/// What queries tell keys: `dy`, and from the forward and from `dq` the elements `lse` and `D`.
struct Told<'a> {
    /// `[rows, Hq, dv]`.
    dy: &'a Tensor<Cuda>,
    /// `[rows, Hq]`; `along` the same.
    lse: &'a Tensor<Cuda>,
    along: &'a Tensor<Cuda>,
}

impl Told<'_> {
    /// What kernels of keys take: without a cache, and not of the prefix.
    fn arguments(&self, call: AttentionCall, dk: &Tensor<Cuda>, dv: &Tensor<Cuda>, slabs: usize) -> KeyGrads {
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
            segment: 0,
        }
    }
}

impl Attention for Cuda {
    /// A block has 64 queries.
    fn attention(
        &self,
        _: Checked<Self>,
        dims: &AttentionDims,
        inputs: &AttentionInputs<Tensor<Self>>,
    ) -> Result<AttentionOutputs<Tensor<Self>>> {
        AttentionLaunch::new(self, dims, inputs, inputs.cache.is_some())?.forward()
    }

    /// Gradients of all inputs: queries first, since `D` comes out of their kernel, then keys and the prefix.
    fn attention_backward(
        &self,
        _: Checked<Self>,
        call: &AttentionBackward<'_, Self>,
    ) -> Result<AttentionInputs<Tensor<Self>>> {
        let AttentionBackward { dims, inputs, outputs, dy, dcache } = *call;
        let launch = AttentionLaunch::new(self, dims, inputs, inputs.cache.is_some() || dcache.is_some())?;
        let (q, along) = launch.query_grads(outputs, dy)?;
        // `D` comes out of the first kernel.
        let told = Told { dy, lse: &outputs.lse, along: &along };
        let ([k, v], cache) = launch.key_grads(&told, dcache)?;
        let prefix = inputs.prefix.as_ref().map(|prefix| launch.prefix_grads(&told, prefix)).transpose()?;
        Ok(AttentionInputs { q, k, v, cache, prefix })
    }

    /// Copies alone.
    fn last_rows(&self, _: Checked<Self>, last: &LastRows<'_, Self>) -> Result<Tensor<Self>> {
        last_rows(self, last)
    }
}
