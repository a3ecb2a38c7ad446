//! Memories that are functions with weights: equations (33)–(59), one step for every structure, bias and retention.

pub(crate) mod exact;
pub(crate) mod frozen;

use crate::{
    Cuda,
    arguments::known,
    recurrent::{Grouped, Recurrent, StepKernels, WorkspaceSize, step_kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    DType, Dims,
    families::{Deep, DeepForm, DeepOptions, DeepRule, DeepSpec},
    rules::Retention,
};

/// Squared errors with momentum: Titans, for a matrix or an MLP.
pub(crate) const TITANS_MLP: KernelSource = kernel_source!("titans_mlp", "titans_mlp.cu");
/// ℓp errors with an ℓq retention.
pub(crate) const MONETA: KernelSource = kernel_source!("moneta", "moneta.cu");
/// Huber's errors with decay, and the same with momentum.
pub(crate) const YAAD: KernelSource = kernel_source!("yaad", "yaad.cu");
/// Squared errors with a KL retention.
pub(crate) const MEMORA: KernelSource = kernel_source!("memora", "memora.cu");

// `struct Options` of `deep_options.cuh`.
known! { DeepOptions {
    key: u32,
    hidden: u32,
    value: u32,
    activation: u32,
    residual: u32,
    norm: u32,
    read_after: u32,
    look_ahead: u32,
    huber: u32,
    tanh: u32,
    literal: u32,
    p: f32,
    epsilon: f32,
    q: f32,
    scale: f32,
    per_clip: f32,
} }

/// The workspace of a rule at these sizes: what `deep.cuh`'s `Record` and `Scratch` cut up.
/// All are elements of 32 bits. A record is of one token and waits for the backward; scratch is of one block.
fn workspace(spec: DeepSpec, dims: &Dims) -> WorkspaceSize {
    // D hidden units (0 of a matrix) and V values.
    let (d, v) = (spec.structure.hidden(dims.key).unwrap_or(0), dims.value);
    let norm = if spec.structure.norm() { v } else { 0 };
    let mapped = if spec.retention == Retention::Decay { 0 } else { 2 * spec.weights(dims) };
    WorkspaceSize {
        record: 7 * d + 3 * v + 2 * norm + 3,
        scratch: mapped + 5 * d + 6 * v + dims.key + d.max(v),
        in_place: true,
        ahead: if spec.looks_ahead() { spec.weights(dims) } else { 0 },
    }
}

// One file an error and a retention; a matrix and an MLP go by the same kernels.
step_kernels! { L2_MOMENTUM: TITANS_MLP, DeepOptions {
    "titans_mlp_forward" L2MomentumForward, "titans_mlp_backward" L2MomentumBackward
} }
step_kernels! { LP_LQ: MONETA, DeepOptions { "moneta_forward" LpLqForward, "moneta_backward" LpLqBackward } }
step_kernels! { HUBER: YAAD, DeepOptions { "yaad_forward" HuberForward, "yaad_backward" HuberBackward } }
step_kernels! { HUBER_MOMENTUM: YAAD, DeepOptions {
    "yaad_momentum_forward" HuberMomentumForward, "yaad_momentum_backward" HuberMomentumBackward
} }
step_kernels! { L2_KL: MEMORA, DeepOptions { "memora_forward" L2KlForward, "memora_backward" L2KlBackward } }

impl<R: DeepRule> Recurrent<Deep> for R {
    type Cell = DeepOptions;
    const KERNELS: StepKernels<DeepOptions> = match R::FORM {
        DeepForm::L2Momentum => L2_MOMENTUM,
        DeepForm::LpLq => LP_LQ,
        DeepForm::Huber => HUBER,
        DeepForm::HuberMomentum => HUBER_MOMENTUM,
        DeepForm::L2Kl => L2_KL,
    };

    /// Options of the kernels, as they are compiled into them.
    /// Kinds of error and retention are not among them: each form has kernels of its own.
    fn cell(self, dims: &Dims) -> DeepOptions {
        self.spec().options(dims)
    }

    /// Elements of what a call keeps beside its arguments and results.
    fn workspace(self, dims: &Dims) -> WorkspaceSize {
        workspace(self.spec(), dims)
    }

    /// The kernels for whole groups, where there are such for these options and sizes.
    fn grouped(self, device: &Cuda, dims: &Dims, dtype: DType, pass: usize) -> Option<Grouped<DeepOptions>> {
        // Frozen groups by products, exact tokens in registers.
        frozen::grouped(device, self.spec(), R::FORM.momentum(), dims, dtype, pass)
            .or_else(|| exact::exact(device, self.spec(), R::FORM, dims, pass))
    }
}
