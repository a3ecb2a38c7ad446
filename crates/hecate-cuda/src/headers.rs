//! Files that kernels can include, by the names by which they do.

/// Name and text of each.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    // What depends on the machine, and what all kernels share.
    ("device.cuh", include_str!("device.cuh")),
    ("tensor.cuh", include_str!("tensor.cuh")),
    ("group.cuh", include_str!("group.cuh")),
    ("hecate.cuh", include_str!("hecate.cuh")),
    ("random.cuh", include_str!("random.cuh")),
    // The linear engine: all forms, then the chunk forms.
    ("linear.cuh", include_str!("linear/linear.cuh")),
    ("chunk.cuh", include_str!("linear/chunk.cuh")),
    ("chunk_walk.cuh", include_str!("linear/chunk_walk.cuh")),
    ("chunk_gradients.cuh", include_str!("linear/chunk_gradients.cuh")),
    ("chunk_bf16/tile.cuh", include_str!("linear/chunk_bf16/tile.cuh")),
    ("chunk_bf16/halves.cuh", include_str!("linear/chunk_bf16/halves.cuh")),
    ("chunk_bf16/fragments.cuh", include_str!("linear/chunk_bf16/fragments.cuh")),
    ("chunk_bf16/columns.cuh", include_str!("linear/chunk_bf16/columns.cuh")),
    ("chunk_bf16/decay_mask.cuh", include_str!("linear/chunk_bf16/decay_mask.cuh")),
    ("chunk_bf16/mask.cuh", include_str!("linear/chunk_bf16/mask.cuh")),
    ("chunk_bf16/slabs.cuh", include_str!("linear/chunk_bf16/slabs.cuh")),
    ("chunk_bf16/products.cuh", include_str!("linear/chunk_bf16/products.cuh")),
    ("chunk_bf16/gates.cuh", include_str!("linear/chunk_bf16/gates.cuh")),
    ("chunk_bf16/forward.cuh", include_str!("linear/chunk_bf16/forward.cuh")),
    ("chunk_bf16/reverse.cuh", include_str!("linear/chunk_bf16/reverse.cuh")),
    // Rules token by token, and products of a block.
    ("block.cuh", include_str!("recurrent/block.cuh")),
    ("renorm.cuh", include_str!("recurrent/renorm.cuh")),
    ("recurrent.cuh", include_str!("recurrent/recurrent.cuh")),
    ("product.cuh", include_str!("product.cuh")),
    ("newton_schulz.cuh", include_str!("rules/newton_schulz.cuh")),
    // Deep memories.
    ("activation.cuh", include_str!("deep/activation.cuh")),
    ("bias.cuh", include_str!("deep/bias.cuh")),
    ("deep.cuh", include_str!("deep/deep.cuh")),
    ("deep_backward.cuh", include_str!("deep/deep_backward.cuh")),
    ("deep_options.cuh", include_str!("deep/deep_options.cuh")),
    ("frozen.cuh", include_str!("deep/frozen/frozen.cuh")),
    ("frozen_product.cuh", include_str!("deep/frozen/frozen_product.cuh")),
    ("frozen_reverse.cuh", include_str!("deep/frozen/frozen_reverse.cuh")),
    ("layer_norm.cuh", include_str!("deep/layer_norm.cuh")),
    ("retention.cuh", include_str!("deep/retention.cuh")),
    // Primitives.
    ("conv.cuh", include_str!("primitives/conv.cuh")),
    ("entries.cuh", include_str!("primitives/entries.cuh")),
    ("maps.cuh", include_str!("primitives/maps.cuh")),
    ("norm.cuh", include_str!("primitives/norm.cuh")),
    ("quantized.cuh", include_str!("primitives/quantized.cuh")),
    ("attention.cuh", include_str!("primitives/attention.cuh")),
    ("attention/tiles.cuh", include_str!("primitives/attention/tiles.cuh")),
    ("attention/groups.cuh", include_str!("primitives/attention/groups.cuh")),
];
