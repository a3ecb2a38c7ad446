//! Drawing tokens, a text a task.

use super::unsupported;
use crate::{
    Cpu,
    device::{floats, from_host},
};
use hecate_core::{
    Checked, DType, Host, Result, Tensor,
    primitives::{Cut, Sample, Sampled},
};
use rayon::prelude::*;

impl Sample for Cpu {
    /// `[B]` tokens of `scores [B,V]`: the definition itself, which core has.
    /// Each text has a stream of its own, so its draws do not depend on the rest of the batch.
    fn sample(
        &self,
        _: Checked<Self>,
        cut: &Cut,
        scores: &Tensor<Self>,
        streams: &Tensor<Self>,
    ) -> Result<Sampled<Tensor<Self>>> {
        let (values, width) = (floats(scores)?, scores.shape().last());
        let Host::U32(words) = &**streams.buffer() else {
            return Err(unsupported("sample", format!("streams are words, not {}", streams.dtype())));
        };
        let (streams_of, _) = words.as_chunks::<3>();
        let rows: Vec<_> = values.chunks_exact(width).zip(streams_of).collect();
        let tokens: Vec<u32> =
            self.run(|| rows.par_iter().map(|(scores, stream)| cut.draw(scores, **stream)).collect());
        let next = streams_of.iter().flat_map(|&[low, high, drawn]| [low, high, drawn.wrapping_add(1)]).collect();
        let tokens = from_host(self, [tokens.len()], DType::U32, Host::U32(tokens))?;
        Ok(Sampled { tokens, streams: from_host(self, streams.shape().clone(), DType::U32, Host::U32(next))? })
    }
}
