//! All files of kernels, and what they include.

use crate::{engine, launch::Source, primitives, rules};

/// What files of kernels can include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("device.cuh", include_str!("device.cuh")),
    ("tensor.cuh", include_str!("tensor.cuh")),
    ("group.cuh", include_str!("group.cuh")),
    ("hecate.cuh", include_str!("hecate.cuh")),
    ("linear.cuh", include_str!("engine/linear.cuh")),
    ("chunk.cuh", include_str!("engine/chunk.cuh")),
    ("bf16_tile.cuh", include_str!("engine/bf16_tile.cuh")),
    ("bf16_halves.cuh", include_str!("engine/bf16_halves.cuh")),
    ("bf16.cuh", include_str!("engine/bf16.cuh")),
    ("bf16_decays.cuh", include_str!("engine/bf16_decays.cuh")),
    ("bf16_influence.cuh", include_str!("engine/bf16_influence.cuh")),
    ("bf16_slabs.cuh", include_str!("engine/bf16_slabs.cuh")),
    ("bf16_products.cuh", include_str!("engine/bf16_products.cuh")),
    ("bf16_gates.cuh", include_str!("engine/bf16_gates.cuh")),
    ("block.cuh", include_str!("recurrent/block.cuh")),
    ("recurrent.cuh", include_str!("recurrent/recurrent.cuh")),
    ("product.cuh", include_str!("product.cuh")),
    ("newton_schulz.cuh", include_str!("rules/newton_schulz.cuh")),
    ("activation.cuh", include_str!("deep/activation.cuh")),
    ("bias.cuh", include_str!("deep/bias.cuh")),
    ("deep.cuh", include_str!("deep/deep.cuh")),
    ("deep_backward.cuh", include_str!("deep/deep_backward.cuh")),
    ("deep_options.cuh", include_str!("deep/deep_options.cuh")),
    ("layer_norm.cuh", include_str!("deep/layer_norm.cuh")),
    ("retention.cuh", include_str!("deep/retention.cuh")),
    ("conv.cuh", include_str!("primitives/conv.cuh")),
    ("entries.cuh", include_str!("primitives/entries.cuh")),
    ("maps.cuh", include_str!("primitives/maps.cuh")),
    ("attention.cuh", include_str!("primitives/attention.cuh")),
];

/// Each is compiled for every architecture in a test.
#[allow(dead_code)]
pub(crate) const ALL: &[&Source] = &[
    &primitives::attention::SOURCE,
    &primitives::attention::BACKWARD,
    &primitives::conv::SOURCE,
    &primitives::conv::AT_ONCE,
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
    &primitives::retention::SOURCE,
    &primitives::rotary::SOURCE,
    &engine::bf16::PREPARE,
    &engine::bf16::FORWARD,
    &engine::bf16::REVERSE,
    &engine::bf16::GRADIENTS,
    &engine::chunk::PREPARE,
    &engine::chunk::FORWARD,
    &engine::chunk::REVERSE,
    &engine::chunk::GRADIENTS,
    &engine::decode::SOURCE,
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

impl Source {
    /// The file and the headers that it reaches, the file first.
    pub(crate) fn texts(&self) -> Vec<&'static str> {
        let mut texts = vec![self.text];
        let mut next = 0;
        while let Some(text) = texts.get(next) {
            let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            let headers = names.filter_map(|name| Some(HEADERS.iter().find(|header| header.0 == name)?.1));
            let new: Vec<_> = headers.filter(|header| !texts.contains(header)).collect();
            texts.extend(new);
            next += 1;
        }
        texts
    }

    /// A name for all that a compilation depends on: the texts, and `more`.
    pub(crate) fn hash<'a>(&self, more: impl IntoIterator<Item = &'a str>) -> String {
        let mut hash = blake3::Hasher::new();
        for part in self.texts().into_iter().chain(more) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().to_hex().to_string()
    }
}
