//! The exact chunk form with `q`, `k` and `v` of bfloat16, on the tensor cores as they come.
//!
//! There are two kinds of products, in the same kernels: those of one warp (`mma.sync`), on every GPU from capability 8.0
//! on, and those of a group of four warps (`wgmma`, `group.cuh`), where kernels are compiled for exactly capability 9.0.
//!
//! Masks, the solve, the memory and all sums have 32 bits; factors of products have 16: bfloat16, but IEEE halves with a power
//! of two beside them where a chunk's squares meet what is inside it (`bf16_halves.cuh`). It exists for rules that are not
//! frozen, `K` of at most 256, with momentum 128, and `K` and `V` that are multiples of 8; elsewhere
//! [the 32-bit form](super::chunk) takes its place.
//!
//! # What it costs
//!
//! A chunk of 64 tokens of a head, `K = V = D`, in products of `64·64·D` multiply-adds (one is 1.05 MFLOP at `D = 128`;
//! lower squares count half) and bytes beside those that every algorithm moves (`q`, `k`, `v`, `out`, their gradients):
//!
//! | launch | parallel over | products, `D = 128` | reads | writes |
//! |---|---|---|---|---|
//! | `bf16_prepare` | chunks, heads | 1 (`K Kᵀ`, `Q Kᵀ`) + the solve | `q k`, gates | 18 KiB: `T`, `Y ∘ Q Kᵀ`, vectors |
//! | `bf16` | heads, columns | 7 (`K M`, `Q M`, `Kᵀ Z`: 2 each; `T`, `Y`: ½ each) | `q k v`, 18 KiB | `out`; for a backward `2 D²` (state), `128 D` (`Z`) |
//! | `bf16_reverse` | heads, columns | 7 | `q k dout`, 18 KiB | `dv`, `2 D²`, `128 D` (`Λ`) |
//! | `bf16_gradients` | chunks, heads | 10 | `q k v dout`, `4 D²`, `256 D` | `dq dk`, gates |
//!
//! Momentum doubles what has `M` in it: 13 instead of 7, 16 instead of 10. So at `(B,T,H,D) = (4,2048,16,128)`, 2,048
//! chunks, the forward is 17 GFLOP (0.022 ms at 790 TFLOP/s) and at least 134 MB (0.031 ms at 4.3 TB/s), with what is
//! prepared 210 MB (0.049 ms); the backward 36 GFLOP (0.045 ms) and 0.58 GB (0.13 ms), half of it states, `Z` and `Λ`.
//!
//! Only `bf16` and `bf16_reverse` go from chunk to chunk; where they leave multiprocessors idle, long sequences go in
//! [segments](super::bf16_segments), and the other two work beside them. In a chain a warp holds 16 columns of the memory in
//! registers, as sums that are at once left factors, and needs no other column: a chunk is one chain of about 150 (`bf16`)
//! to 230 (`bf16_reverse`) products of the tensor cores (`m16n8k16`), 8 beside each other, or of 20 to 32 of a group
//! (`m64n64k16`). All else is taken from it: forward, a second warp makes the outputs of the chunk before, and writes down `Z`
//! and states; warps of their own read ahead, and backward others make halves of `dout` and write down `Λ` and `dv`. Kept
//! states lie in tiles `[16,16]` as they are handed from warp to warp, so that on 9.0 one thread stores 16 columns at once.
//! Blocks are as wide as there are enough of them, since what their warps share is read once a block; those of groups have
//! four warps.
//!
//! `bf16_gradients` reads and writes most, 192 KiB a chunk at `D = 128`, which its two blocks a multiprocessor are there to
//! hide: keys and queries stay in shared memory, value columns pass through it, first for the squares, then in slabs with the
//! states and with their gradients; what comes again comes from the cache.
//!
//! Masks are made by recursion within stretches of 16 tokens, and beyond as products, with momentum of triangles `[2,2]`. The
//! solve is forward substitution in blocks of 16 tokens, and products in two parts of 8 bits (that leave out 2^-16 of a factor)
//! for the rest.

use super::{
    CHUNK, Spec,
    bf16_segments::{Segment, segments},
    bf16_tiles::{OWN, Tiles},
    layout::{Call, Layout},
    named,
};
use crate::{
    Cuda,
    device::streams::Streams,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{DType, Dims, Inputs, Outputs, Result, Rule, Slots, Tensor};

pub(crate) const PREPARE: Source = source!("bf16_prepare", "bf16_prepare.cu");
pub(crate) const FORWARD: Source = source!("bf16_forward", "bf16_forward.cu");
pub(crate) const REVERSE: Source = source!("bf16_reverse", "bf16_reverse.cu");
pub(crate) const GRADIENTS: Source = source!("bf16_gradients", "bf16_gradients.cu");

/// Vectors and scalars of a chunk of a head.
pub(super) const NUMBERS: usize = 8 * CHUNK + 8;
/// 32-bit words that are prepared for it: two squares of halves, numbers.
const READY: usize = CHUNK * CHUNK + NUMBERS;
/// `struct Bf16Prepare` of `bf16_prepare.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Prepare {
    call: Call,
    ready: Pointer,
    of: Segment,
}

/// `struct Bf16Forward` of `bf16_forward.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Forward {
    call: Call,
    ready: Pointer,
    m: Pointer,
    s: Pointer,
    out: Pointer,
    last_m: Pointer,
    last_s: Pointer,
    kept: Pointer,
    written: Pointer,
    of: Segment,
}

/// `struct Bf16Reverse` of `bf16_reverse.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Reverse {
    call: Call,
    ready: Pointer,
    dout: Pointer,
    dm: Pointer,
    ds: Pointer,
    first_dm: Pointer,
    first_ds: Pointer,
    kept: Pointer,
    solved: Pointer,
    dv: Pointer,
    progress: Pointer,
    stages: u32,
    segment: u32,
}

/// `struct Bf16Gradients` of `bf16_slabs.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Gradients {
    call: Call,
    ready: Pointer,
    kept: Pointer,
    kept_grads: Pointer,
    written: Pointer,
    solved: Pointer,
    dout: Pointer,
    dq: Pointer,
    dk: Pointer,
    log_a: Pointer,
    log_eta: Pointer,
    theta: Pointer,
    beta: Pointer,
    of: Segment,
}

kernels! { PREPARE {
    "bf16_prepare_64" Prepare64 { all: Prepare }
    "bf16_prepare_128" Prepare128 { all: Prepare }
    "bf16_prepare_256" Prepare256 { all: Prepare }
    "bf16_prepare_64_momentum" Prepare64Momentum { all: Prepare }
    "bf16_prepare_128_momentum" Prepare128Momentum { all: Prepare }
} }
kernels! { FORWARD {
    "bf16_64_2" Forward64By2 { all: Forward }
    "bf16_64_4" Forward64By4 { all: Forward }
    "bf16_128_2" Forward128By2 { all: Forward }
    "bf16_128_4" Forward128By4 { all: Forward }
    "bf16_256_2" Forward256By2 { all: Forward }
    "bf16_64_2_momentum" Forward64By2Momentum { all: Forward }
    "bf16_64_4_momentum" Forward64By4Momentum { all: Forward }
    "bf16_128_2_momentum" Forward128By2Momentum { all: Forward }
    "bf16_128_4_momentum" Forward128By4Momentum { all: Forward }
} }
kernels! { REVERSE {
    "bf16_await" Await { counter: Pointer, count: u32, unused: u32 }
    "bf16_reverse_64_2" Reverse64By2 { all: Reverse }
    "bf16_reverse_64_4" Reverse64By4 { all: Reverse }
    "bf16_reverse_128_2" Reverse128By2 { all: Reverse }
    "bf16_reverse_128_4" Reverse128By4 { all: Reverse }
    "bf16_reverse_128_8" Reverse128By8 { all: Reverse }
    "bf16_reverse_256_2" Reverse256By2 { all: Reverse }
    "bf16_reverse_64_2_momentum" Reverse64By2Momentum { all: Reverse }
    "bf16_reverse_64_4_momentum" Reverse64By4Momentum { all: Reverse }
    "bf16_reverse_128_2_momentum" Reverse128By2Momentum { all: Reverse }
    "bf16_reverse_128_4_momentum" Reverse128By4Momentum { all: Reverse }
} }
kernels! { GRADIENTS {
    "bf16_gradients_64" Gradients64 { all: Gradients }
    "bf16_gradients_128" Gradients128 { all: Gradients }
    "bf16_gradients_256" Gradients256 { all: Gradients }
    "bf16_gradients_64_momentum" Gradients64Momentum { all: Gradients }
    "bf16_gradients_128_momentum" Gradients128Momentum { all: Gradients }
} }

/// Whether this form exists for this call on this GPU.
pub(super) fn exists<R: Rule>(device: &Cuda, dims: &Dims, spec: Spec, inputs: &Inputs<R, Tensor<Cuda>>) -> bool {
    let narrow = [&inputs.q, &inputs.k, &inputs.v].iter().all(|x| x.dtype() == DType::Bf16);
    let most = Tiles::new(device, dims, spec.matrices()).shared(spec.matrices()).into_iter().max().unwrap_or(0);
    let whole = dims.key.is_multiple_of(8) && dims.value.is_multiple_of(8);
    let widest = if spec.momentum { 128 } else { 256 };
    let sound = spec.frozen.is_none() && whole && (1..=widest).contains(&dims.key) && dims.value > 0;
    let properties = device.properties();
    narrow && sound && properties.capability.0 >= 8 && most <= properties.shared_memory
}

/// What a backward starts from.
pub(super) struct Kept {
    ready: Tensor<Cuda>,
    /// `[kept,H,1 + S]` matrices, in tiles.
    states: Tensor<Cuda>,
    /// `Z [rows,H,V]`.
    written: Tensor<Cuda>,
}

/// The address of a tensor of bfloat16.
fn narrow(x: &Tensor<Cuda>) -> Pointer {
    debug_assert_eq!(x.dtype(), DType::Bf16);
    Array::from(x).data
}

/// A call in this form.
pub(super) struct Chunks<'a> {
    device: &'a Cuda,
    layout: &'a Layout<'a>,
    tiles: Tiles,
    /// With columns in the blocks of the forward and of the backward.
    calls: [Call; 2],
    /// In which the chain from chunk to chunk goes; more than one where something goes beside it.
    segments: Vec<Segment>,
}

impl<'a> Chunks<'a> {
    pub(super) fn new<R: Rule>(device: &'a Cuda, layout: &'a Layout<'a>, inputs: &Inputs<R, Tensor<Cuda>>) -> Self {
        let tiles = Tiles::new(device, layout.dims, layout.spec.matrices());
        let calls = [1, 2].map(|kernel| layout.call_in_blocks(inputs, tiles.blocks(kernel, layout.dims)));
        let states = layout.dims.sequences.count() * layout.dims.heads;
        let multiprocessors = device.properties().multiprocessors as usize;
        let blocks = if device.in_turn() { multiprocessors } else { states * tiles.blocks(1, layout.dims) };
        let segments = segments(layout.spans(), blocks, multiprocessors);
        Self { device, layout, tiles, calls, segments }
    }

    fn streams(&self) -> Streams<'a> {
        Streams::new(self.device, self.segments.len() > 1)
    }

    /// Blocks of one of the kernels for these keys, by number in [`Tiles::shared`].
    fn grid(&self, kernel: usize, of: Segment) -> Grid {
        let states = self.layout.dims.sequences.count() * self.layout.dims.heads;
        let blocks = match kernel {
            1 | 2 => states * self.tiles.blocks(kernel, self.layout.dims),
            _ => states * of.chunks as usize,
        };
        let (matrices, own) = (self.layout.spec.matrices(), if kernel == 0 { OWN } else { 0 });
        let (shared, threads) = (self.tiles.shared(matrices)[kernel] - own, self.tiles.threads(kernel, matrices));
        Grid { blocks: (blocks, 1, 1), threads, shared }
    }

    /// Equations (15)–(18), of all chunks of a segment.
    fn prepare(&self, ready: &Tensor<Cuda>, of: Segment) -> Result<()> {
        let (all, grid) = (Prepare { call: self.calls[0], ready: pointer(ready), of }, self.grid(0, of));
        match (self.tiles.keys, self.layout.spec.momentum) {
            (64, false) => self.device.launch(grid, &Prepare64 { all }),
            (64, true) => self.device.launch(grid, &Prepare64Momentum { all }),
            (128, false) => self.device.launch(grid, &Prepare128 { all }),
            (128, true) => self.device.launch(grid, &Prepare128Momentum { all }),
            _ => self.device.launch(grid, &Prepare256 { all }),
        }
    }

    /// A place for the states before, or the gradients behind, all chunks.
    fn room(&self) -> Result<Tensor<Cuda>> {
        let dims = self.layout.dims;
        let matrix = self.tiles.keys * dims.value.next_multiple_of(16) * self.layout.spec.matrices();
        self.device.empty([self.layout.kept_states() * dims.heads * matrix], DType::Bf16)
    }

    /// Equations (15)–(22), and what a backward starts from if it is to be kept.
    pub(super) fn forward<R: Rule>(
        &self,
        inputs: &Inputs<R, Tensor<Cuda>>,
        outputs: &Outputs<R, Tensor<Cuda>>,
        keep: bool,
    ) -> Result<Option<Kept>> {
        let ready = self.device.empty([self.layout.kept_states() * self.layout.dims.heads * READY], DType::F32)?;
        let places = match keep {
            true => Some((self.room()?, self.device.empty(self.layout.dims.values(), DType::Bf16)?)),
            false => None,
        };
        let (first, last) = (R::State::list(&inputs.state), R::State::list(&outputs.state));
        let streams = self.streams();
        for &of in &self.segments {
            self.prepare(&ready, of)?;
            streams.link_waits()?;
            let all = Forward {
                call: self.calls[0],
                ready: pointer(&ready),
                m: named(&first, "m"),
                s: named(&first, "s"),
                out: narrow(&outputs.out),
                last_m: named(&last, "m"),
                last_s: named(&last, "s"),
                kept: places.as_ref().map_or(0, |(states, _)| narrow(states)),
                written: places.as_ref().map_or(0, |(_, written)| narrow(written)),
                of,
            };
            self.go_forward(&streams, all)?;
        }
        drop(streams);
        Ok(places.map(|(states, written)| Kept { ready, states, written }))
    }

    fn go_forward(&self, streams: &Streams<'_>, all: Forward) -> Result<()> {
        let grid = self.grid(1, all.of);
        match (self.tiles.keys, self.tiles.pairs, self.layout.spec.momentum) {
            (64, 2, false) => streams.launch_link(grid, &Forward64By2 { all }),
            (64, _, false) => streams.launch_link(grid, &Forward64By4 { all }),
            (128, 2, false) => streams.launch_link(grid, &Forward128By2 { all }),
            (128, _, false) => streams.launch_link(grid, &Forward128By4 { all }),
            (_, _, false) => streams.launch_link(grid, &Forward256By2 { all }),
            (64, 2, true) => streams.launch_link(grid, &Forward64By2Momentum { all }),
            (64, _, true) => streams.launch_link(grid, &Forward64By4Momentum { all }),
            (_, 2, true) => streams.launch_link(grid, &Forward128By2Momentum { all }),
            (_, _, true) => streams.launch_link(grid, &Forward128By4Momentum { all }),
        }
    }

    /// Equations (23)–(32), from what was kept. The chain is one launch, which says how far it is: if each segment was one,
    /// the gradients of the last would take its place.
    pub(super) fn backward<R: Rule>(
        &self,
        kept: &Kept,
        grads: &Outputs<R, Tensor<Cuda>>,
        dinputs: &Inputs<R, Tensor<Cuda>>,
    ) -> Result<()> {
        let (room, solved) = (self.room()?, self.device.empty(self.layout.dims.values(), DType::Bf16)?);
        let gates = R::Gates::list(&dinputs.gates);
        let progress = match self.segments.len() {
            1 => None,
            segments => Some(self.device.zeroed([segments], DType::U32)?),
        };
        let streams = self.streams();
        streams.link_waits()?;
        self.go_back(&streams, self.reverse(grads, dinputs, [&kept.ready, &room, &solved], progress.as_ref()))?;
        for (i, &of) in self.segments.iter().enumerate().rev() {
            match &progress {
                Some(progress) if i > 0 => self.await_segment(i, progress)?,
                _ => streams.wait_for_link()?,
            }
            let all = Gradients {
                call: self.calls[1],
                ready: pointer(&kept.ready),
                kept: narrow(&kept.states),
                kept_grads: narrow(&room),
                written: narrow(&kept.written),
                solved: narrow(&solved),
                dout: narrow(&grads.out),
                dq: narrow(&dinputs.q),
                dk: narrow(&dinputs.k),
                log_a: named(&gates, "log_a"),
                log_eta: named(&gates, "log_eta"),
                theta: named(&gates, "theta"),
                beta: named(&gates, "beta"),
                of,
            };
            self.differentiate(all)?;
        }
        Ok(())
    }

    /// Whatever is queued next waits until all blocks of the chain are through a segment. The one thread that waits leaves room
    /// for them; what comes next may not, but then they all run.
    fn await_segment(&self, number: usize, progress: &Tensor<Cuda>) -> Result<()> {
        let (counter, count) = (pointer(progress) + 4 * number as u64, self.grid(2, self.segments[0]).blocks.0 as u32);
        self.device.launch(Grid::blocks(1, 1), &Await { counter, count, unused: 0 })
    }

    fn differentiate(&self, all: Gradients) -> Result<()> {
        let grid = self.grid(3, all.of);
        match (self.tiles.keys, self.layout.spec.momentum) {
            (64, false) => self.device.launch(grid, &Gradients64 { all }),
            (64, true) => self.device.launch(grid, &Gradients64Momentum { all }),
            (256, false) => self.device.launch(grid, &Gradients256 { all }),
            (_, false) => self.device.launch(grid, &Gradients128 { all }),
            (_, true) => self.device.launch(grid, &Gradients128Momentum { all }),
        }
    }

    /// What writes the gradients of the initial state and of `v`, those of the states behind each chunk, and `Λ`.
    fn reverse<R: Rule>(
        &self,
        grads: &Outputs<R, Tensor<Cuda>>,
        dinputs: &Inputs<R, Tensor<Cuda>>,
        [ready, room, solved]: [&Tensor<Cuda>; 3],
        progress: Option<&Tensor<Cuda>>,
    ) -> Reverse {
        let (last, first) = (R::State::list(&grads.state), R::State::list(&dinputs.state));
        Reverse {
            call: self.calls[1],
            ready: pointer(ready),
            dout: narrow(&grads.out),
            dm: named(&last, "m"),
            ds: named(&last, "s"),
            first_dm: named(&first, "m"),
            first_ds: named(&first, "s"),
            kept: narrow(room),
            solved: narrow(solved),
            dv: narrow(&dinputs.v),
            progress: progress.map_or(0, pointer),
            stages: self.tiles.stages as u32,
            segment: self.segments[0].chunks,
        }
    }

    fn go_back(&self, streams: &Streams<'_>, all: Reverse) -> Result<()> {
        let grid = self.grid(2, self.segments[0]);
        match (self.tiles.keys, self.tiles.warps, self.layout.spec.momentum) {
            (64, 2, false) => streams.launch_link(grid, &Reverse64By2 { all }),
            (64, _, false) => streams.launch_link(grid, &Reverse64By4 { all }),
            (128, 2, false) => streams.launch_link(grid, &Reverse128By2 { all }),
            (128, 4, false) => streams.launch_link(grid, &Reverse128By4 { all }),
            (128, _, false) => streams.launch_link(grid, &Reverse128By8 { all }),
            (_, _, false) => streams.launch_link(grid, &Reverse256By2 { all }),
            (64, 2, true) => streams.launch_link(grid, &Reverse64By2Momentum { all }),
            (64, _, true) => streams.launch_link(grid, &Reverse64By4Momentum { all }),
            (_, 2, true) => streams.launch_link(grid, &Reverse128By2Momentum { all }),
            (_, _, true) => streams.launch_link(grid, &Reverse128By4Momentum { all }),
        }
    }
}
