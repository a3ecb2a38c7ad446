//! Attention in 32 bits of few queries a sequence, as of a token after a cache: bound by reading keys and values once.
//!
//! As in Flash-Decoding (Dao et al., 2023), blocks share the keys of a query, and their parts are put together.

use super::Forward;
use crate::{
    Cuda,
    launch::{Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{Result, primitives::AttentionDims};

/// `F.scaled_dot_product_attention` of a few queries a text, in 32 bits.
pub(crate) const SOURCE: KernelSource = kernel_source!("attention_few", "few.cu");

// Named by most queries of a sequence under a key-value head, and by most columns.
kernels! { SOURCE {
    "attention_few_1_64" One64 { arguments: Forward }
    "attention_few_1_128" One128 { arguments: Forward }
    "attention_few_1_256" One256 { arguments: Forward }
    "attention_few_4_64" Four64 { arguments: Forward }
    "attention_few_4_128" Four128 { arguments: Forward }
    "attention_few_4_256" Four256 { arguments: Forward }
} }

/// Fewest keys of a block that shares them with others.
pub(super) const KEYS: usize = 128;

/// Queries of the longest sequence under a key-value head, and columns of the kernel that takes them; none where none does.
pub(super) fn sizes(dims: &AttentionDims) -> Option<(usize, usize)> {
    // Query heads that share keys are queries of one block.
    let units = dims.sequences.longest().saturating_mul(dims.query_heads / dims.heads);
    let units = [1, 4].into_iter().find(|&most| units <= most)?;
    let columns = [64, 128, 256].into_iter().find(|&most| dims.key.max(dims.value) <= most)?;
    Some((units, columns))
}

/// `y` and `lse`, or their parts; a block has all queries of a sequence under one head.
pub(super) fn forward(device: &Cuda, sizes: (usize, usize), grid: Grid, arguments: Forward) -> Result<()> {
    match sizes {
        (1, 64) => device.launch(grid, &One64 { arguments }),
        (1, 128) => device.launch(grid, &One128 { arguments }),
        (1, _) => device.launch(grid, &One256 { arguments }),
        (_, 64) => device.launch(grid, &Four64 { arguments }),
        (_, 128) => device.launch(grid, &Four128 { arguments }),
        _ => device.launch(grid, &Four256 { arguments }),
    }
}
