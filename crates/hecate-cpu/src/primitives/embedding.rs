//! Rows of a table, by number.
//!
//! The backward sorts positions by id first. A row of the table's gradient is then one task's sum, in their order.

use super::{fill, of_same_type, unsupported};
use crate::{
    Cpu,
    device::{floats, from_host, tensor},
};
use hecate_core::{Checked, Error, Host, Result, Tensor, memory, primitives::Embedding};

impl Embedding for Cpu {
    /// `[ids, width]`: a copy of rows, in the table's type.
    /// `table [V, width]`, `ids [n]`. Ids are values, so they are checked here and not by core.
    fn embedding(&self, _: Checked<Self>, table: &Tensor<Self>, ids: &Tensor<Self>) -> Result<Tensor<Self>> {
        let width = table.shape().last();
        let ids = checked("embedding", "ids", table.shape().axes()[0], ids)?;
        let rows = of_same_type!("embedding", &**table.buffer(), table => gather(table, width, ids))?;
        from_host(self, [ids.len(), width], table.dtype(), rows)
    }

    /// `[vocabulary, width]`: for each id, the sum of the rows that it stood at, in 64 bits.
    /// `dy [n, width]` has its rows in the order of `ids [n]`.
    fn embedding_backward(
        &self,
        _: Checked<Self>,
        vocabulary: usize,
        ids: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (rows, width) = (floats(dy)?, dy.shape().last());
        // Positions by id, so that each row of the table is one sum.
        let (starts, order) = by_id(vocabulary, checked("embedding", "ids", vocabulary, ids)?)?;
        let mut dtable = memory::zeros("embedding", vocabulary.saturating_mul(width))?;
        fill(
            self,
            width,
            &mut dtable,
            #[inline(always)]
            |first, dtable| {
                // A frequent id adds thousands of rows: 64-bit sums keep them.
                let mut sums = vec![0.0f64; width];
                for (id, out) in (first..).zip(dtable.chunks_exact_mut(width)) {
                    let used = &order[starts[id]..starts[id + 1]];
                    // Most rows of a large table are not used in a step: they stay zero.
                    if used.is_empty() {
                        continue;
                    }
                    sums.fill(0.0);
                    for &i in used {
                        let row = &rows[i * width..][..width];
                        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
                    }
                    out.iter_mut().zip(&sums).for_each(|(out, &sum)| *out = sum as f32);
                }
            },
        );
        tensor(self, [vocabulary, width], dy.dtype(), dtable)
    }
}

/// The ids, if all are under `count`.
///
/// # Errors
/// [`Error::Value`] naming the first that is not; an unsupported type.
pub(super) fn checked<'a>(
    what: &'static str,
    slot: &'static str,
    count: usize,
    ids: &'a Tensor<Cpu>,
) -> Result<&'a [u32]> {
    let Host::U32(ids) = &**ids.buffer() else {
        return Err(unsupported(what, format!("`{slot}` holds {}; give u32", ids.dtype())));
    };
    match ids.iter().position(|&id| id as usize >= count) {
        None => Ok(ids),
        Some(index) => {
            let found = f64::from(ids[index]);
            Err(Error::Value { what, slot, index, found, expected: "less than the size of the vocabulary" })
        }
    }
}

/// The table's rows `[width]` at these ids, one after another.
fn gather<T: Copy>(table: &[T], width: usize, ids: &[u32]) -> Result<Vec<T>> {
    let mut rows = memory::with_capacity("embedding", ids.len().saturating_mul(width))?;
    for &id in ids {
        rows.extend_from_slice(&table[id as usize * width..][..width]);
    }
    Ok(rows)
}

/// Where each id stands: a counting sort.
/// Returns `count + 1` bounds of each id's share, and the positions sorted by id, in their order.
/// `ids.argsort(stable=True)` in `O(count + n)` steps.
fn by_id(count: usize, ids: &[u32]) -> Result<(Vec<usize>, Vec<usize>)> {
    let mut starts = memory::zeros("embedding", count.saturating_add(1))?;
    for &id in ids {
        starts[id as usize + 1] += 1;
    }
    for id in 0..count {
        starts[id + 1] += starts[id];
    }
    // Positions go to their id's share in their order, so that sums do not depend on threads.
    memory::check::<usize>("embedding", starts.len().saturating_add(ids.len()))?;
    let (mut next, mut order) = (starts.clone(), vec![0; ids.len()]);
    for (i, &id) in ids.iter().enumerate() {
        order[next[id as usize]] = i;
        next[id as usize] += 1;
    }
    Ok((starts, order))
}
