//! The exact chunk form: 64 tokens at once, as products on the tensor cores.
//!
//! Forward, what depends on keys, queries and gates only is prepared for all chunks at once; then blocks of columns go
//! from chunk to chunk. Backward, only the gradient of the memory goes from chunk to chunk; with it kept beside the
//! states, all chunks are gone through backward at once. It is for rules that are not frozen, and `K` of at most 128.

use super::layout::{CHUNK, ForwardArrays, Layout, LinearCall, ReverseArrays};
use crate::{
    Cuda,
    arguments::{In, InPlace, Out, arguments},
    device::Properties,
    launch::{Array, Grid, kernels, optional, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims, Result, Tensor,
    families::{LinearInputs, LinearOutputs, LinearSpec},
};

/// Equations (15)–(18), all chunks at once.
pub(crate) const PREPARE: KernelSource = kernel_source!("chunk_prepare", "chunk_prepare.cu");
/// Equations (19)–(22), from chunk to chunk.
pub(crate) const FORWARD: KernelSource = kernel_source!("chunk", "chunk.cu");
/// Gradients of the memory, from the last chunk to the first.
pub(crate) const REVERSE: KernelSource = kernel_source!("chunk_reverse", "chunk_reverse.cu");
/// Equations (23)–(32) of all chunks at once, with what the walk back has kept.
pub(crate) const GRADIENTS: KernelSource = kernel_source!("chunk_gradients", "chunk_gradients.cu");

/// Elements that are prepared for a chunk of a head: two squares, tables.
const PREPARED: usize = 2 * CHUNK * CHUNK + 272;
/// Threads of a block.
const THREADS: u32 = 256;

arguments! {
    /// `struct Prepare` of `chunk_prepare.cu`.
    struct Prepare {
        /// Inputs and sizes.
        p: LinearCall,
        /// `[kept,H,PREPARED]` in 32 bits.
        prepared: Out<f32>,
        /// Of the longest sequence.
        chunks: u32,
        unused: u32,
    }
}

arguments! {
    /// `struct ChunkForward` of `chunk.cu`.
    struct Forward {
        /// Inputs and sizes.
        p: LinearCall,
        /// `[kept,H,PREPARED]` in 32 bits.
        prepared: In<f32>,
        arrays: InPlace<ForwardArrays>,
    }
}

arguments! {
    /// `struct ChunkReverse` of `chunk_reverse.cu`.
    struct Reverse {
        /// Inputs and sizes.
        p: LinearCall,
        /// `[kept,H,PREPARED]` in 32 bits.
        prepared: In<f32>,
        arrays: InPlace<ReverseArrays>,
    }
}

arguments! {
    /// `struct ChunkGradients` of `chunk_gradients.cuh`.
    struct Gradients {
        /// Inputs and sizes.
        p: LinearCall,
        /// `[kept,H,PREPARED]` in 32 bits.
        prepared: In<f32>,
        /// States before each chunk, and gradients of those after `[kept,H,1 + S,K,V]`.
        kept: In<f32>,
        kept_grads: In<f32>,
        /// `dout` and `dv` are `[rows,H,V]`, `dq` and `dk` `[rows,H,K]`.
        dout: Array,
        dq: Array,
        dk: Array,
        dv: Array,
        /// Gradients of the gates `[rows,H]` in 32 bits; null where the rule has none.
        log_a: Out<f32>,
        log_eta: Out<f32>,
        theta: Out<f32>,
        beta: Out<f32>,
        /// Of the longest sequence.
        chunks: u32,
        unused: u32,
    }
}

kernels! { PREPARE {
    "chunk_prepare_32" Prepare32 { all: Prepare }
    "chunk_prepare_64" Prepare64 { all: Prepare }
    "chunk_prepare_128" Prepare128 { all: Prepare }
} }
kernels! { FORWARD {
    "chunk_32" Forward32 { all: Forward }
    "chunk_64" Forward64 { all: Forward }
    "chunk_128" Forward128 { all: Forward }
    "chunk_128_wide" Forward128Wide { all: Forward }
    "chunk_32_momentum" Forward32Momentum { all: Forward }
    "chunk_64_momentum" Forward64Momentum { all: Forward }
    "chunk_128_momentum" Forward128Momentum { all: Forward }
    "chunk_128_wide_momentum" Forward128WideMomentum { all: Forward }
} }
kernels! { REVERSE {
    "chunk_reverse_32" Reverse32 { all: Reverse }
    "chunk_reverse_64" Reverse64 { all: Reverse }
    "chunk_reverse_128" Reverse128 { all: Reverse }
    "chunk_reverse_128_wide" Reverse128Wide { all: Reverse }
    "chunk_reverse_32_momentum" Reverse32Momentum { all: Reverse }
    "chunk_reverse_64_momentum" Reverse64Momentum { all: Reverse }
    "chunk_reverse_128_momentum" Reverse128Momentum { all: Reverse }
    "chunk_reverse_128_wide_momentum" Reverse128WideMomentum { all: Reverse }
} }
kernels! { GRADIENTS {
    "chunk_gradients_32" Gradients32 { all: Gradients }
    "chunk_gradients_64" Gradients64 { all: Gradients }
    "chunk_gradients_128" Gradients128 { all: Gradients }
    "chunk_gradients_32_momentum" Gradients32Momentum { all: Gradients }
    "chunk_gradients_64_momentum" Gradients64Momentum { all: Gradients }
    "chunk_gradients_128_momentum" Gradients128Momentum { all: Gradients }
} }

/// Sizes of tiles.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    /// Rows of tiles of keys.
    keys: usize,
    /// Columns of a block that goes from chunk to chunk.
    walk: usize,
    /// Columns that a block of the gradients takes at once.
    gradients: usize,
}

/// Bytes of shared memory that a kernel may ask for: some kilobytes beside them it declares itself.
fn shared_limit(properties: &Properties) -> usize {
    properties.shared_memory.saturating_sub(8 << 10)
}

impl Tiles {
    /// Those of narrow blocks, which need least memory.
    fn narrow(key: usize, momentum: bool) -> Self {
        match key {
            ..=32 => Self { keys: 32, walk: 32, gradients: 32 },
            33..=64 => Self { keys: 64, walk: 32, gradients: 32 },
            _ => Self { keys: 128, walk: 32, gradients: if momentum { 16 } else { 32 } },
        }
    }

    /// Wide blocks share more, but there must be enough of them.
    fn new(properties: &Properties, dims: &Dims, spec: LinearSpec) -> Self {
        let narrow = Self::narrow(dims.key, spec.momentum);
        let wide = Self { walk: 64, ..narrow };
        // Blocks of a walk, if they were wide.
        let blocks = dims.sequences.count() * dims.heads * dims.value.div_ceil(wide.walk);
        let fills = 4 * blocks >= 3 * properties.multiprocessors as usize;
        let fits = wide.shared(spec.matrices())[1] <= shared_limit(properties);
        if wide.keys == 128 && fills && fits { wide } else { narrow }
    }

    /// Bytes of shared memory of the four kernels, as they lay it out.
    /// In the order of preparing, forward, reverse and gradients. Rows have 4 or 8 elements more, against conflicts of banks.
    fn shared(self, matrices: usize) -> [usize; 4] {
        // Elements: keys and queries, and a square [CHUNK,CHUNK + 4].
        let (rows, square) = (2 * CHUNK * (self.keys + 4), CHUNK * (CHUNK + 4));
        let columns = |columns: usize, of_tokens: usize, of_keys: usize| {
            (of_tokens * CHUNK + of_keys * self.keys) * (columns + 8)
        };
        // Two squares, V and Z, and the memory's columns.
        let walk = rows + 2 * square + columns(self.walk, 2, matrices);
        // The tables, five squares, take the place of everything but keys and queries.
        let gradients = rows + (2 * square + columns(self.gradients, 4, 2 * matrices)).max(5 * square);
        [rows + 2 * square, walk, walk, gradients].map(|elements| 4 * elements)
    }
}

/// Whether the chunk form exists for this call on this GPU.
pub(super) fn exists(properties: &Properties, dims: &Dims, spec: LinearSpec) -> bool {
    // What the largest of the four kernels needs.
    let most = Tiles::narrow(dims.key, spec.momentum).shared(spec.matrices()).into_iter().max().unwrap_or(0);
    let sound = spec.frozen.is_none() && (1..=128).contains(&dims.key);
    sound && properties.capability.0 >= 8 && most <= shared_limit(properties)
}

/// Blocks that go from chunk to chunk.
pub(super) fn chain_blocks(properties: &Properties, dims: &Dims, spec: LinearSpec) -> usize {
    dims.sequences.count() * dims.heads * dims.value.div_ceil(Tiles::new(properties, dims, spec).walk)
}

/// A call in the chunk form.
pub(super) struct Chunks<'a> {
    /// Where the call runs.
    device: &'a Cuda,
    /// Sizes, and where kept states lie.
    layout: &'a Layout<'a>,
    /// How wide blocks are.
    tiles: Tiles,
    /// With the blocks of columns of the kernels from chunk to chunk.
    call: LinearCall,
    /// `[kept,H,PREPARED]` in 32 bits.
    prepared: Tensor<Cuda>,
}

impl<'a> Chunks<'a> {
    /// Prepares all chunks: equations (15)–(18). `prepared` has that, or gets it.
    /// `inputs` are `q` and `k` `[rows,H,K]`, `v` `[rows,H,V]` and gates `[rows,H]`, which core has checked.
    pub(super) fn new(
        device: &'a Cuda,
        layout: &'a Layout<'a>,
        inputs: &LinearInputs<Tensor<Cuda>>,
        prepared: &mut Option<Tensor<Cuda>>,
    ) -> Result<Self> {
        let (dims, tiles) = (layout.dims, Tiles::new(device.properties(), layout.dims, layout.spec));
        let call = layout.call_in_blocks(inputs, dims.value.div_ceil(tiles.walk));
        if let Some(prepared) = prepared.clone() {
            return Ok(Self { device, layout, tiles, call, prepared });
        }
        // It is made again for the backward, so that a forward keeps nothing of it.
        let own = device.empty([layout.kept_states() * dims.heads * PREPARED], DType::F32)?;
        *prepared = Some(own.clone());
        let chunks = Self { device, layout, tiles, call, prepared: own };
        let all =
            Prepare { p: call, prepared: pointer(&chunks.prepared), chunks: layout.intervals() as u32, unused: 0 };
        let grid = chunks.grid(chunks.all(), 0);
        match tiles.keys {
            32 => device.launch(grid, &Prepare32 { all })?,
            64 => device.launch(grid, &Prepare64 { all })?,
            _ => device.launch(grid, &Prepare128 { all })?,
        }
        Ok(chunks)
    }

    /// Sequences times heads.
    /// Memories that go through their chunks independently of each other.
    fn states(&self) -> usize {
        self.layout.dims.sequences.count() * self.layout.dims.heads
    }

    /// Chunks of all sequences and heads, all as many as the longest has.
    /// Blocks of a shorter sequence that find no chunk return at once.
    fn all(&self) -> usize {
        self.states() * self.layout.intervals()
    }

    /// Blocks of the kernel with this number in [`Tiles::shared`].
    /// All have 256 threads: eight warps share the tiles of a chunk.
    fn grid(&self, blocks: usize, kernel: usize) -> Grid {
        let shared = self.tiles.shared(self.layout.spec.matrices())[kernel];
        Grid { blocks: (blocks, 1, 1), threads: THREADS, shared }
    }

    /// Blocks that go from chunk to chunk.
    fn head_tiles(&self) -> usize {
        self.states() * self.layout.dims.value.div_ceil(self.tiles.walk)
    }

    /// A place for the states before, or the gradients after, all chunks.
    /// `[kept, H, 1 + S, K, V]` in 32 bits, where `S` is 1 with momentum.
    pub(super) fn state_buffer(&self) -> Result<Tensor<Cuda>> {
        let dims = self.layout.dims;
        let matrix = dims.key * dims.value * self.layout.spec.matrices();
        self.device.empty([self.layout.kept_states() * dims.heads * matrix], DType::F32)
    }

    /// Equations (19)–(22); `kept` takes the states that the backward starts from.
    pub(super) fn forward(
        &self,
        inputs: &LinearInputs<Tensor<Cuda>>,
        outputs: &LinearOutputs<Tensor<Cuda>>,
        kept: Option<&Tensor<Cuda>>,
    ) -> Result<()> {
        let all = Forward {
            p: self.call,
            prepared: pointer(&self.prepared),
            arrays: ForwardArrays::new(inputs, outputs, kept),
        };
        let (device, grid) = (self.device, self.grid(self.head_tiles(), 1));
        match (self.tiles.keys, self.tiles.walk, self.layout.spec.momentum) {
            (32, _, false) => device.launch(grid, &Forward32 { all }),
            (32, _, true) => device.launch(grid, &Forward32Momentum { all }),
            (64, _, false) => device.launch(grid, &Forward64 { all }),
            (64, _, true) => device.launch(grid, &Forward64Momentum { all }),
            (_, 32, false) => device.launch(grid, &Forward128 { all }),
            (_, 32, true) => device.launch(grid, &Forward128Momentum { all }),
            (_, _, false) => device.launch(grid, &Forward128Wide { all }),
            (_, _, true) => device.launch(grid, &Forward128WideMomentum { all }),
        }
    }

    /// Equations (23)–(32), from the kept states.
    pub(super) fn backward(
        &self,
        kept: &Tensor<Cuda>,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
    ) -> Result<()> {
        // From the last chunk to the first; then all chunks at once.
        let kept_grads = self.reverse(grads, dinputs)?;
        let all = Gradients {
            p: self.call,
            prepared: pointer(&self.prepared),
            kept: pointer(kept),
            kept_grads: pointer(&kept_grads),
            dout: (&grads.out).into(),
            dq: (&dinputs.q).into(),
            dk: (&dinputs.k).into(),
            dv: (&dinputs.v).into(),
            log_a: pointer(&dinputs.log_a),
            log_eta: optional(dinputs.log_eta.as_ref()),
            theta: pointer(&dinputs.theta),
            beta: optional(dinputs.beta.as_ref()),
            chunks: self.layout.intervals() as u32,
            unused: 0,
        };
        let (device, grid) = (self.device, self.grid(self.all(), 3));
        match (self.tiles.keys, self.layout.spec.momentum) {
            (32, false) => device.launch(grid, &Gradients32 { all }),
            (32, true) => device.launch(grid, &Gradients32Momentum { all }),
            (64, false) => device.launch(grid, &Gradients64 { all }),
            (64, true) => device.launch(grid, &Gradients64Momentum { all }),
            (_, false) => device.launch(grid, &Gradients128 { all }),
            (_, true) => device.launch(grid, &Gradients128Momentum { all }),
        }
    }

    /// Writes the gradient of the initial state, and returns those of the states after each chunk.
    pub(super) fn reverse(
        &self,
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
    ) -> Result<Tensor<Cuda>> {
        let kept = self.state_buffer()?;
        let all = Reverse {
            p: self.call,
            prepared: pointer(&self.prepared),
            arrays: ReverseArrays::new(grads, dinputs, &kept),
        };
        let (device, grid) = (self.device, self.grid(self.head_tiles(), 2));
        match (self.tiles.keys, self.tiles.walk, self.layout.spec.momentum) {
            (32, _, false) => device.launch(grid, &Reverse32 { all }),
            (32, _, true) => device.launch(grid, &Reverse32Momentum { all }),
            (64, _, false) => device.launch(grid, &Reverse64 { all }),
            (64, _, true) => device.launch(grid, &Reverse64Momentum { all }),
            (_, 32, false) => device.launch(grid, &Reverse128 { all }),
            (_, 32, true) => device.launch(grid, &Reverse128Momentum { all }),
            (_, _, false) => device.launch(grid, &Reverse128Wide { all }),
            (_, _, true) => device.launch(grid, &Reverse128WideMomentum { all }),
        }?;
        Ok(kept)
    }
}
