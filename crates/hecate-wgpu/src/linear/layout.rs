//! How a call is laid out on the device: where its tokens, states and segments lie, and with which arguments its kernels start.

use super::shape::{self, Shape};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, WgslSource},
    parameters::parameters,
};
use hecate_core::{Checkpoints, DType, Dims, Read, Result, Tensor, families::LinearSpec};

/// Tokens between kept states.
pub(super) const CHUNK: usize = Checkpoints::INTERVAL;

/// What a kernel is compiled for of a rule without momentum, and of one with it.
pub(super) const MOMENTUM: [&[(&str, u32)]; 2] = [&[("MOMENTUM", 0)], &[("MOMENTUM", 1)]];

parameters! {
    /// `struct LinearArgs` of `linear.wgsl`.
    #[derive(Default)]
    pub(super) struct LinearArgs {
        /// Tokens of every sequence, where all are alike.
        pub(super) tokens: u32,
        /// Kept states of every sequence, where all are alike.
        pub(super) kept: u32,
        /// `H`.
        pub(super) heads: u32,
        /// `N`.
        pub(super) sequences: u32,
        /// `K`.
        pub(super) key: u32,
        /// `V`.
        pub(super) value: u32,
        /// `G`; 0 where the rule is not frozen.
        pub(super) frozen: u32,
        /// Tokens from which kept states are counted.
        pub(super) period: u32,
        /// How `r` follows from the gates.
        pub(super) erase: u32,
        /// 1 where a token reads before its write.
        pub(super) before: u32,
        /// 1 where sequences differ in length.
        pub(super) differ: u32,
        /// Segments of the longest sequence.
        pub(super) segments: u32,
        /// Where the table of sequences begins in `work`.
        pub(super) starts: u32,
        /// Where `M [N,H,K,V]` begins in `work`.
        pub(super) m: u32,
        /// Where `S [N,H,K,V]` begins in `work`.
        pub(super) s: u32,
        /// First chunk of those at work.
        pub(super) first: u32,
        /// Invocations or, for scans, workgroups that have work.
        pub(super) count: u32,
        /// Rows times `H`.
        pub(super) scalars: u32,
        /// Elements of all `M`.
        pub(super) states: u32,
        /// Length of the rows of a product.
        pub(super) width: u32,
        /// Which square or product is made.
        pub(super) slot: u32,
        /// 0 for `M`, 1 for `S` in a kept state.
        pub(super) offset: u32,
        /// 1 for the first state of the period.
        pub(super) lagging: u32,
        /// 1 where a scan writes states along the way.
        pub(super) keep: u32,
        /// 2 with an `S`, else 1.
        pub(super) matrices: u32,
    }
}

/// A call as the kernels see it.
pub(super) struct Layout<'a> {
    /// Where it runs.
    pub(super) device: &'a Wgpu,
    /// Sizes of the call.
    pub(super) dims: &'a Dims,
    /// What the engine knows of the rule.
    pub(super) spec: LinearSpec,
    /// Which states are kept.
    checkpoints: Checkpoints,
    /// Kept states of all sequences, of one head.
    kept: usize,
    /// First rows of the sequences and the end, then as many first kept states; nothing where all are alike.
    pub(super) starts: Option<Tensor<Wgpu>>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(device: &'a Wgpu, dims: &'a Dims, spec: LinearSpec) -> Result<Self> {
        let checkpoints = Checkpoints::new(spec.frozen);
        let (kept, table) = (checkpoints.total(&dims.sequences), checkpoints.table_if_unlike(&dims.sequences));
        let starts = table.map(|table| device.table(&table)).transpose()?;
        Ok(Self { device, dims, spec, checkpoints, kept, starts })
    }

    /// Elements about to be written; at least four, because nothing can be bound to none.
    pub(super) fn scratch(&self, elements: usize) -> Result<Tensor<Wgpu>> {
        self.device.empty([elements.max(4)], DType::F32)
    }

    /// Rows times heads.
    pub(super) fn scalars(&self) -> usize {
        self.dims.sequences.rows() * self.dims.heads
    }

    /// Sequences times heads.
    pub(super) fn states(&self) -> usize {
        self.dims.sequences.count() * self.dims.heads
    }

    /// Elements of all matrices `[N,H,K,V]`.
    pub(super) fn matrices(&self) -> usize {
        self.states() * self.dims.key * self.dims.value
    }

    /// Elements of all kept states.
    pub(super) fn kept_elements(&self) -> usize {
        self.kept * self.dims.heads * self.spec.matrices() * self.dims.key * self.dims.value
    }

    /// Kept states of the longest sequence.
    fn segments(&self) -> usize {
        self.checkpoints.count(self.dims.sequences.longest())
    }

    /// Chunks of all sequences and heads, all as many as the longest has.
    pub(super) fn chunks(&self) -> usize {
        self.states() * self.segments()
    }

    /// Frozen groups that are longer than a chunk: their first memory is that of another chunk.
    pub(super) fn has_long_groups(&self) -> bool {
        self.spec.frozen.is_some() && self.checkpoints.period() > CHUNK
    }

    /// Where the parts of `work` begin, and its end; see `args.wgsl`.
    fn parts(&self) -> [usize; 4] {
        // Four scalars a row and head, the table, M, S.
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
    pub(super) fn args(&self, count: usize) -> LinearArgs {
        let (dims, tokens) = (self.dims, self.dims.sequences.longest());
        let [starts, m, s, _] = self.parts();
        LinearArgs {
            tokens: tokens as u32,
            kept: self.checkpoints.count(tokens) as u32,
            heads: dims.heads as u32,
            sequences: dims.sequences.count() as u32,
            key: dims.key as u32,
            value: dims.value as u32,
            frozen: self.spec.frozen.unwrap_or(0),
            period: self.checkpoints.period() as u32,
            erase: self.spec.erase.number(),
            before: u32::from(self.spec.read == Read::Before),
            differ: u32::from(self.starts.is_some()),
            segments: self.segments() as u32,
            starts: starts as u32,
            m: m as u32,
            s: s as u32,
            count: count as u32,
            scalars: self.scalars() as u32,
            states: self.matrices() as u32,
            matrices: self.spec.matrices() as u32,
            ..LinearArgs::default()
        }
    }

    /// What of the rule a kernel of the gradients is compiled for, if it is at all.
    pub(super) fn momentum(&self) -> &'static [(&'static str, u32)] {
        MOMENTUM[usize::from(self.spec.momentum)]
    }

    /// Chunks, of so many elements each, that one array has at once: of up to so many bytes on a GPU with memory of its own
    /// and elsewhere. The rest follow in later rounds, in the same array.
    pub(super) fn chunks_at_once(&self, bytes: [usize; 2], elements: usize) -> usize {
        let adapter = self.device.adapter();
        let bytes = bytes[usize::from(adapter.kind != "discrete GPU")].min(adapter.largest_array as usize);
        (bytes / 4 / elements).clamp(1, self.chunks().max(1))
    }

    /// Starts `entry`, an invocation for each of `args.count`.
    pub(super) fn launch(
        &self,
        source: &'static WgslSource,
        entry: &'static str,
        constants: &[(&'static str, u32)],
        args: &LinearArgs,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        let kernel = Kernel { source, entry, constants };
        self.start(&kernel, (args.count as usize).div_ceil(64), args, bindings)
    }

    /// Starts `entry`, a workgroup for each of `args.count`.
    pub(super) fn launch_workgroups(
        &self,
        source: &'static WgslSource,
        entry: &'static str,
        constants: &[(&'static str, u32)],
        args: &LinearArgs,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        self.start(&Kernel { source, entry, constants }, args.count as usize, args, bindings)
    }

    #[expect(unsafe_code, reason = "the engine's kernels are unchecked")]
    fn start(&self, kernel: &Kernel<'_>, groups: usize, args: &LinearArgs, bindings: &[Binding<'_>]) -> Result<()> {
        // SAFETY: the kernels of this folder keep tokens, rows and columns below the lengths that `args` has of the arrays
        // made for them. What they share or hold they keep below the constants that give its length. Their loops count to
        // such lengths. They divide by lengths, which the core lets nobody make zero.
        unsafe { self.device.launch_unchecked(kernel, (groups, 1, 1), args, bindings) }
    }

    /// Starts a scan over this many states or segments, by workgroups with a block of columns each; `keep` says whether it
    /// writes states along the way.
    pub(super) fn scan(
        &self,
        source: impl Fn(&Shape) -> &'static WgslSource,
        entry: &'static str,
        states: usize,
        keep: bool,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        let dims = self.dims;
        // A column must fit the registers of one workgroup.
        let Some(shape) = Shape::new(self.device, dims) else {
            let why = format!("keys of {} elements; {} at most: use more heads", dims.key, shape::LONGEST);
            return Err(unsupported("this rule", why));
        };
        // A round a token, those of its sums over a column's invocations, and rows that are kept after every 64.
        let rounds = dims.sequences.longest().saturating_mul(1 + shape.parts + shape.rows / 16);
        self.device.check_rounds("a sequence of this length", rounds)?;
        let constants = [
            ("MOMENTUM", self.spec.momentum.into()),
            ("FROZEN", self.spec.frozen.is_some().into()),
            ("WHOLE", (dims.key == shape.rows * shape.parts).into()),
            ("ROWS", shape.rows as u32),
            ("PARTS", shape.parts as u32),
            ("THREADS", shape.threads as u32),
            ("TILE", shape.tile as u32),
            // No text reads it: it tells two kernels of one name apart.
            ("SUBGROUPS", shape.subgroups.into()),
        ];
        // Workgroups: a block of columns of each state.
        let count = states * dims.value.div_ceil(shape.threads / shape.parts);
        let args = LinearArgs { keep: keep.into(), ..self.args(count) };
        let kernel = Kernel { source: source(&shape), entry, constants: &constants };
        self.start(&kernel, count, &args, bindings)
    }
}
