//! All files of kernels, by which programs that compile one find it, and tests all of them.

use crate::{deep, linear, primitives, rules, source::KernelSource};

/// In the order of folders.
pub(crate) const ALL: &[&KernelSource] = &[
    // Primitives.
    // Attention, by threads, by warps and by groups of warps.
    &primitives::attention::SOURCE,
    &primitives::attention::BACKWARD,
    &primitives::attention::tiles::FORWARD,
    &primitives::attention::tiles::QUERIES,
    &primitives::attention::tiles::KEYS,
    &primitives::attention::groups::FORWARD,
    &primitives::attention::groups::QUERIES,
    &primitives::attention::groups::KEYS,
    &primitives::conv::SOURCE,
    &primitives::conv::AT_ONCE,
    &primitives::sequences::SOURCE,
    &primitives::elementwise::SOURCE,
    &primitives::embedding::SOURCE,
    &primitives::features::SOURCE,
    &primitives::fp8::SOURCE,
    &primitives::layer_norm::SOURCE,
    &primitives::layout::SOURCE,
    &primitives::loss::SOURCE,
    &primitives::matmul::SOURCE,
    &primitives::matmul_groups::SOURCE,
    &primitives::norm::SOURCE,
    &primitives::optimizer::SOURCE,
    &primitives::quantized::SOURCE,
    &primitives::quantized::Q4_K,
    &primitives::reduce::SOURCE,
    &primitives::retention::SOURCE,
    &primitives::rotary::SOURCE,
    &primitives::sample::SOURCE,
    &primitives::softmax::SOURCE,
    // The linear engine, form by form.
    &linear::chunk_bf16::prepare::SOURCE,
    &linear::chunk_bf16::forward::SOURCE,
    &linear::chunk_bf16::reverse::SOURCE,
    &linear::chunk_bf16::gradients::SOURCE,
    &linear::chunk::PREPARE,
    &linear::chunk::FORWARD,
    &linear::chunk::REVERSE,
    &linear::chunk::GRADIENTS,
    &linear::decode::SOURCE,
    &linear::scan::SOURCE,
    &linear::scan_backward::SOURCE,
    &linear::scan_reverse::SOURCE,
    &linear::sums::SOURCE,
    // Deep memories.
    &deep::frozen::FORWARD,
    &deep::frozen::BACKWARD,
    &deep::MEMORA,
    &deep::MONETA,
    &deep::TITANS_MLP,
    &deep::YAAD,
    // Rules with kernels of their own.
    &rules::atlas::SOURCE,
    &rules::lattice::SOURCE,
    &rules::trellis::SOURCE,
];
