//! Memories that are functions with weights: equations (33)–(59), one step for every structure, bias and retention.

pub(crate) mod groups;

pub(crate) use groups::Groups;

use crate::{
    Wgpu,
    launch::{Kernel, WgslSource},
    parameters::{Parameters, parameters},
    recurrent::{self, CellWords, NO_PRODUCTS, Recurrent, SILU, WorkspaceSize, cell_words},
};
use hecate_core::{
    Dims,
    families::{Deep, DeepForm, DeepOptions, DeepRule, DeepSpec},
    rules::Retention,
};

/// `deep.wgsl`'s constant of this name: scalars of a token.
///
/// Sums and gates that one invocation leaves for all others of the workgroup.
const KNOWN: usize = 18;

/// The kernels of all these rules.
const SOURCES: [&WgslSource; 2] = recurrent::sources! {
    "deep",
    [
        NO_PRODUCTS,
        SILU,
        include_str!("activation.wgsl"),
        include_str!("bias.wgsl"),
        include_str!("retention.wgsl"),
        Cell::WGSL,
        include_str!("deep.wgsl"),
    ],
    [include_str!("deep_forward.wgsl")],
    [
        include_str!("deep_backward.wgsl"),
        include_str!("read_vjp.wgsl"),
        include_str!("write_vjp.wgsl"),
        include_str!("inner_grad_vjp.wgsl"),
    ],
};

parameters! {
    /// Sizes and options of a rule, as its kernels have them.
    struct Cell {
        /// `D`; 0 for a matrix.
        hidden: u32,
        /// In the order of [`Activation`](hecate_core::rules::Activation).
        activation: u32,
        /// 1 where inputs are added to outputs, outputs pass a layer norm, and tokens read after their own write.
        residual: u32,
        norm: u32,
        read_after: u32,
        /// Of Huber's errors in the order of [`Huber`](hecate_core::rules::Huber). Of powers of one, 1 where its sign is a
        /// hyperbolic tangent.
        error: u32,
        /// 1 where weights are the paper's image of the dual variable.
        literal: u32,
        /// Bias (48), (49) and retention (54), (55).
        p: f32,
        epsilon: f32,
        q: f32,
        scale: f32,
        /// `1 / c` of (94); 0 where nothing is clipped.
        per_clip: f32,
    }
}

/// The rule's `Cell` at these sizes, as words.
fn cell(options: DeepOptions) -> CellWords {
    let DeepOptions { hidden, activation, residual, norm, read_after, huber, tanh, literal, .. } = options;
    let DeepOptions { p, epsilon, q, scale, per_clip, .. } = options;
    // One of them is 0: no rule has both.
    let error = huber + tanh;
    cell_words(&Cell { hidden, activation, residual, norm, read_after, error, literal, p, epsilon, q, scale, per_clip })
}

/// Workspace of a rule at these sizes: what `deep.wgsl`'s `Record` and `Scratch` cut up.
fn workspace(spec: DeepSpec, dims: &Dims) -> WorkspaceSize {
    let (d, v) = (spec.structure.hidden(dims.key).unwrap_or(0), dims.value);
    // x̂ of the write and of the read.
    let norm = if spec.structure.norm() { v } else { 0 };
    // The weights of a state that is not the weights, and their gradient.
    let matrices = if spec.retention == Retention::Decay { 0 } else { 2 * spec.weights(dims) };
    WorkspaceSize {
        // Rows that a token leaves for its backward.
        record: 7 * d + 3 * v + 2 * norm + 3,
        // Rows that live as long as a token.
        scratch: 4 * d + 6 * v + dims.key + d.max(v) + KNOWN,
        matrices,
        ahead: if spec.looks_ahead() { spec.weights(dims) } else { 0 },
    }
}

impl<R: DeepRule> Recurrent<Deep> for R {
    const SOURCES: [&'static WgslSource; 2] = SOURCES;
    const CONSTANTS: &'static [(&'static str, u32)] =
        &[("BIAS", R::FORM.bias()), ("RETENTION", R::FORM.retention()), ("MOMENTUM", R::FORM.momentum() as u32)];

    fn cell(self, dims: &Dims) -> CellWords {
        cell(self.spec().options(dims))
    }

    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        workspace(self.spec(), dims)
    }

    fn groups(self, device: &Wgpu, dims: &Dims) -> Option<Groups> {
        Groups::new(device, self.spec(), R::FORM.bias(), R::FORM.momentum(), dims)
    }
}

/// The kernels of a form.
macro_rules! kernels {
    ($form:expr) => {
        recurrent::kernels!(
            SOURCES,
            "BIAS" = $form.bias(),
            "RETENTION" = $form.retention(),
            "MOMENTUM" = $form.momentum() as u32
        )
    };
}

/// Error itself, decay, momentum.
pub(crate) const L2_MOMENTUM: &[Kernel<'static>] = kernels!(DeepForm::L2Momentum);
/// `l_p`, `L_q`.
pub(crate) const LP_LQ: &[Kernel<'static>] = kernels!(DeepForm::LpLq);
/// Huber's error, decay.
pub(crate) const HUBER: &[Kernel<'static>] = kernels!(DeepForm::Huber);
/// The same with momentum.
pub(crate) const HUBER_MOMENTUM: &[Kernel<'static>] = kernels!(DeepForm::HuberMomentum);
/// Error itself, relative entropy.
pub(crate) const L2_KL: &[Kernel<'static>] = kernels!(DeepForm::L2Kl);
