//! State passing: long sequences of few heads in segments beside each other.
//!
//! A chain from chunk to chunk has as many blocks as there are sequences, heads and blocks of columns. One prompt leaves most
//! multiprocessors idle. But whatever a segment writes and erases, it takes the memory `x` it begins with to `P x + L`. So
//! segments go beside each other twice:
//!
//! 1. All but a sequence's first from an empty memory, which gives `L [K,V]`, and in further columns from a unit one, which gives
//!    `P [K,K]`. With momentum `x` is `M` above `S`, and `P [2K,2K]`.
//! 2. `x' = P x + L` from segment to segment, in 32 bits: what each begins with (`passing.cu`).
//! 3. All from there, for outputs and what a backward keeps.
//!
//! Back, `L` are gradients of what segments begin with, where nothing reaches them from later ones. `dx = Pᵀ dx' + L` goes from
//! the last to the first, with the forward's `P`.
//!
//! Chunks are the same as in one chain. It is for exact rules in chunks, and where it saves a quarter of a chain's steps. Where
//! erasing makes a unit memory grow out of 32 bits, an empty one is NaN after it.

use crate::{
    Cuda,
    arguments::{In, Out, arguments},
    launch::{Grid, kernels, optional, pointer},
    linear::layout::CHUNK,
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims, Result, Sequences, Tensor,
    families::{LinearInputs, LinearOutputs, LinearSpec, LinearState},
    primitives::narrow_backward,
};

pub(crate) const SOURCE: KernelSource = kernel_source!("passing", "passing.cu");

/// Threads of a block, and columns of the memory that a block has.
const THREADS: u32 = 256;
const COLUMNS: usize = 8;
/// Tiles of `P` in shared memory.
const STAGES: usize = 4;
/// A segment has at least so many chunks, beside which its start takes little.
const SHORTEST: usize = 16;
/// Segments of a sequence at most.
const MOST: usize = 16;
/// Columns of `P` for each of the values at most: as many rows of these are made as there are tokens.
const WIDEST: usize = 3;
/// Steps of a chain that take as long as going from one segment to the next, and as starting all kernels.
const STEPS_OF_SEGMENT: usize = 3;
const STEPS_OF_START: usize = 8;

arguments! {
    /// `struct Segments` of `passing.cu`.
    struct Segments {
        /// First segment of each sequence and the end, then the sequence of each segment; null: `each` of every sequence.
        table: In<u32>,
        /// `N`.
        sequences: u32,
        /// Segments of a sequence, where there is no table.
        each: u32,
    }
}

arguments! {
    /// `struct PassingOpen` of `passing.cu`.
    struct OpenArguments {
        /// Which segments are whose.
        of: Segments,
        /// `[N,H,K,V]`; `s` and `to_s` are null without momentum.
        m: In<f32>,
        s: In<f32>,
        /// `[segments,H,K,wide]`.
        to_m: Out<f32>,
        to_s: Out<f32>,
        /// `H`, `K`, `V`.
        heads: u32,
        key: u32,
        value: u32,
        /// `V`, or with a unit matrix beside it `V + K`, with momentum `V + 2 K`.
        wide: u32,
        /// 1 where the last segment of a sequence is given, not the first.
        back: u32,
        unused: u32,
    }
}

arguments! {
    /// `struct PassingJoin` of `passing.cu`.
    struct JoinArguments {
        /// Which segments are whose.
        of: Segments,
        /// `L [segments,H,K,l_wide]`, and `P` in the columns from `V` on of `[segments,H,K,p_wide]`.
        l_m: In<f32>,
        l_s: In<f32>,
        p_m: In<f32>,
        p_s: In<f32>,
        /// `[N,H,K,V]`: what sequences begin with, or the gradient of what they leave.
        m: In<f32>,
        s: In<f32>,
        /// `[segments,H,K,V]`: the same of segments.
        begin_m: Out<f32>,
        begin_s: Out<f32>,
        /// `[N,H,K,V]`: what sequences leave, or the gradient of what they begin with.
        end_m: Out<f32>,
        end_s: Out<f32>,
        /// `H`, `K`, `V`.
        heads: u32,
        key: u32,
        value: u32,
        /// Columns of the arrays that `L` and `P` are in.
        l_wide: u32,
        p_wide: u32,
        /// 1, with momentum 2.
        matrices: u32,
    }
}

kernels! { SOURCE {
    "passing_open" Open { all: OpenArguments }
    "passing_join_128" Join128 { all: JoinArguments }
    "passing_join_256" Join256 { all: JoinArguments }
    "passing_join_back_128" JoinBack128 { all: JoinArguments }
    "passing_join_back_256" JoinBack256 { all: JoinArguments }
} }

/// A state of the recurrence on the device.
pub(super) type State = LinearState<Tensor<Cuda>>;

/// A call whose sequences are cut into segments.
#[derive(Debug)]
pub(super) struct Passing {
    /// Its sizes, with every segment a sequence.
    pub(super) dims: Dims,
    /// The lowered rule.
    spec: LinearSpec,
    /// `N`.
    sequences: usize,
    /// As [`Segments`] has it, where sequences are unlike.
    table: Option<Tensor<Cuda>>,
}

impl Passing {
    /// None unless it saves a quarter of the steps, and where keys are so wide that columns for `P` would take much room.
    /// `blocks` are those of the chain of a call of these sizes.
    pub(super) fn new(
        device: &Cuda,
        dims: &Dims,
        spec: LinearSpec,
        blocks: impl Fn(&Dims) -> usize,
    ) -> Result<Option<Self>> {
        if spec.matrices() * dims.key > WIDEST * dims.value {
            return Ok(None);
        }
        let multiprocessors = device.properties().multiprocessors as usize;
        // Blocks of the first way and of the last.
        let of = |each: usize| {
            let narrow = cut(dims, each);
            [blocks(&wider(&narrow, spec)), blocks(&narrow)]
        };
        let chunks = dims.sequences.longest().div_ceil(CHUNK);
        let Some(each) = length(chunks, blocks(dims), multiprocessors, of) else { return Ok(None) };
        let sequences = dims.sequences.count();
        let table = match dims.sequences.are_alike() {
            true => None,
            false => Some(device.table(&table(&dims.sequences, each))?),
        };
        Ok(Some(Self { dims: cut(dims, each), spec, sequences, table }))
    }

    /// Sizes of the call that finds `L` and `P`.
    pub(super) fn wide(&self) -> Dims {
        wider(&self.dims, self.spec)
    }

    /// Its arguments: values with zeros in the columns of `P`.
    pub(super) fn wide_inputs(
        &self,
        device: &Cuda,
        inputs: &LinearInputs<Tensor<Cuda>>,
    ) -> Result<LinearInputs<Tensor<Cuda>>> {
        let (dims, wide) = (&self.dims, self.wide());
        let v = narrow_backward(&wide.values(), 3, 0, dims.value, &inputs.v.reshape(dims.values())?)?;
        let state = self.open(device, &inputs.state, false)?;
        Ok(LinearInputs { v, state, ..inputs.clone() })
    }

    /// Where it writes; outputs are of no use.
    pub(super) fn wide_outputs(&self, device: &Cuda, dtype: DType) -> Result<LinearOutputs<Tensor<Cuda>>> {
        let wide = self.wide();
        Ok(LinearOutputs { out: device.empty(wide.values(), dtype)?, state: self.room(device, wide.value)? })
    }

    /// A place for a state of every segment, of so many columns.
    pub(super) fn room(&self, device: &Cuda, columns: usize) -> Result<State> {
        let Dims { heads, key, sequences, .. } = &self.dims;
        let matrix = || device.empty([sequences.count(), *heads, *key, columns], DType::F32);
        Ok(LinearState { m: matrix()?, s: self.spec.momentum.then(matrix).transpose()? })
    }

    /// Columns of the states that segments start from, and of what they leave: back `P` is known.
    fn columns(&self, back: bool) -> usize {
        if back { self.dims.value } else { self.wide().value }
    }

    /// What the first segments of sequences begin with, zeros in the others, and beside both a unit matrix. Back, what the last
    /// ones end with, and nothing beside.
    pub(super) fn open(&self, device: &Cuda, given: &State, back: bool) -> Result<State> {
        let columns = self.columns(back);
        let to = self.room(device, columns)?;
        let all = OpenArguments {
            of: self.segments(),
            m: pointer(&given.m),
            s: optional(given.s.as_ref()),
            to_m: pointer(&to.m),
            to_s: optional(to.s.as_ref()),
            heads: self.dims.heads as u32,
            key: self.dims.key as u32,
            value: self.dims.value as u32,
            wide: columns as u32,
            back: u32::from(back),
            unused: 0,
        };
        // A block has a row.
        let rows = self.dims.sequences.count() * self.dims.heads * self.dims.key;
        device.launch(Grid::blocks(rows, THREADS), &Open { all })?;
        Ok(to)
    }

    /// What each segment begins with, from `given` on; what sequences end with goes to `end`.
    /// `own` has `L`, and `passed` has `P` beside it.
    pub(super) fn join(&self, device: &Cuda, [own, passed, given, end]: [&State; 4], back: bool) -> Result<State> {
        let begin = self.room(device, self.dims.value)?;
        let all = JoinArguments {
            of: self.segments(),
            l_m: pointer(&own.m),
            l_s: optional(own.s.as_ref()),
            p_m: pointer(&passed.m),
            p_s: optional(passed.s.as_ref()),
            m: pointer(&given.m),
            s: optional(given.s.as_ref()),
            begin_m: pointer(&begin.m),
            begin_s: optional(begin.s.as_ref()),
            end_m: pointer(&end.m),
            end_s: optional(end.s.as_ref()),
            heads: self.dims.heads as u32,
            key: self.dims.key as u32,
            value: self.dims.value as u32,
            l_wide: self.columns(back) as u32,
            p_wide: self.wide().value as u32,
            matrices: self.spec.matrices() as u32,
        };
        let blocks = self.sequences * self.dims.heads * self.dims.value.div_ceil(COLUMNS);
        let rows = if self.spec.matrices() * self.dims.key <= 128 { 128 } else { 256 };
        let grid = Grid { blocks: (blocks, 1, 1), threads: THREADS, shared: shared(rows) };
        match (rows == 128, back) {
            (true, false) => device.launch(grid, &Join128 { all }),
            (false, false) => device.launch(grid, &Join256 { all }),
            (true, true) => device.launch(grid, &JoinBack128 { all }),
            (false, true) => device.launch(grid, &JoinBack256 { all }),
        }?;
        Ok(begin)
    }

    /// As kernels have them.
    fn segments(&self) -> Segments {
        let each = self.dims.sequences.count() / self.sequences;
        Segments { table: self.table.as_ref().map_or(0, pointer), sequences: self.sequences as u32, each: each as u32 }
    }
}

/// Bytes of shared memory of a block with so many rows, as `passing.cu` lays it out.
fn shared(rows: usize) -> usize {
    // x, and tiles of P with one element more a row.
    4 * (rows * COLUMNS + STAGES * rows * (4096 / rows + 1))
}

/// The sizes with segments of `each` chunks as sequences.
fn cut(dims: &Dims, each: usize) -> Dims {
    let tokens = each * CHUNK;
    // The last of a sequence is as long as what is left.
    let lengths: Vec<usize> = dims
        .sequences
        .ranges()
        .flat_map(|rows| (0..rows.len()).step_by(tokens).map(move |at| tokens.min(rows.len() - at)))
        .collect();
    let sequences = Sequences::packed(&lengths);
    Dims { batch: 1, tokens: sequences.rows(), sequences, ..dims.clone() }
}

/// The sizes with columns for `P`.
fn wider(dims: &Dims, spec: LinearSpec) -> Dims {
    Dims { value: dims.value + spec.matrices() * dims.key, ..dims.clone() }
}

/// First segment of each sequence and the end, then the sequence of each segment.
fn table(sequences: &Sequences, each: usize) -> Vec<u32> {
    // Segments of each sequence.
    let counts: Vec<usize> = sequences.ranges().map(|rows| rows.len().div_ceil(each * CHUNK)).collect();
    let starts = (0..=counts.len()).map(|n| counts[..n].iter().sum::<usize>() as u32);
    let owners = counts.iter().enumerate().flat_map(|(n, &count)| std::iter::repeat_n(n as u32, count));
    starts.chain(owners).collect()
}

/// Chunks of a segment, where segments save a quarter of the steps of a chain of `chunks` chunks in `blocks` blocks. `of` has
/// the blocks of both ways through segments of so many chunks.
fn length(chunks: usize, blocks: usize, multiprocessors: usize, of: impl Fn(usize) -> [usize; 2]) -> Option<usize> {
    // A block has a multiprocessor for itself.
    let rounds = |blocks: usize| blocks.div_ceil(multiprocessors.max(1));
    let most = (chunks / SHORTEST).min(MOST);
    // What cannot pay is not counted out: calls of many blocks are the usual ones.
    if most < 2 || 2 * blocks > multiprocessors {
        return None;
    }
    // What all ways through segments of so many chunks take.
    let steps = |each: usize| {
        let segments = chunks.div_ceil(each);
        each * of(each).map(rounds).iter().sum::<usize>() + STEPS_OF_SEGMENT * segments + STEPS_OF_START
    };
    let lengths = (2..=most).map(|count| chunks.div_ceil(count));
    let (taken, each) = lengths.map(|each| (steps(each), each)).min()?;
    (4 * taken <= 3 * chunks).then_some(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every token is in one segment, and segments begin where chunks do.
    #[test]
    fn segments_cover_their_sequences() {
        let dims = Dims::packed(&[200, 1, 128, 129], 2, 8, 8);
        let cut = cut(&dims, 1);
        let lengths: Vec<usize> = cut.sequences.ranges().map(|rows| rows.len()).collect();
        assert_eq!(lengths, [64, 64, 64, 8, 1, 64, 64, 64, 64, 1]);
        assert_eq!((cut.batch, cut.tokens), (1, 458));
        let expected = [0, 4, 5, 7, 10, 0, 0, 0, 0, 1, 2, 2, 3, 3, 3];
        assert_eq!(table(&dims.sequences, 1), expected);
    }

    /// Segments are cut where few blocks leave most of the device idle, and where sequences are long.
    #[test]
    fn segments_pay() {
        // Twice as many columns with those of P, 64 to a block.
        let chosen = |tokens: usize, heads: usize| {
            let chunks = tokens / CHUNK;
            let blocks = |each: usize| [4, 2].map(|columns| columns * heads * chunks.div_ceil(each));
            length(chunks, 2 * heads, 132, blocks).map(|each| chunks.div_ceil(each))
        };
        assert_eq!(chosen(16_384, 4), Some(8));
        assert_eq!(chosen(16_384, 1), Some(13));
        assert_eq!(chosen(16_384, 32), None);
        assert_eq!(chosen(16_384, 64), None);
        assert_eq!(chosen(1024, 1), None);
    }
}
