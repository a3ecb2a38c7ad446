//! Dropout on a tape.

use super::{Tape, Var};
use crate::{Masks, Result, dropout::Draws};
use hecate_core::{Backend, Host, Tensor, primitives as p};

impl<B: Backend> Tape<'_, B> {
    /// The same tape, on which [`Tape::dropout`] drops by these masks. Each use of it draws one of its own.
    pub fn with_dropout(self, masks: Masks) -> Self {
        Self { draws: Some(Draws::new(masks)), ..self }
    }

    /// Zeros in the place of a share `p` of the elements, the others divided by `1 − p` (Srivastava et al., "Dropout: a
    /// simple way to prevent neural networks from overfitting"). `x` itself where nothing is to be dropped: for a share of
    /// 0, on a tape without [`Tape::with_dropout`], and on one that does not record.
    ///
    /// The host draws the mask, about a nanosecond an element, and copies it to the device in the type of `x`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a share outside `[0, 1)`; integers; the device's own failures.
    pub fn dropout(&self, p: f32, x: &Var<B>) -> Result<Var<B>> {
        crate::dropout::check_share("dropout", p)?;
        let Some(draws) = self.draws.as_ref().filter(|_| p > 0.0 && self.record.is_some()) else {
            return Ok(x.clone());
        };
        self.check()?;
        let (shape, dtype) = (x.value.shape().clone(), x.value.dtype());
        let mask = Host::from_f32(dtype, draws.mask(p, shape.count())?);
        let mask = Tensor::upload(x.value.device(), shape, mask)?;
        let value = p::mul(&x.value, &mask)?;
        Ok(self.push_map(x, value, move |dy| p::mul(&dy, &mask)))
    }
}
