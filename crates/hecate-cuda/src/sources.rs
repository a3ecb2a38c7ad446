//! All files of kernels.

use crate::{engine, launch::Source, primitives, rules};

/// Each is compiled for every architecture in a test.
#[allow(dead_code)]
pub(crate) const ALL: &[&Source] = &[
    &primitives::attention::SOURCE,
    &primitives::attention::BACKWARD,
    &primitives::conv::SOURCE,
    &primitives::sequences::SOURCE,
    &primitives::elementwise::SOURCE,
    &primitives::embedding::SOURCE,
    &primitives::features::SOURCE,
    &primitives::layout::SOURCE,
    &primitives::loss::SOURCE,
    &primitives::matmul::SOURCE,
    &primitives::norm::SOURCE,
    &primitives::optimizer::SOURCE,
    &primitives::reduce::SOURCE,
    &primitives::rotary::SOURCE,
    &engine::chunk::PREPARE,
    &engine::chunk::FORWARD,
    &engine::chunk::REVERSE,
    &engine::chunk::GRADIENTS,
    &engine::scan::SOURCE,
    &engine::scan_backward::SOURCE,
    &engine::scan_reverse::SOURCE,
    &engine::sums::SOURCE,
    &rules::atlas::SOURCE,
    &rules::lattice::SOURCE,
    &rules::memora::SOURCE,
    &rules::moneta::SOURCE,
    &rules::titans_mlp::SOURCE,
    &rules::trellis::SOURCE,
    &rules::yaad::SOURCE,
];
