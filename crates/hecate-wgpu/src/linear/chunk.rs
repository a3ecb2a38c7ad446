//! Gradients of queries, keys, values and gates of frozen rules: equations (23)–(32), but for the systems of (19) and (24), whose
//! solutions are known. All chunks at once, as many as fit into [`SPACE`] and one array.
//!
//! An array of the chunks at work, the space, goes from kernel to kernel: each launch reads what the launches before it
//! wrote. The queue runs them in order, so nothing waits on the host.

use super::{
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

/// Bytes that the elements of the chunks at work may take, on a GPU with memory of its own and elsewhere. A large GPU
/// takes little longer over twice the chunks that 64 MiB hold, some 490 where K and V are 64.
const SPACE: [usize; 2] = [256 << 20, 64 << 20];

/// Where a chunk's elements lie.
const CHUNKS: &str = include_str!("chunk.wgsl");
/// Rows of any length, element by element.
const LOAD_XY: &str = include_str!("load_xy.wgsl");
/// Rows of a multiple of four elements, four at a time.
const LOAD_XY_WIDE: &str = include_str!("load_xy_wide.wgsl");

/// What rules make of the gradients of a token's scalars.
pub(super) const GATE_GRADIENTS: &str = include_str!("gate_gradients.wgsl");

/// A source of the engine: what all its kernels share, then the file's own text.
macro_rules! source {
    ($id:ident, $name:literal, $file:literal $(, $more:expr)*) => {
        static $id: WgslSource =
            WgslSource { name: $name, parts: &[PRELUDE, LinearArgs::WGSL, ARGS, LINEAR, CHUNKS, $($more,)* include_str!($file)] };
    };
}

source!(PRODUCTS, "chunk_products", "chunk_products.wgsl", LOAD_XY);
source!(PRODUCTS_WIDE, "chunk_products_wide", "chunk_products.wgsl", LOAD_XY_WIDE);
source!(SUMS, "chunk_sums", "chunk_sums.wgsl", LOAD_XY);
source!(SUMS_WIDE, "chunk_sums_wide", "chunk_sums.wgsl", LOAD_XY_WIDE);
source!(ENDS, "chunk_ends", "chunk_ends.wgsl");
source!(TABLES, "chunk_tables", "chunk_tables.wgsl");
source!(DKEYS, "chunk_keys", "chunk_keys.wgsl", LOAD_XY);
source!(DKEYS_WIDE, "chunk_keys_wide", "chunk_keys.wgsl", LOAD_XY_WIDE);
source!(GATES, "chunk_gates", "chunk_gates.wgsl", GATE_GRADIENTS);

/// A kernel that is the same for every rule.
const fn kernel(source: &'static WgslSource, entry: &'static str) -> Kernel<'static> {
    Kernel { source, entry, constants: &[] }
}

/// Of a kernel that is compiled for what the rule is: with momentum or without.
const fn of_rule(source: &'static WgslSource, entry: &'static str) -> [Kernel<'static>; 2] {
    [Kernel { source, entry, constants: MOMENTUM[0] }, Kernel { source, entry, constants: MOMENTUM[1] }]
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
/// Tables and gradients of keys, each with and without momentum.
const OF_RULES: [[Kernel<'static>; 2]; 3] =
    [of_rule(&TABLES, "tables"), of_rule(&DKEYS, "keys"), of_rule(&DKEYS_WIDE, "keys")];
/// For the test that compiles them.
pub(crate) const RULE_KERNELS: &[Kernel<'static>] = OF_RULES.as_flattened();

/// The squares of a chunk, as numbered in `chunk.wgsl`.
const KEYS_KEYS: u32 = 0;
/// `G [64,64]`: queries by keys.
const QUERIES_KEYS: u32 = 1;
/// `Λ Zᵀ`, for the gradients of gates between two tokens.
const ADJOINT_WRITES: u32 = 2;
/// `dO Zᵀ`, what outputs tell writes.
const OUT_WRITES: u32 = 3;
/// The products of a chunk's values and a state.
const OUT_M: u32 = 0;
/// `Z dM_Cᵀ`, with the gradient of the state after the chunk.
const WRITES_DM: u32 = 1;
/// `Λ M₀ᵀ`, with the state before the chunk.
const ADJOINT_M: u32 = 2;
/// `Λ M_cᵀ`, with the state before the group, where groups are longer than a chunk.
const ADJOINT_GROUP: u32 = 3;
/// `dO S₀ᵀ`; this and the next two are of rules with momentum alone.
const OUT_S: u32 = 4;
/// `Z dS_Cᵀ`.
const WRITES_DS: u32 = 5;
/// `Λ S₀ᵀ`.
const ADJOINT_S: u32 = 6;

/// Some chunks of a call, all kernels over which have the same space.
struct Chunks<'a> {
    /// The call.
    layout: &'a Layout<'a>,
    /// What the scans before left.
    scans: &'a ScanResults,
    /// What all kernels over these chunks read and write.
    space: &'a Tensor<Wgpu>,
    /// First chunk.
    first: usize,
    /// Number of chunks.
    count: usize,
}

/// Elements that a chunk has in the space; see `chunk.wgsl`.
///
/// Four squares `[64,64]`, sixteen vectors `[65]`, four rows `[V]` of sums, and products `[64,K]` with padded rows.
fn chunk_elements(layout: &Layout<'_>) -> usize {
    let (key, products) = (layout.dims.key, if layout.spec.momentum { 7 } else { 4 });
    4 * CHUNK * CHUNK + 16 * (CHUNK + 1) + 4 * layout.dims.value + products * CHUNK * key.next_multiple_of(4)
}

/// Threads for `[64, width]`, four by four elements each, in blocks of 32; see `chunk.wgsl`.
fn tiles(width: usize) -> usize {
    CHUNK / 16 * width.div_ceil(32) * 32
}

/// Of two sources, the one for rows of this length.
fn for_width(width: usize, narrow: &'static WgslSource, wide: &'static WgslSource) -> &'static WgslSource {
    if width.is_multiple_of(4) { wide } else { narrow }
}

/// Writes all gradients but that of the initial state.
pub(super) fn run(
    layout: &Layout<'_>,
    inputs: &LinearInputs<Tensor<Wgpu>>,
    dout: &Tensor<Wgpu>,
    scans: &ScanResults,
    dinputs: &LinearInputs<Tensor<Wgpu>>,
) -> Result<()> {
    let (all, at_once) = (layout.chunks(), layout.chunks_at_once(SPACE, chunk_elements(layout)));
    // One array for all rounds: the next overwrites what the last left.
    let space = layout.scratch(at_once * chunk_elements(layout))?;
    for first in (0..all).step_by(at_once) {
        let chunks = Chunks { layout, scans, space: &space, first, count: at_once.min(all - first) };
        // Each step reads what the steps before it left in the space.
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
    fn args(&self, threads: usize) -> LinearArgs {
        LinearArgs { first: self.first as u32, ..self.layout.args(self.count * threads) }
    }

    /// The same of one whose rows are queries and keys.
    fn key_args(&self, threads: usize) -> LinearArgs {
        LinearArgs { width: self.layout.dims.key as u32, ..self.args(threads) }
    }

    /// `N`, `G`, `Λ Zᵀ`, `dO Zᵀ`.
    fn squares(&self, inputs: &LinearInputs<Tensor<Wgpu>>, dout: &Tensor<Wgpu>) -> Result<()> {
        let (dims, scans) = (self.layout.dims, self.scans);
        // Slot, x `[rows,H,width]`, y `[rows,H,width]`, width. Frozen rules have predictions, which need the last two.
        let all = [
            (QUERIES_KEYS, &inputs.q, &inputs.k, dims.key),
            (OUT_WRITES, dout, &scans.z, dims.value),
            (KEYS_KEYS, &inputs.k, &inputs.k, dims.key),
            (ADJOINT_WRITES, &scans.dz, &scans.z, dims.value),
        ];
        for (slot, x, y, width) in all {
            let args = LinearArgs { slot, width: width as u32, ..self.args(tiles(CHUNK)) };
            let bindings = [Read(&scans.work), Read(x), Read(y), Write(self.space)];
            self.layout.launch(for_width(width, &PRODUCTS, &PRODUCTS_WIDE), "square", &[], &args, &bindings)?;
        }
        Ok(())
    }

    /// `dO`, `Z` and `Λ` times the states around the chunk, transposed.
    fn states(&self, dout: &Tensor<Wgpu>) -> Result<()> {
        let (spec, scans) = (self.layout.spec, self.scans);
        // Slot, x `[rows,H,V]`, states, M or S, this chunk's state or the first of its period.
        let mut all = vec![
            (OUT_M, dout, &scans.kept, 0, 0),
            (WRITES_DM, &scans.z, &scans.kept_grads, 0, 0),
            (ADJOINT_M, &scans.dz, &scans.kept, 0, 0),
        ];
        if self.layout.has_long_groups() {
            all.push((ADJOINT_GROUP, &scans.dz, &scans.kept, 0, 1));
        }
        if spec.momentum {
            all.push((OUT_S, dout, &scans.kept, 1, 0));
            all.push((WRITES_DS, &scans.z, &scans.kept_grads, 1, 0));
            all.push((ADJOINT_S, &scans.dz, &scans.kept, 1, 0));
        }
        let (threads, width) = (tiles(self.layout.dims.key), self.layout.dims.value);
        let source = for_width(width, &PRODUCTS, &PRODUCTS_WIDE);
        for (slot, x, y, offset, lagging) in all {
            let args = LinearArgs { slot, width: width as u32, offset, lagging, ..self.args(threads) };
            let bindings = [Read(&scans.work), Read(x), Read(y), Write(self.space)];
            self.layout.launch(source, "state", &[], &args, &bindings)?;
        }
        Ok(())
    }

    /// Sums over rows; the gradient of the values.
    fn sums(&self, inputs: &LinearInputs<Tensor<Wgpu>>, dinputs: &LinearInputs<Tensor<Wgpu>>) -> Result<()> {
        let scans = self.scans;
        let bindings = [
            Read(&scans.work),
            Read(&inputs.q),
            Read(&inputs.k),
            Write(self.space),
            Read(&scans.dz),
            // Where no target is frozen, `v − f k M_c` is `v`.
            Read(scans.targets.as_ref().unwrap_or(&inputs.v)),
            // Without erase nobody reads this one.
            Read(scans.predicted.as_ref().unwrap_or(&scans.z)),
            Write(&dinputs.v),
        ];
        self.layout.launch(
            for_width(self.layout.dims.key, &SUMS, &SUMS_WIDE),
            "sums",
            &[],
            &self.key_args(CHUNK),
            &bindings,
        )?;
        let bindings = [Read(&scans.work), Read(&scans.kept), Read(&scans.kept_grads), Write(self.space)];
        self.layout.launch(&ENDS, "ends", &[], &self.args(self.layout.dims.value), &bindings)
    }

    /// The tables, and the way back through them.
    fn tables(&self) -> Result<()> {
        let bindings = [Read(&self.scans.work), Write(self.space)];
        self.layout.launch(&TABLES, "tables", self.layout.momentum(), &self.args(CHUNK + 1), &bindings)
    }

    /// Gradients of queries, keys and gates.
    fn write(&self, inputs: &LinearInputs<Tensor<Wgpu>>, dinputs: &LinearInputs<Tensor<Wgpu>>) -> Result<()> {
        let (scans, layout) = (self.scans, self.layout);
        let bindings = [
            Read(&scans.work),
            Read(&inputs.q),
            Read(&inputs.k),
            Read(self.space),
            Write(&dinputs.q),
            Write(&dinputs.k),
        ];
        let source = for_width(layout.dims.key, &DKEYS, &DKEYS_WIDE);
        layout.launch(source, "keys", layout.momentum(), &self.key_args(tiles(layout.dims.key)), &bindings)?;
        // Gates that a rule does not have are written to memory that nobody reads.
        let nothing = layout.scratch(layout.scalars())?;
        let bindings = [
            Read(&scans.work),
            Read(self.space),
            Write(&dinputs.log_a),
            Write(&dinputs.theta),
            Write(gate2(dinputs).unwrap_or(&nothing)),
        ];
        layout.launch(&GATES, "gates", &[], &self.args(CHUNK), &bindings)
    }
}
