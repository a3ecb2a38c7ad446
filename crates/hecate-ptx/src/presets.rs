//! Specifications of well-known layers.

use crate::{Attention, Error, GemmTiled, LayerNorm, Norm, QuantizedGemm, Specification};

/// Heads of Llama's layers, for queries and for keys.
const LLAMA_HEADS: u32 = 32;

/// Causal attention as in Llama: 32 heads of `head_dim` columns over `tokens` tokens.
///
/// # Errors
/// As [`Attention::new`].
///
/// ```
/// use hecate_ptx::{Attention, presets};
///
/// let attention = presets::llama_attention(2048, 64)?;
/// assert_eq!(attention, Attention::new(2048, [32, 32], 64, true)?.into());
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
pub fn llama_attention(tokens: u32, head_dim: u32) -> Result<Specification, Error> {
    Ok(Attention::new(tokens, [LLAMA_HEADS, LLAMA_HEADS], head_dim, true)?.into())
}

/// The first product of a feed-forward layer: `batch` rows of `hidden` columns become rows of `intermediate` columns. Tiles are
/// the smallest ones that hold the batch, and at most 128 rows.
///
/// # Errors
/// As [`GemmTiled::new`].
///
/// ```
/// use hecate_ptx::{GemmTiled, presets};
///
/// let product = presets::ffn_gemm(32, 4096, 11008)?;
/// assert_eq!(product, GemmTiled::new(32, 11008, 4096, 32)?.into()); // m, n, k and the tile
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
pub fn ffn_gemm(batch: u32, hidden: u32, intermediate: u32) -> Result<Specification, Error> {
    let tile = [32, 64].into_iter().find(|tile| batch <= *tile).unwrap_or(128);
    Ok(GemmTiled::new(batch, intermediate, hidden, tile)?.into())
}

/// A product with weights in Q4_K: `batch` rows of `k` columns become rows of `n` columns.
///
/// # Errors
/// As [`QuantizedGemm::new`].
///
/// ```
/// use hecate_ptx::{QuantizedGemm, presets};
///
/// let product = presets::q4k_inference(1, 4096, 4096)?;
/// assert_eq!(product, QuantizedGemm::new(1, 4096, 4096)?.into());
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
pub fn q4k_inference(batch: u32, n: u32, k: u32) -> Result<Specification, Error> {
    Ok(QuantizedGemm::new(batch, n, k)?.into())
}

/// The RMS norm of a row of `hidden` columns, with an epsilon of 1e-6. [`Specification::launch`] has one block; a grid of more
/// takes more rows.
///
/// # Errors
/// As [`LayerNorm::new`].
///
/// ```
/// use hecate_ptx::{LayerNorm, Norm, presets};
///
/// let norm = presets::rmsnorm(4096)?;
/// assert_eq!(norm, LayerNorm::new(Norm::Rms, 1, 4096, 1e-6)?.into());
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
pub fn rmsnorm(hidden: u32) -> Result<Specification, Error> {
    Ok(LayerNorm::new(Norm::Rms, 1, hidden, 1e-6)?.into())
}
