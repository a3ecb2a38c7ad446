//! Dropout on a tape.

use super::{Tape, Var};
use crate::{Masks, Result, dropout::Draws};
use hecate_core::{Backend, primitives as p};

impl<B: Backend> Tape<'_, B> {
    /// The same tape, on which [`Tape::dropout`] drops by these masks. Each use of it draws one of its own.
    pub fn with_dropout(self, masks: Masks) -> Self {
        Self { draws: Some(Draws::new(masks)), ..self }
    }

    /// Zeros in the place of a share `p` of the elements, the others divided by `1 − p` (Srivastava et al., "Dropout: a
    /// simple way to prevent neural networks from overfitting"). `x` itself where nothing is to be dropped: for a share of
    /// 0, on a tape without [`Tape::with_dropout`], and on one that does not record.
    ///
    /// The device makes the mask where it needs it, forward and backward; every device makes the same.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a share outside `[0, 1)`; integers; the device's own failures.
    pub fn dropout(&self, p: f32, x: &Var<B>) -> Result<Var<B>> {
        crate::dropout::check_share("dropout", p)?;
        let Some(draws) = self.draws.as_ref().filter(|_| p > 0.0 && self.record.is_some()) else {
            return Ok(x.clone());
        };
        self.check()?;
        let mask = draws.mask(p);
        let value = p::dropout(mask, &x.value)?;
        Ok(self.push_map(x, value, move |dy| p::dropout(mask, &dy)))
    }
}
