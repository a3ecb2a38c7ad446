//! Gradients of queries, keys, values and gates of rules that are not frozen: equations (23)–(32), but for the systems of
//! (19) and (24), whose solutions are known. A workgroup has a chunk of one head, and makes its products from slices in
//! workgroup memory; between kernels lie two squares a chunk.

use super::{
    chunk::GATE_GRADIENTS,
    layout::{CHUNK, Layout, LinearArgs, MOMENTUM},
    scan::{ARGS, LINEAR, ScanResults, gate2},
};
use crate::{
    Wgpu,
    launch::{
        Binding::{Read, Write},
        Kernel, PRELUDE, WgslSource,
    },
    parameters::Parameters,
};
use hecate_core::{Result, Tensor, families::LinearInputs};

/// What the kernels of a chunk share.
const CHUNKS: &str = include_str!("gradients/chunks.wgsl");
/// Products of rows of slices.
const PRODUCTS: &str = include_str!("gradients/products.wgsl");
/// Rows of any length, and of a multiple of four elements.
const FOURS: [&str; 2] = [include_str!("gradients/fours.wgsl"), include_str!("gradients/fours_wide.wgsl")];

/// A source for rows of any length, and one for rows of a multiple of four.
macro_rules! sources {
    ($names:expr, $file:literal $(, $more:expr)*) => {
        [
            WgslSource {
                name: $names[0],
                parts: &[PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, CHUNKS, $($more,)* FOURS[0], include_str!($file)],
            },
            WgslSource {
                name: $names[1],
                parts: &[PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, CHUNKS, $($more,)* FOURS[1], include_str!($file)],
            },
        ]
    };
}

/// By states, (27), (28).
static STATES: [WgslSource; 2] = sources!(["states", "states_wide"], "gradients/states.wgsl", PRODUCTS);
/// Squares and the tables of a chunk.
static TABLES: [WgslSource; 2] = sources!(["tables", "tables_wide"], "gradients/tables.wgsl", PRODUCTS);
/// By tokens of the chunk, (27), (28).
static KEYS: [WgslSource; 2] = sources!(["keys", "keys_wide"], "gradients/keys.wgsl");
/// Sums over a token's values.
static STRENGTHS: WgslSource = WgslSource {
    name: "strengths",
    parts: &[PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, include_str!("gradients/strengths.wgsl")],
};
/// Gradients of gates.
static GATES: WgslSource = WgslSource {
    name: "gates",
    parts: &[PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, CHUNKS, GATE_GRADIENTS, include_str!("gradients/gates.wgsl")],
};

/// Kernels of both widths.
const fn of_widths(sources: &'static [WgslSource; 2], entry: &'static str) -> [Kernel<'static>; 4] {
    [
        Kernel { source: &sources[0], entry, constants: MOMENTUM[0] },
        Kernel { source: &sources[1], entry, constants: MOMENTUM[0] },
        Kernel { source: &sources[0], entry, constants: MOMENTUM[1] },
        Kernel { source: &sources[1], entry, constants: MOMENTUM[1] },
    ]
}

/// Of the same texts for every rule.
const OF_RULES: [Kernel<'static>; 4] = [
    Kernel { source: &KEYS[0], entry: "keys", constants: &[] },
    Kernel { source: &KEYS[1], entry: "keys", constants: &[] },
    Kernel { source: &STRENGTHS, entry: "strengths", constants: &[] },
    Kernel { source: &GATES, entry: "gradients", constants: &[] },
];

/// All of them.
const ALL: [[Kernel<'static>; 4]; 3] = [of_widths(&STATES, "states"), of_widths(&TABLES, "tables"), OF_RULES];
/// For the test that compiles them.
pub(crate) const KERNELS: &[Kernel<'static>] = ALL.as_flattened();

/// Bytes that the elements of the chunks at work may take, on a GPU with memory of its own and elsewhere: room for 1,900
/// chunks, which is more than a large GPU has at once.
const SPACE: [usize; 2] = [64 << 20, 16 << 20];

/// Elements of the space that a chunk has: two squares `[64,64]` and eight vectors `[64]`; see `chunks.wgsl`.
const ELEMENTS: usize = 2 * CHUNK * CHUNK + 8 * CHUNK;

/// Which states a kernel multiplies by; see `states.wgsl`.
const READS: u32 = 0;
const AFTER: u32 = 1;
const ERASED: u32 = 2;

/// Some chunks of a call, all kernels over which have the same space.
struct Chunks<'a> {
    /// The call.
    layout: &'a Layout<'a>,
    /// What the scans before left.
    scans: &'a ScanResults,
    /// The call's inputs, in 32 bits.
    inputs: &'a LinearInputs<Tensor<Wgpu>>,
    /// Gradients of the outputs `[rows,H,V]`.
    dout: &'a Tensor<Wgpu>,
    /// Gradients that are written.
    dinputs: &'a LinearInputs<Tensor<Wgpu>>,
    /// What all kernels over these chunks read and write.
    space: &'a Tensor<Wgpu>,
    /// Of the third gate `[rows,H]`; memory that nobody reads where there is none.
    gate2: &'a Tensor<Wgpu>,
    /// First chunk.
    first: usize,
    /// Number of chunks.
    count: usize,
}

/// Writes all gradients but that of the initial state.
pub(super) fn run(
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Wgpu>>,
    dout: &Tensor<Wgpu>,
    scans: &ScanResults,
    dinputs: &LinearInputs<Tensor<Wgpu>>,
) -> Result<()> {
    let (all, at_once) = (layout.chunks(), layout.chunks_at_once(SPACE, ELEMENTS));
    let space = &layout.scratch(at_once * ELEMENTS)?;
    // Every rule's kernels write three gates.
    let nothing = layout.scratch(layout.scalars())?;
    let gate2 = gate2(dinputs).unwrap_or(&nothing);
    let chunks = Chunks { layout, scans, inputs, dout, dinputs, space, gate2, first: 0, count: 0 };
    chunks.strengths()?;
    for first in (0..all).step_by(at_once) {
        let chunks = Chunks { first, count: at_once.min(all - first), ..chunks };
        chunks.states()?;
        chunks.tables()?;
        chunks.keys()?;
        chunks.gates()?;
    }
    Ok(())
}

impl Chunks<'_> {
    /// Arguments of a kernel with a workgroup a chunk; rows of x, y and z have `width` elements.
    fn args(&self, width: usize) -> LinearArgs {
        LinearArgs { first: self.first as u32, width: width as u32, ..self.layout.args(self.count) }
    }

    /// Which source: whether all rows are read four elements at a time.
    fn wide(&self) -> usize {
        usize::from(self.layout.dims.key.is_multiple_of(4) && self.layout.dims.value.is_multiple_of(4))
    }

    /// The gradients of values, and what is written where no scan found it. Leaves dw and dr in place of the gates' gradients, for
    /// all tokens.
    fn strengths(&self) -> Result<()> {
        let Self { layout, scans, inputs, dinputs, .. } = self;
        let bindings = [
            Read(&scans.work),
            Read(&scans.dz),
            Read(&inputs.v),
            // Without erase nobody reads this one.
            Read(scans.predicted.as_ref().unwrap_or(&scans.dz)),
            Write(&dinputs.v),
            Write(&dinputs.theta),
            Write(self.gate2),
            Write(&scans.z),
        ];
        // Sixteen tokens and heads a workgroup.
        let args = layout.args(layout.scalars().div_ceil(16));
        layout.launch_workgroups(&STRENGTHS, "strengths", &[], &args, &bindings)
    }

    /// The states around chunks: the first of each gradient, and sums of (31).
    fn states(&self) -> Result<()> {
        let Self { layout, scans, inputs, dinputs, .. } = self;
        // Which states, keys or queries, rows `[rows,H,V]`, matrices, the gradient, whether it has begun.
        let mut all = vec![
            (READS, &inputs.q, self.dout, &scans.kept, &dinputs.q, 0),
            (AFTER, &inputs.k, &scans.z, &scans.kept_grads, &dinputs.k, 0),
        ];
        if layout.spec.erases() {
            all.push((ERASED, &inputs.k, &scans.dz, &scans.kept, &dinputs.k, 1));
        }
        for (slot, keys, rows, states, grads, offset) in all {
            let args = LinearArgs { slot, offset, ..self.args(layout.dims.value) };
            let bindings = [Read(&scans.work), Read(keys), Read(rows), Read(states), Write(self.space), Write(grads)];
            layout.launch_workgroups(&STATES[self.wide()], "states", layout.momentum(), &args, &bindings)?;
        }
        Ok(())
    }

    /// dN, dG, and what the tables give to the gates.
    fn tables(&self) -> Result<()> {
        let Self { layout, scans, inputs, .. } = self;
        let bindings = [
            Read(&scans.work),
            Read(&inputs.k),
            Read(self.dout),
            Read(&scans.dz),
            Read(&scans.z),
            Read(&inputs.q),
            Write(self.space),
        ];
        let args = self.args(layout.dims.value);
        layout.launch_workgroups(&TABLES[self.wide()], "tables", layout.momentum(), &args, &bindings)
    }

    /// The rest of the gradients of queries and keys.
    fn keys(&self) -> Result<()> {
        let Self { layout, inputs, dinputs, .. } = self;
        let bindings = [
            Read(&self.scans.work),
            Read(&inputs.k),
            Read(&inputs.q),
            Read(self.space),
            Write(&dinputs.q),
            Write(&dinputs.k),
        ];
        layout.launch_workgroups(&KEYS[self.wide()], "keys", &[], &self.args(layout.dims.key), &bindings)
    }

    /// The gradients of the gates.
    fn gates(&self) -> Result<()> {
        let Self { layout, scans, dinputs, .. } = self;
        let bindings = [
            Read(&scans.work),
            Read(&scans.kept),
            Read(&scans.kept_grads),
            Read(self.space),
            Write(&dinputs.log_a),
            Write(&dinputs.theta),
            Write(self.gate2),
        ];
        layout.launch_workgroups(&GATES, "gradients", &[], &self.args(layout.dims.value), &bindings)
    }
}
