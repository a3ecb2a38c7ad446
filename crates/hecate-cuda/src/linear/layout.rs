//! How a call is laid out on the device: which kernels, how many blocks, where kept states lie.

use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    launch::{Array, Grid, optional, pointer},
};
use hecate_core::{
    Checkpoints, DType, Dims, Read, Result, Tensor,
    families::{LinearInputs, LinearOutputs, LinearSpec},
};

/// Tokens between kept states.
pub(super) const CHUNK: usize = Checkpoints::INTERVAL;

/// The kernels of a file of the token-by-token engine, by class, without momentum and with it. All take one structure.
/// Beside them `launch`, which queues the one for a layout.
macro_rules! class_kernels {
    ($source:path, $arguments:ident {
        $($class:pat => $plain:literal $name:ident, $with_momentum:literal $momentum_name:ident);* $(;)?
    }) => {
        $crate::launch::kernels! { $source { $(
            $plain $name { all: $arguments }
            $with_momentum $momentum_name { all: $arguments }
        )* } }

        impl $arguments {
            fn launch(
                self,
                device: &$crate::Cuda,
                layout: &$crate::linear::layout::Layout<'_>,
                grid: $crate::launch::Grid,
            ) -> hecate_core::Result<()> {
                let all = self;
                match (layout.class.index, layout.spec.momentum) {
                    $(
                        ($class, false) => device.launch(grid, &$name { all }),
                        ($class, true) => device.launch(grid, &$momentum_name { all }),
                    )*
                }
            }
        }
    };
}
pub(super) use class_kernels;

/// Sizes of the kernels of one range of `K`: rows of the memory that a thread holds, threads of a column, threads of a
/// block, columns of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Place among the kernels of a file.
    pub(super) index: usize,
    /// Rows of the memory that a thread holds.
    pub(super) rows: usize,
    /// Threads that share a column.
    pub(super) sharing: usize,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Value columns of a block.
    pub(super) columns: usize,
}

/// Up to this `K`, the kernels with these sizes hold the memory in registers.
const CLASSES: [(usize, Class); 5] = [
    (16, Class { index: 0, rows: 4, sharing: 4, threads: 128, columns: 32 }),
    (32, Class { index: 1, rows: 4, sharing: 8, threads: 256, columns: 32 }),
    (64, Class { index: 2, rows: 8, sharing: 8, threads: 256, columns: 32 }),
    (128, Class { index: 3, rows: 8, sharing: 16, threads: 512, columns: 32 }),
    (256, Class { index: 4, rows: 16, sharing: 16, threads: 512, columns: 32 }),
];

impl Class {
    /// For any `K`: the memory in global memory.
    fn any(key: usize) -> Self {
        Self { index: CLASSES.len(), rows: key.div_ceil(128) * 4, sharing: 32, threads: 256, columns: 8 }
    }

    /// Whether the memory lies in global memory.
    pub(super) fn is_any(&self) -> bool {
        self.index == CLASSES.len()
    }

    /// Elements of a head tile's matrix, rounded up to whole threads.
    pub(super) fn elements(&self) -> usize {
        self.rows * self.threads as usize
    }

    /// `K` rounded up to whole threads.
    pub(super) fn width(&self) -> usize {
        self.rows * self.sharing
    }

    /// Elements of the forward's scratch, as `scan.cu` lays them out.
    pub(super) fn forward_scratch(&self, spec: LinearSpec) -> usize {
        let own = usize::from(spec.frozen.is_some()) + 2 * usize::from(self.is_any());
        2 * 16 * self.width() + 16 * self.columns + 4 * 16 + own * self.elements()
    }

    /// Elements of the backward's scratch with the memory noted before each of `sub` tokens, as `scan_backward.cu` lays
    /// them out.
    pub(super) fn backward_scratch(&self, spec: LinearSpec, sub: usize) -> usize {
        let threads = self.threads as usize;
        // Inputs of eight tokens; sums of warps; the memory before tokens; what is in no register.
        let tile = 2 * 8 * self.width() + 2 * 8 * self.columns + 4 * 8;
        let sums = threads / 32 * (4 * self.width() + 8) + 3 * sub * threads;
        let own = 2 * usize::from(spec.frozen.is_some()) + 7 * usize::from(self.is_any());
        tile + sums + (spec.matrices() * sub + own) * self.elements()
    }
}

/// Matrices of a state's gradient: with that of `M_c`.
pub(super) fn records(spec: LinearSpec) -> usize {
    spec.matrices() + usize::from(spec.frozen.is_some())
}

/// A call as the kernels see it.
pub(super) struct Layout<'a> {
    /// Sizes of the call.
    pub(super) dims: &'a Dims,
    /// The lowered rule.
    pub(super) spec: LinearSpec,
    /// Which kernels run.
    pub(super) class: Class,
    /// Tokens before which the backward notes the memory at once.
    pub(super) sub: usize,
    /// Which states are kept.
    checkpoints: Checkpoints,
    /// Kept states of all sequences, one head and one block of columns each.
    kept: usize,
    /// First rows of the sequences and the end, then as many first kept states; nothing where all are alike.
    starts: Option<Tensor<Cuda>>,
}

arguments! {
    /// `struct Linear` of `linear.cuh`, with arrays and gates.
    pub(super) struct LinearCall {
        /// `q` and `k` are `[rows,H,K]`, `v` is `[rows,H,V]`.
        q: Array,
        k: Array,
        pub(super) v: Array,
        /// Gates `[rows,H]` in 32 bits; null where the rule has none.
        log_a: In<f32>,
        log_eta: In<f32>,
        theta: In<f32>,
        beta: In<f32>,
        /// First row of each sequence and the end, then as many first checkpoints; null where all sequences are alike.
        starts: In<u32>,
        /// Tokens and checkpoints of every sequence, where `starts` is null.
        tokens: u32,
        kept: u32,
        /// `H`, `K`, `V`.
        heads: u32,
        key: u32,
        value: u32,
        /// Blocks of value columns of a head.
        blocks: u32,
        /// Tokens of a frozen group, 0: not frozen; tokens after which checkpoints are counted anew.
        frozen: u32,
        period: u32,
        /// How `r` follows from the gates, as numbered in `linear.cuh`.
        erase: u32,
        /// 1 where a token reads the memory before its own write.
        before: u32,
        /// Rows of the memory that a thread holds.
        rows_held: u32,
        /// `N`.
        sequences: u32,
    }
}

arguments! {
    /// Arrays of a forward, as `scan.cu` and `chunk.cu` have them in a row.
    pub(super) struct ForwardArrays {
        /// `m`, `s`, `last_m`, `last_s`: `[N,H,K,V]` in 32 bits; `s` and `last_s` are null without momentum.
        m: In<f32>,
        s: In<f32>,
        /// `[rows,H,V]`.
        out: Array,
        last_m: Out<f32>,
        last_s: Out<f32>,
        /// Checkpoints: `[kept,H,blocks,1 + S,n,threads]` token by token, `[kept,H,1 + S,K,V]` in chunks; null: none.
        kept: Out<f32>,
    }
}

impl ForwardArrays {
    /// Where a forward reads and writes.
    pub(super) fn new(
        inputs: &LinearInputs<Tensor<Cuda>>,
        outputs: &LinearOutputs<Tensor<Cuda>>,
        kept: Option<&Tensor<Cuda>>,
    ) -> Self {
        Self {
            m: pointer(&inputs.state.m),
            s: optional(inputs.state.s.as_ref()),
            out: (&outputs.out).into(),
            last_m: pointer(&outputs.state.m),
            last_s: optional(outputs.state.s.as_ref()),
            kept: optional(kept),
        }
    }
}

arguments! {
    /// Arrays of the gradient of the memory, as `scan_reverse.cu` and `chunk_reverse.cu` have them in a row.
    pub(super) struct ReverseArrays {
        /// `[rows,H,V]`.
        dout: Array,
        /// `dm`, `ds` of the final, `first_dm`, `first_ds` of the initial state: `[N,H,K,V]`.
        dm: In<f32>,
        ds: In<f32>,
        first_dm: Out<f32>,
        first_ds: Out<f32>,
        /// Gradients after each checkpoint interval: `[kept,H,blocks,records,n,threads]` token by token, `[kept,H,1 + S,K,V]`
        /// in chunks.
        kept: Out<f32>,
    }
}

impl ReverseArrays {
    /// Where the way back reads what reaches it, and writes gradients.
    pub(super) fn new(
        grads: &LinearOutputs<Tensor<Cuda>>,
        dinputs: &LinearInputs<Tensor<Cuda>>,
        kept: &Tensor<Cuda>,
    ) -> Self {
        Self {
            dout: (&grads.out).into(),
            dm: pointer(&grads.state.m),
            ds: optional(grads.state.s.as_ref()),
            first_dm: pointer(&dinputs.state.m),
            first_ds: optional(dinputs.state.s.as_ref()),
            kept: pointer(kept),
        }
    }
}

/// What blocks hold beside registers, and their grid.
pub(super) struct Scratch {
    /// `[blocks, stride]`, where the memory is not in registers.
    pub(super) memory: Tensor<Cuda>,
    /// Elements of a block.
    pub(super) stride: u64,
    /// A block for each head tile.
    pub(super) grid: Grid,
}

impl<'a> Layout<'a> {
    /// Chooses kernels for a call and makes its table.
    pub(super) fn new(device: &Cuda, dims: &'a Dims, spec: LinearSpec) -> Result<Self> {
        let (class, sub) = choose(dims.key, spec, device.properties().shared_memory);
        let checkpoints = Checkpoints::new(spec.frozen);
        let kept = checkpoints.total(&dims.sequences);
        // Where all are alike kernels count by themselves, and there is no table to read.
        let table = checkpoints.table_if_unlike(&dims.sequences);
        let starts = table.map(|table| device.table(&table)).transpose()?;
        Ok(Self { dims, spec, class, sub, checkpoints, kept, starts })
    }

    /// Blocks of columns of a head.
    pub(super) fn blocks(&self) -> usize {
        self.dims.value.div_ceil(self.class.columns)
    }

    /// Blocks of threads.
    pub(super) fn head_tiles(&self) -> usize {
        self.dims.sequences.count() * self.dims.heads * self.blocks()
    }

    /// Rows times heads.
    pub(super) fn tokens(&self) -> usize {
        self.dims.sequences.rows() * self.dims.heads
    }

    /// Kept states of all sequences, of one head.
    pub(super) fn kept_states(&self) -> usize {
        self.kept
    }

    /// Elements of all kept states of this many matrices.
    pub(super) fn kept_elements(&self, matrices: usize) -> usize {
        self.kept * self.dims.heads * self.blocks() * matrices * self.class.elements()
    }

    /// Kept states of the longest sequence.
    pub(super) fn intervals(&self) -> usize {
        self.checkpoints.count(self.dims.sequences.longest())
    }

    /// What a block of the forward, or of the gradient of the memory, holds beside registers.
    pub(super) fn scratch(&self, device: &Cuda) -> Result<Scratch> {
        let elements = self.class.forward_scratch(self.spec);
        // In shared memory, or for any K in global memory.
        let (shared, stride) = if self.class.is_any() { (0, elements) } else { (4 * elements, 0) };
        let memory = device.empty([self.head_tiles() * stride], DType::F32)?;
        let grid = Grid { blocks: (self.head_tiles(), 1, 1), threads: self.class.threads, shared };
        Ok(Scratch { memory, stride: stride as u64, grid })
    }

    /// With the blocks of columns of the token-by-token kernels.
    pub(super) fn call(&self, inputs: &LinearInputs<Tensor<Cuda>>) -> LinearCall {
        self.call_in_blocks(inputs, self.blocks())
    }

    /// With columns in this many blocks.
    pub(super) fn call_in_blocks(&self, inputs: &LinearInputs<Tensor<Cuda>>, blocks: usize) -> LinearCall {
        // Kernels count by themselves where all sequences are alike.
        let tokens = self.dims.sequences.longest();
        LinearCall {
            q: (&inputs.q).into(),
            k: (&inputs.k).into(),
            v: (&inputs.v).into(),
            log_a: pointer(&inputs.log_a),
            log_eta: optional(inputs.log_eta.as_ref()),
            theta: pointer(&inputs.theta),
            beta: optional(inputs.beta.as_ref()),
            starts: self.starts.as_ref().map_or(0, pointer),
            tokens: tokens as u32,
            kept: self.checkpoints.count(tokens) as u32,
            heads: self.dims.heads as u32,
            key: self.dims.key as u32,
            value: self.dims.value as u32,
            blocks: blocks as u32,
            frozen: self.spec.frozen.unwrap_or(0),
            period: self.checkpoints.period() as u32,
            erase: self.spec.erase.number(),
            before: u32::from(self.spec.read == Read::Before),
            rows_held: self.class.rows as u32,
            sequences: self.dims.sequences.count() as u32,
        }
    }
}

/// The kernels for this `K`, and how many tokens are noted at once. These are as many as there is room for, shared with
/// a second block on a multiprocessor where blocks are small.
fn choose(key: usize, spec: LinearSpec, shared: usize) -> (Class, usize) {
    let fits = |class: &Class, sub: usize, bytes: usize| 4 * class.backward_scratch(spec, sub) <= bytes;
    // The first that is wide enough.
    let class = CLASSES.iter().find(|(most, _)| key <= *most).map(|(_, class)| *class);
    match class.filter(|class| fits(class, 1, shared) && 4 * class.forward_scratch(spec) <= shared) {
        None => (Class::any(key), 8),
        Some(class) => {
            let room = if class.threads > 256 { shared } else { (shared / 2).saturating_sub(1024) };
            (class, [8, 4, 2].into_iter().find(|&sub| fits(&class, sub, room)).unwrap_or(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hecate_core::families::EraseStrength;

    #[test]
    fn classes_hold_their_keys() {
        let erase = EraseStrength::Theta;
        let spec = LinearSpec { frozen: Some(4), momentum: true, erase, ..LinearSpec::default() };
        for (key, any) in [(1, false), (16, false), (17, false), (64, false), (128, false), (129, true), (300, true)] {
            let (class, sub) = choose(key, spec, 163 << 10);
            assert_eq!(class.is_any(), any, "{key}");
            assert!(class.width() >= key && 8 % sub == 0, "{key}");
        }
        assert!(!choose(256, spec, 227 << 10).0.is_any());
    }
}
