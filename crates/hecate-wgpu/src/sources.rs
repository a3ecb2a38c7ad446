//! All kernels, for the test that compiles each of them without an adapter.

use crate::{deep, launch::Kernel, linear, memory, packing, primitives, rules};

/// Each kernel, for every set of constants that it is compiled for.
/// Files that no kernel here is made of fail a test.
#[allow(dead_code)]
pub(crate) const ALL: &[&[Kernel<'static>]] = &[
    deep::groups::HUBER,
    deep::groups::L2,
    deep::groups::LP,
    deep::groups::mapped::KERNELS,
    deep::groups::PRODUCTS,
    deep::HUBER,
    deep::HUBER_MOMENTUM,
    deep::L2_KL,
    deep::L2_MOMENTUM,
    deep::LP_LQ,
    linear::chunk::KERNELS,
    linear::chunk::RULE_KERNELS,
    linear::gradients::KERNELS,
    linear::scan::BEGINS,
    linear::scan::KERNELS,
    memory::KERNELS,
    packing::KERNELS,
    primitives::attention::KERNELS,
    primitives::conv::KERNELS,
    primitives::elementwise::KERNELS,
    primitives::embedding::KERNELS,
    primitives::features::KERNELS,
    primitives::layer_norm::KERNELS,
    primitives::layout::KERNELS,
    primitives::loss::KERNELS,
    primitives::matmul::KERNELS,
    primitives::matmul_rows::KERNELS,
    primitives::norm::KERNELS,
    primitives::optimizer::KERNELS,
    primitives::quantized::KERNELS,
    primitives::reduce::KERNELS,
    primitives::retention::KERNELS,
    primitives::rotary::KERNELS,
    primitives::sequences::KERNELS,
    primitives::sample::KERNELS,
    primitives::softmax::KERNELS,
    primitives::sums::KERNELS,
    rules::atlas::KERNELS,
    rules::lattice::KERNELS,
    rules::trellis::KERNELS,
];
