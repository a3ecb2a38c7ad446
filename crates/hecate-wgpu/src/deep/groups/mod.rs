//! Frozen groups of deep memories, as products of all memories at once.
//!
//! All inner gradients of a group are taken at the weights it starts with: they are products of the group's rows with these. Where
//! memories decay, what a token reads of the writes before it is a mask (`groups.wgsl`). Such a group takes about a dozen dispatches
//! forward and sixty back. Each has a workgroup for every tile of every memory; tokens one by one take a workgroup a memory.
//! A matrix is the second layer alone, with keys and queries in place of the hidden layer.
//!
//! Where weights are an image of the state, tokens go one after another for what they read, column by column (`mapped.rs`).
//!
//! On a device that was opened with cooperative matrices, products of large memories whose sizes are multiples of these go by them,
//! in two halves a number (`cooperative/mod.rs`), each in two or three dispatches. Others go as ever, in the same group.
//!
//! # What goes token by token
//!
//! Groups of less than 8 tokens or more than 64, and sequences shorter than that. Columns set back to their lengths, images of more
//! than 1,024 rows, or by powers over 8, or with momentum or a threshold. Memories that one buffer does not hold, or a dispatch. Both
//! ways keep the same states.
//!
//! # Memory
//!
//! Beside arguments, results and kept states a memory has the panels that [`Places`] counts. Where not all memories fit, they go
//! in turns. Products by cooperative matrices have halves with their scales, and sums, beside them: twice as much again.

mod backward;
pub(crate) mod cooperative;
pub(crate) mod mapped;
mod pass;
mod places;
mod product;

use crate::{
    Wgpu,
    deep::Cell,
    launch::{DIMENSION, Kernel, WgslSource},
    parameters::Parameters,
    recurrent::{Arrays, FUNCTIONS, RecurrentCall, SILU},
};
use cooperative::Cooperative;
use hecate_core::{
    DType, Dims, Result,
    families::{DeepOptions, DeepSpec},
    rules::Retention,
};
use mapped::{LayerPlaces, Sweeps};
use pass::{GroupArgs, Pass};
use places::{Has, PanelPlaces, Places, Plan};
use product::{FINISH, Factors, PRODUCT_TEXT, ProductArgs};
use std::cell::OnceCell;

/// Products.
static PRODUCT: WgslSource = WgslSource {
    name: "groups_product",
    parts: &[
        crate::launch::PRELUDE,
        SILU,
        include_str!("../activation.wgsl"),
        Cell::WGSL,
        include_str!("numbers.wgsl"),
        Factors::WGSL,
        ProductArgs::WGSL,
        PRODUCT_TEXT,
        FINISH,
        include_str!("product.wgsl"),
    ],
};
/// What lies between them.
static GROUPS: WgslSource = WgslSource {
    name: "groups",
    parts: &[
        crate::launch::PRELUDE,
        FUNCTIONS,
        SILU,
        include_str!("../activation.wgsl"),
        Cell::WGSL,
        include_str!("../bias.wgsl"),
        RecurrentCall::WGSL,
        include_str!("numbers.wgsl"),
        PanelPlaces::WGSL,
        LayerPlaces::WGSL,
        Plan::WGSL,
        GroupArgs::WGSL,
        include_str!("groups.wgsl"),
        include_str!("moves.wgsl"),
        include_str!("arrive.wgsl"),
        include_str!("masks.wgsl"),
        include_str!("norm.wgsl"),
        include_str!("rows.wgsl"),
    ],
};

/// The same where weights are an image of the state.
static IMAGES: WgslSource = WgslSource {
    name: "groups_images",
    parts: &[
        crate::launch::PRELUDE,
        FUNCTIONS,
        SILU,
        include_str!("../activation.wgsl"),
        Cell::WGSL,
        include_str!("../retention.wgsl"),
        RecurrentCall::WGSL,
        include_str!("numbers.wgsl"),
        PanelPlaces::WGSL,
        LayerPlaces::WGSL,
        Plan::WGSL,
        GroupArgs::WGSL,
        include_str!("groups.wgsl"),
        include_str!("arrive.wgsl"),
        include_str!("mapped/mapped.wgsl"),
        include_str!("mapped/images.wgsl"),
        include_str!("mapped/reads.wgsl"),
        include_str!("mapped/sweep.wgsl"),
        include_str!("mapped/sweep_back.wgsl"),
    ],
};

/// Tokens of a group and of a sequence from which on products pay, and tokens of a group at most.
const LEAST_TOKENS: usize = 8;
const MOST_TOKENS: usize = 64;
/// `HUBER` of `bias.wgsl`.
const HUBER_BIAS: u32 = 2;

/// A rule whose groups go by products.
pub(crate) struct Groups {
    spec: DeepSpec,
    /// `BIAS`.
    bias: u32,
    /// Whether a state has momentum beside its weights.
    momentum: bool,
    /// `D`, 0 for a matrix.
    hidden: usize,
    /// `G`.
    group: usize,
    /// The rule as kernels have it.
    options: DeepOptions,
}

impl Groups {
    /// Where a call suits them.
    pub(crate) fn new(device: &Wgpu, spec: DeepSpec, bias: u32, momentum: bool, dims: &Dims) -> Option<Self> {
        let (group, hidden) = (spec.frozen? as usize, spec.structure.hidden(dims.key).unwrap_or(0));
        let inner = if hidden == 0 { dims.key } else { hidden };
        // States that are swept stay in registers, and their gates are a and θ alone.
        let sweeps = || !momentum && bias != HUBER_BIAS && Sweeps::fit(spec, dims.key.max(inner));
        let plain = (spec.retention == Retention::Decay || sweeps()) && !spec.renorm;
        let long = (LEAST_TOKENS..=MOST_TOKENS).contains(&group) && dims.sequences.longest() >= LEAST_TOKENS;
        let options = spec.options(dims);
        // Neither elements of a state nor rows, beside one for gates, may have more workgroups than a dimension has.
        let state = spec.weights(dims).saturating_mul(1 + usize::from(momentum));
        let narrow = dims.key.max(dims.value).max(hidden) < DIMENSION && state <= DIMENSION * pass::THREADS;
        if !(plain && long && narrow) {
            return None;
        }
        let (sweeps, norm) = (Sweeps::new(spec, dims.anchored), spec.structure.norm());
        let has = Has { momentum, anchor: dims.anchored, backward: true, norm, sweeps };
        let fits = device.holds(Places::new(dims, hidden, group, has).each);
        fits.then_some(Self { spec, bias, momentum, hidden, group, options })
    }

    /// Outputs and final states into `made`; states before every interval into `kept` where it has room.
    pub(crate) fn forward(&self, device: &Wgpu, dims: &Dims, call: &RecurrentCall, arrays: &Arrays<'_>) -> Result<()> {
        for pass in self.passes(device, dims, call, arrays)? {
            pass?.forward(dims.sequences.longest(), call.keep != 0)?;
        }
        Ok(())
    }

    /// All gradients into `made`.
    pub(crate) fn backward(&self, device: &Wgpu, dims: &Dims, call: &RecurrentCall, arrays: &Arrays<'_>) -> Result<()> {
        for pass in self.passes(device, dims, call, arrays)? {
            pass?.backward(dims.sequences.longest(), call.unit as usize)?;
        }
        Ok(())
    }

    /// As many memories at once as have room.
    fn passes<'a>(
        &'a self,
        device: &'a Wgpu,
        dims: &Dims,
        call: &RecurrentCall,
        arrays: &'a Arrays<'a>,
    ) -> Result<impl Iterator<Item = Result<Pass<'a>>>> {
        let sweeps = Sweeps::new(self.spec, dims.anchored);
        let (norm, backward) = (self.spec.structure.norm(), arrays.dout.is_some());
        let has = Has { momentum: self.momentum, anchor: dims.anchored, backward, norm, sweeps };
        let places = Places::new(dims, self.hidden, self.group, has);
        let memories = call.sequence_heads as usize;
        // Packed factors and sums are two more buffers.
        let buffers = if Cooperative::paying(device, &places).is_some() { 3 } else { 1 };
        let turn = device.workgroups_of(buffers * places.each).min(memories);
        let call = RecurrentCall { workspace: places.each as u32, ..*call };
        let plan = Plan { call, places: places.named(), layers: places.layers };
        let plan = device.table(bytemuck::cast_slice(bytemuck::bytes_of(&plan)))?;
        Ok((0..memories).step_by(turn).map(move |first| {
            let memories = turn.min(memories - first);
            let workspace = device.empty([memories, places.each], DType::F32)?;
            let (places, plan, first) = (places.clone(), plan.clone(), first as u32);
            let packs = OnceCell::new();
            Ok(Pass {
                groups: self,
                device,
                places,
                has,
                call,
                arrays,
                plan,
                workspace,
                packs,
                first,
                memories,
                start: 0,
            })
        }))
    }
}

/// Kernels as tests compile them.
macro_rules! kernels {
    ($bias:expr) => {{
        const CONSTANTS: &[(&str, u32)] = &[("BIAS", $bias)];
        [
            Kernel { source: &GROUPS, entry: "load", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "store", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "open", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "close", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "keep", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "recall", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "copy", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "masks", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "clear", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "masks_back", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "gates_back", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "inner_grad_rows", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "hidden_back", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "inner_grad_rows_vjp", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "outputs_of_reads", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "answer_back", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "shares_back", constants: CONSTANTS },
            Kernel { source: &GROUPS, entry: "state_sums", constants: CONSTANTS },
        ]
    }};
}

/// Of all errors.
pub(crate) const L2: &[Kernel<'static>] = &kernels!(0);
pub(crate) const LP: &[Kernel<'static>] = &kernels!(1);
pub(crate) const HUBER: &[Kernel<'static>] = &kernels!(2);
pub(crate) const PRODUCTS: &[Kernel<'static>] = &[Kernel { source: &PRODUCT, entry: "product", constants: &[] }];
