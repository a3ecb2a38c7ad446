//! All kernels, for the test that compiles each of them without an adapter.

use crate::{engine, launch::Kernel, memory, packing, primitives, rules};

/// Each kernel, for every set of constants that it is compiled for.
#[allow(dead_code)]
pub(crate) const ALL: &[&[Kernel<'static>]] = &[
    engine::chunk::KERNELS,
    engine::chunk::RULE_KERNELS,
    engine::scan::BEGINS,
    engine::scan::KERNELS,
    memory::KERNELS,
    packing::KERNELS,
    primitives::attention::KERNELS,
    primitives::conv::KERNELS,
    primitives::elementwise::KERNELS,
    primitives::embedding::KERNELS,
    primitives::features::KERNELS,
    primitives::layout::KERNELS,
    primitives::loss::KERNELS,
    primitives::matmul::KERNELS,
    primitives::norm::KERNELS,
    primitives::optimizer::KERNELS,
    primitives::reduce::KERNELS,
    primitives::retention::KERNELS,
    primitives::rotary::KERNELS,
    primitives::sequences::KERNELS,
    primitives::sums::KERNELS,
    rules::atlas::KERNELS,
    rules::lattice::KERNELS,
    rules::memora::KERNELS,
    rules::moneta::KERNELS,
    rules::titans_mlp::KERNELS,
    rules::trellis::KERNELS,
    rules::yaad::KERNELS,
    rules::yaad::MOMENTUM,
];
