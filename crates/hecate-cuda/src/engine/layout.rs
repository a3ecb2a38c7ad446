//! How a call is laid out on the device: which kernels, how many blocks, where kept states lie.

use super::{CHUNK, Spec, named};
use crate::{Cuda, launch::Pointer};
use hecate_core::{Dims, Inputs, Read, Result, Rule, Slots, Tensor};

/// Sizes of the kernels of one range of `K`: rows of the memory that a thread holds, threads of a column, threads of a
/// block, columns of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Place among the kernels of a file.
    pub(super) index: usize,
    pub(super) rows: usize,
    pub(super) sharing: usize,
    pub(super) threads: u32,
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

    pub(super) fn is_any(&self) -> bool {
        self.index == CLASSES.len()
    }

    /// Elements of a lane's matrix, rounded up to whole threads.
    pub(super) fn elements(&self) -> usize {
        self.rows * self.threads as usize
    }

    /// `K` rounded up to whole threads.
    pub(super) fn width(&self) -> usize {
        self.rows * self.sharing
    }

    /// Numbers of the forward's scratch, as `scan.cu` lays them out.
    pub(super) fn forward_scratch(&self, spec: Spec) -> usize {
        let own = usize::from(spec.frozen.is_some()) + 2 * usize::from(self.is_any());
        2 * 16 * self.width() + 16 * self.columns + 4 * 16 + own * self.elements()
    }

    /// Numbers of the backward's scratch with the memory noted before each of `sub` tokens, as `scan_backward.cu` lays
    /// them out.
    pub(super) fn backward_scratch(&self, spec: Spec, sub: usize) -> usize {
        let threads = self.threads as usize;
        let tile = 2 * 8 * self.width() + 2 * 8 * self.columns + 4 * 8;
        let sums = threads / 32 * (4 * self.width() + 8) + 3 * sub * threads;
        let own = 2 * usize::from(spec.frozen.is_some()) + 7 * usize::from(self.is_any());
        tile + sums + (spec.matrices() * sub + own) * self.elements()
    }
}

impl Spec {
    /// Matrices of a state.
    pub(super) fn matrices(self) -> usize {
        1 + usize::from(self.momentum)
    }

    /// Matrices of its gradient: with that of `M_c`.
    pub(super) fn records(self) -> usize {
        self.matrices() + usize::from(self.frozen.is_some())
    }
}

/// A call as the kernels see it.
pub(super) struct Layout<'a> {
    pub(super) dims: &'a Dims,
    pub(super) spec: Spec,
    pub(super) class: Class,
    /// Tokens before which the backward notes the memory at once.
    pub(super) sub: usize,
    /// Kept states of all sequences, one head and one block of columns each.
    kept: usize,
    /// First rows of the sequences and the end, then as many first kept states; nothing where all are alike.
    starts: Option<Tensor<Cuda>>,
}

/// `struct Linear` of `linear.cuh`, with arrays and gates.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Call {
    q: crate::launch::Array,
    k: crate::launch::Array,
    v: crate::launch::Array,
    log_a: Pointer,
    log_eta: Pointer,
    theta: Pointer,
    beta: Pointer,
    starts: Pointer,
    tokens: u32,
    kept: u32,
    heads: u32,
    key: u32,
    value: u32,
    blocks: u32,
    frozen: u32,
    period: u32,
    erase: u32,
    before: u32,
    rows_held: u32,
    sequences: u32,
}

impl<'a> Layout<'a> {
    pub(super) fn new(device: &Cuda, dims: &'a Dims, spec: Spec) -> Result<Self> {
        let (class, sub) = choose(dims.key, spec, device.properties().shared_memory);
        let sequences = &dims.sequences;
        let mut first = vec![0];
        for range in sequences.ranges() {
            first.push(first.last().unwrap_or(&0) + kept_states(spec, range.len()));
        }
        let kept = first.last().copied().unwrap_or(0);
        let alike = sequences.ranges().all(|range| range.len() == sequences.longest());
        let starts = match alike {
            true => None,
            false => {
                let table: Vec<u32> = sequences.starts().iter().chain(&first).map(|&x| x as u32).collect();
                Some(device.table(&table)?)
            }
        };
        Ok(Self { dims, spec, class, sub, kept, starts })
    }

    /// Blocks of columns of a head.
    pub(super) fn blocks(&self) -> usize {
        self.dims.value.div_ceil(self.class.columns)
    }

    /// Blocks of threads.
    pub(super) fn lanes(&self) -> usize {
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

    /// Numbers of all kept states of this many matrices.
    pub(super) fn kept_elements(&self, matrices: usize) -> usize {
        self.kept * self.dims.heads * self.blocks() * matrices * self.class.elements()
    }

    /// Kept states of the longest sequence.
    pub(super) fn spans(&self) -> usize {
        kept_states(self.spec, self.dims.sequences.longest())
    }

    pub(super) fn call<R: Rule>(&self, inputs: &Inputs<R, Tensor<Cuda>>) -> Call {
        self.call_in_blocks(inputs, self.blocks())
    }

    /// With columns in this many blocks.
    pub(super) fn call_in_blocks<R: Rule>(&self, inputs: &Inputs<R, Tensor<Cuda>>, blocks: usize) -> Call {
        let gates = R::Gates::list(&inputs.gates);
        let tokens = self.dims.sequences.longest();
        Call {
            q: (&inputs.q).into(),
            k: (&inputs.k).into(),
            v: (&inputs.v).into(),
            log_a: named(&gates, "log_a"),
            log_eta: named(&gates, "log_eta"),
            theta: named(&gates, "theta"),
            beta: named(&gates, "beta"),
            starts: self.starts.as_ref().map_or(0, crate::launch::pointer),
            tokens: tokens as u32,
            kept: kept_states(self.spec, tokens) as u32,
            heads: self.dims.heads as u32,
            key: self.dims.key as u32,
            value: self.dims.value as u32,
            blocks: blocks as u32,
            frozen: self.spec.frozen.unwrap_or(0),
            period: period(self.spec) as u32,
            erase: self.spec.erase as u32,
            before: u32::from(self.spec.read == Read::Before),
            rows_held: self.class.rows as u32,
            sequences: self.dims.sequences.count() as u32,
        }
    }
}

/// The kernels for this `K`, and how many tokens are noted at once: as many as there is room for, shared with a second
/// block on a multiprocessor where blocks are small.
fn choose(key: usize, spec: Spec, shared: usize) -> (Class, usize) {
    let fits = |class: &Class, sub: usize, bytes: usize| 4 * class.backward_scratch(spec, sub) <= bytes;
    let class = CLASSES.iter().find(|(most, _)| key <= *most).map(|(_, class)| *class);
    match class.filter(|class| fits(class, 1, shared) && 4 * class.forward_scratch(spec) <= shared) {
        None => (Class::any(key), 8),
        Some(class) => {
            let room = if class.threads > 256 { shared } else { (shared / 2).saturating_sub(1024) };
            (class, [8, 4, 2].into_iter().find(|&sub| fits(&class, sub, room)).unwrap_or(1))
        }
    }
}

/// States are kept every [`CHUNK`] tokens of each period: a frozen group, or as many short ones as fit into a chunk.
fn period(spec: Spec) -> usize {
    match spec.frozen.map(|group| (group as usize).max(1)) {
        None => CHUNK,
        Some(group) => group * (CHUNK / group).max(1),
    }
}

/// Kept states of a sequence.
fn kept_states(spec: Spec, tokens: usize) -> usize {
    let period = period(spec);
    tokens / period * period.div_ceil(CHUNK) + (tokens % period).div_ceil(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::{super::Strength, *};

    #[test]
    fn kept_states_are_few() {
        let spec = |frozen| Spec { read: Read::After, frozen, momentum: false, erase: Strength::Nothing };
        for (frozen, tokens, count) in [
            (None, 1, 1),
            (None, 64, 1),
            (None, 65, 2),
            (Some(5), 60, 1),
            (Some(5), 61, 2),
            (Some(33), 66, 2),
            (Some(64), 130, 3),
            (Some(100), 100, 2),
            (Some(100), 101, 3),
        ] {
            assert_eq!(kept_states(spec(frozen), tokens), count, "{frozen:?} {tokens}");
        }
    }

    #[test]
    fn classes_hold_their_keys() {
        let spec = Spec { read: Read::After, frozen: Some(4), momentum: true, erase: Strength::Theta };
        for (key, any) in [(1, false), (16, false), (17, false), (64, false), (128, false), (129, true), (300, true)] {
            let (class, sub) = choose(key, spec, 163 << 10);
            assert_eq!(class.is_any(), any, "{key}");
            assert!(class.width() >= key && 8 % sub == 0, "{key}");
        }
        assert!(!choose(256, spec, 227 << 10).0.is_any());
    }
}
