//! Gradients of queries, keys, values and gates: equations (23)–(32), but for the systems of (19) and (24), whose
//! solutions are known. All chunks at once, as many as fit into [`SPACE`] and one array.

use super::{
    CHUNK,
    layout::{Args, Layout},
    named,
    scan::{ARGS, Known, LINEAR},
};
use crate::{
    Wgpu,
    launch::{
        Binding::{Read, Write},
        Kernel, PRELUDE, Source,
    },
};
use hecate_core::{Inputs, Result, Rule, Slots, Tensor};

/// Bytes that the numbers of the chunks at work may take, on a GPU with memory of its own and elsewhere. A large GPU
/// takes little longer over twice the chunks that 64 MiB hold, some 490 where K and V are 64.
const SPACE: [usize; 2] = [256 << 20, 64 << 20];

const CHUNKS: &str = include_str!("chunk.wgsl");
const PAIRS: &str = include_str!("pairs.wgsl");
const PAIRS_WIDE: &str = include_str!("pairs_wide.wgsl");

macro_rules! source {
    ($id:ident, $name:literal, $file:literal $(, $more:expr)*) => {
        static $id: Source =
            Source { name: $name, parts: &[PRELUDE, ARGS, LINEAR, CHUNKS, $($more,)* include_str!($file)] };
    };
}

source!(PRODUCTS, "chunk_products", "chunk_products.wgsl", PAIRS);
source!(PRODUCTS_WIDE, "chunk_products_wide", "chunk_products.wgsl", PAIRS_WIDE);
source!(SUMS, "chunk_sums", "chunk_sums.wgsl", PAIRS);
source!(SUMS_WIDE, "chunk_sums_wide", "chunk_sums.wgsl", PAIRS_WIDE);
source!(ENDS, "chunk_ends", "chunk_ends.wgsl");
source!(TABLES, "chunk_tables", "chunk_tables.wgsl");
source!(DKEYS, "chunk_keys", "chunk_keys.wgsl", PAIRS);
source!(DKEYS_WIDE, "chunk_keys_wide", "chunk_keys.wgsl", PAIRS_WIDE);
source!(GATES, "chunk_gates", "chunk_gates.wgsl");

const fn kernel(source: &'static Source, entry: &'static str) -> Kernel<'static> {
    Kernel { source, entry, constants: &[] }
}

/// Of a kernel that is compiled for what the rule is.
const fn of_rule(source: &'static Source, entry: &'static str) -> [Kernel<'static>; 2] {
    [
        Kernel { source, entry, constants: &[("MOMENTUM", 0), ("FROZEN", 1)] },
        Kernel { source, entry, constants: &[("MOMENTUM", 1), ("FROZEN", 0)] },
    ]
}

/// For the test that compiles them.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    kernel(&PRODUCTS, "square"),
    kernel(&PRODUCTS_WIDE, "square"),
    kernel(&PRODUCTS, "state"),
    kernel(&PRODUCTS_WIDE, "state"),
    kernel(&SUMS, "sums"),
    kernel(&SUMS_WIDE, "sums"),
    kernel(&ENDS, "ends"),
    kernel(&GATES, "gates"),
];
const OF_RULES: [[Kernel<'static>; 2]; 3] =
    [of_rule(&TABLES, "tables"), of_rule(&DKEYS, "keys"), of_rule(&DKEYS_WIDE, "keys")];
/// For the test that compiles them.
pub(crate) const RULE_KERNELS: &[Kernel<'static>] = OF_RULES.as_flattened();

/// The squares of a chunk, as numbered in `chunk.wgsl`.
const KEYS_KEYS: u32 = 0;
const QUERIES_KEYS: u32 = 1;
const ADJOINT_WRITES: u32 = 2;
const OUT_WRITES: u32 = 3;
/// The products of a chunk's values and a state.
const OUT_M: u32 = 0;
const WRITES_DM: u32 = 1;
const ADJOINT_M: u32 = 2;
const ADJOINT_GROUP: u32 = 3;
const OUT_S: u32 = 4;
const WRITES_DS: u32 = 5;
const ADJOINT_S: u32 = 6;

/// Some chunks of a call, all kernels over which have the same space.
struct Chunks<'a> {
    layout: &'a Layout<'a>,
    known: &'a Known,
    space: &'a Tensor<Wgpu>,
    first: usize,
    count: usize,
}

/// Numbers that a chunk has in the space; see `chunk.wgsl`.
fn numbers(layout: &Layout<'_>) -> usize {
    let (key, products) = (layout.dims.key, if layout.spec.momentum { 7 } else { 4 });
    4 * CHUNK * CHUNK + 16 * (CHUNK + 1) + 4 * layout.dims.value + products * CHUNK * key.next_multiple_of(4)
}

/// Threads for `[64, width]`, four by four numbers each, in blocks of 32; see `chunk.wgsl`.
fn tiles(width: usize) -> usize {
    CHUNK / 16 * width.div_ceil(32) * 32
}

/// Of two sources, the one for rows of this length.
fn for_width(width: usize, narrow: &'static Source, wide: &'static Source) -> &'static Source {
    if width.is_multiple_of(4) { wide } else { narrow }
}

/// Writes all gradients but that of the initial state.
pub(super) fn run<R: Rule>(
    layout: &Layout<'_>,
    inputs: &Inputs<R, Tensor<Wgpu>>,
    dout: &Tensor<Wgpu>,
    known: &Known,
    dinputs: &Inputs<R, Tensor<Wgpu>>,
) -> Result<()> {
    let all = layout.chunks();
    let adapter = layout.device.adapter();
    let space = SPACE[usize::from(adapter.kind != "discrete GPU")].min(adapter.largest_array as usize);
    let at_once = (space / 4 / numbers(layout)).clamp(1, all.max(1));
    let space = layout.room(at_once * numbers(layout))?;
    for first in (0..all).step_by(at_once) {
        let chunks = Chunks { layout, known, space: &space, first, count: at_once.min(all - first) };
        chunks.squares(inputs, dout)?;
        chunks.states(dout)?;
        chunks.sums(inputs, dinputs)?;
        chunks.tables()?;
        chunks.write(inputs, dinputs)?;
    }
    Ok(())
}

impl Chunks<'_> {
    /// Arguments of a kernel with so many threads a chunk.
    fn args(&self, threads: usize) -> Args {
        Args { first: self.first as u32, ..self.layout.args(self.count * threads) }
    }

    /// The same of one whose rows are queries and keys.
    fn key_args(&self, threads: usize) -> Args {
        Args { width: self.layout.dims.key as u32, ..self.args(threads) }
    }

    /// `N`, `G`, `Λ Zᵀ`, `dO Zᵀ`.
    fn squares<R: Rule>(&self, inputs: &Inputs<R, Tensor<Wgpu>>, dout: &Tensor<Wgpu>) -> Result<()> {
        let (dims, spec, known) = (self.layout.dims, self.layout.spec, self.known);
        let mut all = vec![(QUERIES_KEYS, &inputs.q, &inputs.k, dims.key), (OUT_WRITES, dout, &known.z, dims.value)];
        if spec.erases() || spec.frozen.is_some() {
            all.push((KEYS_KEYS, &inputs.k, &inputs.k, dims.key));
            all.push((ADJOINT_WRITES, &known.dz, &known.z, dims.value));
        }
        for (slot, x, y, width) in all {
            let args = Args { slot, width: width as u32, ..self.args(tiles(CHUNK)) };
            let bindings = [Read(&known.work), Read(x), Read(y), Write(self.space)];
            self.layout.launch(for_width(width, &PRODUCTS, &PRODUCTS_WIDE), "square", &[], &args, &bindings)?;
        }
        Ok(())
    }

    /// `dO`, `Z` and `Λ` times the states around the chunk, transposed.
    fn states(&self, dout: &Tensor<Wgpu>) -> Result<()> {
        let (spec, known) = (self.layout.spec, self.known);
        let mut all = vec![(OUT_M, dout, &known.kept, 0, 0), (WRITES_DM, &known.z, &known.kept_grads, 0, 0)];
        if spec.erases() || spec.frozen.is_some() {
            all.push((ADJOINT_M, &known.dz, &known.kept, 0, 0));
        }
        if self.layout.has_long_groups() {
            all.push((ADJOINT_GROUP, &known.dz, &known.kept, 0, 1));
        }
        if spec.momentum {
            all.push((OUT_S, dout, &known.kept, 1, 0));
            all.push((WRITES_DS, &known.z, &known.kept_grads, 1, 0));
            all.push((ADJOINT_S, &known.dz, &known.kept, 1, 0));
        }
        let (threads, width) = (tiles(self.layout.dims.key), self.layout.dims.value);
        let source = for_width(width, &PRODUCTS, &PRODUCTS_WIDE);
        for (slot, x, y, offset, lagging) in all {
            let args = Args { slot, width: width as u32, offset, lagging, ..self.args(threads) };
            let bindings = [Read(&known.work), Read(x), Read(y), Write(self.space)];
            self.layout.launch(source, "state", &[], &args, &bindings)?;
        }
        Ok(())
    }

    /// Sums over rows; the gradient of the values.
    fn sums<R: Rule>(&self, inputs: &Inputs<R, Tensor<Wgpu>>, dinputs: &Inputs<R, Tensor<Wgpu>>) -> Result<()> {
        let known = self.known;
        let bindings = [
            Read(&known.work),
            Read(&inputs.q),
            Read(&inputs.k),
            Write(self.space),
            Read(&known.dz),
            Read(known.targets.as_ref().unwrap_or(&inputs.v)),
            Read(known.predicted.as_ref().unwrap_or(&known.z)),
            Write(&dinputs.v),
        ];
        self.layout.launch(
            for_width(self.layout.dims.key, &SUMS, &SUMS_WIDE),
            "sums",
            &[],
            &self.key_args(CHUNK),
            &bindings,
        )?;
        let bindings = [Read(&known.work), Read(&known.kept), Read(&known.kept_grads), Write(self.space)];
        self.layout.launch(&ENDS, "ends", &[], &self.args(self.layout.dims.value), &bindings)
    }

    /// The tables, and the way back through them.
    fn tables(&self) -> Result<()> {
        let bindings = [Read(&self.known.work), Write(self.space)];
        self.layout.launch(&TABLES, "tables", &self.layout.constants(), &self.args(CHUNK + 1), &bindings)
    }

    /// Gradients of queries, keys and gates.
    fn write<R: Rule>(&self, inputs: &Inputs<R, Tensor<Wgpu>>, dinputs: &Inputs<R, Tensor<Wgpu>>) -> Result<()> {
        let (known, layout) = (self.known, self.layout);
        let bindings = [
            Read(&known.work),
            Read(&inputs.q),
            Read(&inputs.k),
            Read(self.space),
            Write(&dinputs.q),
            Write(&dinputs.k),
        ];
        let source = for_width(layout.dims.key, &DKEYS, &DKEYS_WIDE);
        layout.launch(source, "keys", &layout.constants(), &self.key_args(tiles(layout.dims.key)), &bindings)?;
        let gates = R::Gates::list(&dinputs.gates);
        let nothing = [layout.room(layout.scalars())?, layout.room(layout.scalars())?, layout.room(layout.scalars())?];
        let bindings = [
            Read(&known.work),
            Read(self.space),
            Write(named(&gates, &["log_a"]).unwrap_or(&nothing[0])),
            Write(named(&gates, &["theta"]).unwrap_or(&nothing[1])),
            Write(named(&gates, &["log_eta", "beta"]).unwrap_or(&nothing[2])),
        ];
        layout.launch(&GATES, "gates", &[], &self.args(CHUNK), &bindings)
    }
}
