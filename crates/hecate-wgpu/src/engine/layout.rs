//! How a call is laid out on the device: where its tokens, states and spans lie, and in how many pieces it runs.

use super::{
    CHUNK, Spec,
    shape::{self, Shape},
};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, Source},
};
use hecate_core::{DType, Dims, Read, Result, Tensor};

/// `struct Args` of `linear.wgsl`.
#[derive(Clone, Copy, Debug, Default, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct Args {
    pub(super) tokens: u32,
    pub(super) kept: u32,
    pub(super) heads: u32,
    pub(super) sequences: u32,
    pub(super) key: u32,
    pub(super) value: u32,
    pub(super) frozen: u32,
    pub(super) period: u32,
    pub(super) erase: u32,
    pub(super) before: u32,
    pub(super) differ: u32,
    pub(super) spans: u32,
    pub(super) starts: u32,
    pub(super) m: u32,
    pub(super) s: u32,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) scalars: u32,
    pub(super) states: u32,
    pub(super) width: u32,
    pub(super) slot: u32,
    pub(super) offset: u32,
    pub(super) lagging: u32,
    pub(super) keep: u32,
    pub(super) matrices: u32,
    pub(super) unused: [u32; 3],
}

/// A call as the kernels see it.
pub(super) struct Layout<'a> {
    pub(super) device: &'a Wgpu,
    pub(super) dims: &'a Dims,
    pub(super) spec: Spec,
    /// Kept states of all sequences, of one head.
    kept: usize,
    /// First rows of the sequences and the end, then as many first kept states; nothing where all are alike.
    pub(super) starts: Option<Tensor<Wgpu>>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(device: &'a Wgpu, dims: &'a Dims, spec: Spec) -> Result<Self> {
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
        Ok(Self { device, dims, spec, kept, starts })
    }

    /// Numbers about to be written; at least four, because nothing can be bound to none.
    pub(super) fn room(&self, numbers: usize) -> Result<Tensor<Wgpu>> {
        self.device.empty([numbers.max(4)], DType::F32)
    }

    /// Rows times heads.
    pub(super) fn scalars(&self) -> usize {
        self.dims.sequences.rows() * self.dims.heads
    }

    /// Sequences times heads.
    pub(super) fn states(&self) -> usize {
        self.dims.sequences.count() * self.dims.heads
    }

    /// Numbers of all matrices `[N,H,K,V]`.
    pub(super) fn matrices(&self) -> usize {
        self.states() * self.dims.key * self.dims.value
    }

    /// Numbers of all kept states.
    pub(super) fn kept_elements(&self) -> usize {
        self.kept * self.dims.heads * self.spec.matrices() * self.dims.key * self.dims.value
    }

    /// Kept states of the longest sequence.
    fn spans(&self) -> usize {
        kept_states(self.spec, self.dims.sequences.longest())
    }

    /// Chunks of all sequences and heads, all as many as the longest has.
    pub(super) fn chunks(&self) -> usize {
        self.states() * self.spans()
    }

    /// Frozen groups that are longer than a chunk: their first memory is that of another chunk.
    pub(super) fn has_long_groups(&self) -> bool {
        self.spec.frozen.is_some() && period(self.spec) > CHUNK
    }

    /// Where the parts of `work` begin, and its end; see `args.wgsl`.
    fn parts(&self) -> [usize; 4] {
        let starts = 4 * self.scalars();
        let m = starts + 2 * (self.dims.sequences.count() + 1);
        let s = m + self.matrices();
        [starts, m, s, s + if self.spec.momentum { self.matrices() } else { 0 }]
    }

    /// Memory of a pass.
    pub(super) fn work(&self) -> Result<Tensor<Wgpu>> {
        self.device.empty([self.parts()[3]], DType::U32)
    }

    /// Arguments of a kernel with `count` threads.
    pub(super) fn args(&self, count: usize) -> Args {
        let (dims, tokens) = (self.dims, self.dims.sequences.longest());
        let [starts, m, s, _] = self.parts();
        Args {
            tokens: tokens as u32,
            kept: kept_states(self.spec, tokens) as u32,
            heads: dims.heads as u32,
            sequences: dims.sequences.count() as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            frozen: self.spec.frozen.unwrap_or(0),
            period: period(self.spec) as u32,
            erase: self.spec.erase as u32,
            before: u32::from(self.spec.read == Read::Before),
            differ: u32::from(self.starts.is_some()),
            spans: self.spans() as u32,
            starts: starts as u32,
            m: m as u32,
            s: s as u32,
            count: count as u32,
            scalars: self.scalars() as u32,
            states: self.matrices() as u32,
            matrices: self.spec.matrices() as u32,
            ..Args::default()
        }
    }

    /// What of the rule a kernel is compiled for, if it is at all.
    pub(super) fn constants(&self) -> [(&'static str, u32); 2] {
        [("MOMENTUM", u32::from(self.spec.momentum)), ("FROZEN", u32::from(self.spec.frozen.is_some()))]
    }

    /// Starts `entry`, an invocation for each of `args.count`.
    pub(super) fn launch(
        &self,
        source: &'static Source,
        entry: &'static str,
        constants: &[(&'static str, u32)],
        args: &Args,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        let kernel = Kernel { source, entry, constants };
        self.start(&kernel, (args.count as usize).div_ceil(64), args, bindings)
    }

    #[expect(unsafe_code, reason = "the engine's kernels are unchecked")]
    fn start(&self, kernel: &Kernel<'_>, groups: usize, args: &Args, bindings: &[Binding<'_>]) -> Result<()> {
        // SAFETY: the kernels of this folder keep tokens, rows and columns below the lengths that `args` has of the arrays
        // made for them, and what they share or hold by the constants that give its length; their loops count to such
        // lengths; they divide by lengths, which the core lets nobody make zero.
        unsafe { self.device.launch_unchecked(kernel, (groups, 1, 1), args, bindings) }
    }

    /// Starts a scan over this many states or spans, by workgroups with a block of columns each; `keep` says whether it
    /// writes states along the way.
    pub(super) fn scan(
        &self,
        source: impl Fn(&Shape) -> &'static Source,
        entry: &'static str,
        states: usize,
        keep: bool,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        let dims = self.dims;
        let Some(shape) = Shape::new(self.device, dims) else {
            let why = format!("keys of {} numbers; {} at most: use more heads", dims.key, shape::LONGEST);
            return Err(unsupported("this rule", why));
        };
        let [momentum, frozen] = self.constants();
        let constants = [
            momentum,
            frozen,
            ("WHOLE", (dims.key == shape.rows * shape.parts).into()),
            ("ROWS", shape.rows as u32),
            ("PARTS", shape.parts as u32),
            ("THREADS", shape.threads as u32),
            ("TILE", shape.tile as u32),
            // No text reads it: it tells two kernels of one name apart.
            ("SUBGROUPS", shape.subgroups.into()),
        ];
        let count = states * dims.value.div_ceil(shape.threads / shape.parts);
        let args = Args { keep: keep.into(), ..self.args(count) };
        let kernel = Kernel { source: source(&shape), entry, constants: &constants };
        self.start(&kernel, count, &args, bindings)
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
}
