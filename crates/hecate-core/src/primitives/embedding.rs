//! Rows of a table, by number.

use super::{check_device, check_dtype, check_filled, check_float, check_rank, check_shape, check_size};
use crate::{Checked, DType, Device, Error, Result, Shape, Tensor};

/// Most rows of a table: ids have 32 bits.
const ROWS: usize = u32::MAX as usize;

/// Table look-up.
pub trait Embedding: Device {
    /// `y[i] = table[ids[i]]`; `table [V,D]`, `ids [n]`, `y [n,D]`.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for an id of `V` or more, where the device can tell at no cost; elsewhere
    /// such a row is NaN.
    fn embedding(&self, checked: Checked<Self>, table: &Tensor<Self>, ids: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `dtable[v] = Σ_{i: ids[i] = v} dy[i]`, `[vocabulary, D]`.
    ///
    /// # Errors
    /// As [`Embedding::embedding`].
    fn embedding_backward(
        &self,
        checked: Checked<Self>,
        vocabulary: usize,
        ids: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;
}

/// Rows `ids [..]` of `table [V,D]`: `[.., D]`.
///
/// # Errors
/// Ids that are no integers or not under `V`; a table that is not a matrix of floats.
pub fn embedding<D: Embedding>(table: &Tensor<D>, ids: &Tensor<D>) -> Result<Tensor<D>> {
    check_device("embedding", table, &[("ids", ids)])?;
    check_float("embedding", "table", table)?;
    check_rank("embedding", "table", table, 2, "2 ([V,D])")?;
    check_filled("embedding", "ids", ids)?;
    check_dtype("embedding", "ids", ids, DType::U32)?;
    let shape = rows_of(ids, table.shape().last());
    check_size("embedding", &shape, table.dtype())?;
    table.device().embedding(Checked::new(), table, ids)?.reshape(shape)
}

/// Gradient of [`embedding`] by the table: `[vocabulary, D]`.
///
/// # Errors
/// As [`embedding`], a `dy` that is not `[ids.., D]`, a vocabulary of none or of 2³² and more.
pub fn embedding_backward<D: Embedding>(vocabulary: usize, ids: &Tensor<D>, dy: &Tensor<D>) -> Result<Tensor<D>> {
    check_device("embedding", dy, &[("ids", ids)])?;
    check_float("embedding", "dy", dy)?;
    check_filled("embedding", "ids", ids)?;
    check_dtype("embedding", "ids", ids, DType::U32)?;
    check_shape("embedding", "dy", dy, &rows_of(ids, dy.shape().last()))?;
    if !(1..=ROWS).contains(&vocabulary) {
        let (found, expected) = (vocabulary.to_string(), "the rows of the table: at least 1, and under 2^32");
        return Err(Error::Config { what: "embedding", option: "vocabulary", found, expected });
    }
    check_size("embedding", &[vocabulary, dy.shape().last()].into(), dy.dtype())?;
    dy.device().embedding_backward(Checked::new(), vocabulary, ids, dy)
}

fn rows_of<D: Device>(ids: &Tensor<D>, width: usize) -> Shape {
    ids.shape().axes().iter().copied().chain([width]).collect::<Vec<_>>().into()
}
