//! Tokens that write several times: the product form of the delta rule, and its like for every rule.
//!
//! To the rule each write is a token, `n` of them one after another (Siems et al., "DeltaProduct", section 3). The first one
//! forgets, and what the last one reads is what the token reads.

use crate::{Result, Tape, Var};
use hecate_core::{Backend, Sequences, Tensor};

/// How often a token writes, at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writes(pub(super) usize);

impl Writes {
    /// Whether tokens write once, so that nothing has to be done.
    pub(super) fn is_one(self) -> bool {
        self.0 == 1
    }

    /// Sequences of as many tokens as there are writes.
    pub(super) fn sequences(self, tokens: &Sequences) -> Sequences {
        if self.is_one() {
            return tokens.clone();
        }
        // Lengths that no array has are refused with the arrays.
        let writes: Vec<usize> = tokens.ranges().map(|rows| rows.len().saturating_mul(self.0)).collect();
        Sequences::packed(&writes)
    }

    /// A token's writes `x [B,T,n·H,..]`, side by side, as tokens `[B,n·T,H,..]`.
    pub(super) fn apart<B: Backend>(self, tape: &Tape<'_, B>, x: Var<B>) -> Result<Var<B>> {
        if self.is_one() {
            return Ok(x);
        }
        let mut axes = x.axes().to_vec();
        axes[1] *= self.0;
        axes[2] /= self.0;
        tape.reshape(&x, axes)
    }

    /// `x [B,T,H,..]` where each token's first write is, and zeros where its others are: `[B,n·T,H,..]`.
    pub(super) fn at_first<B: Backend>(self, tape: &Tape<'_, B>, x: Var<B>) -> Result<Var<B>> {
        match self.zeros(&x)? {
            Some(zeros) => self.apart(tape, tape.concat(&[&x, &zeros], 2)?),
            None => Ok(x),
        }
    }

    /// The same where each token's last write is.
    pub(super) fn at_last<B: Backend>(self, tape: &Tape<'_, B>, x: Var<B>) -> Result<Var<B>> {
        match self.zeros(&x)? {
            Some(zeros) => self.apart(tape, tape.concat(&[&zeros, &x], 2)?),
            None => Ok(x),
        }
    }

    /// Of `x [B,n·T,H,..]` what belongs to each token's last write: `[B,T,H,..]`.
    pub(super) fn last<B: Backend>(self, tape: &Tape<'_, B>, x: Var<B>) -> Result<Var<B>> {
        if self.is_one() {
            return Ok(x);
        }
        let (mut axes, heads) = (x.axes().to_vec(), x.axes()[2]);
        axes[1] /= self.0;
        axes[2] *= self.0;
        tape.narrow(&tape.reshape(&x, axes)?, 2, (self.0 - 1) * heads, heads)
    }

    /// What stands beside `x [B,T,H,..]` in the other writes: `[B,T,(n−1)·H,..]`; none for one write.
    fn zeros<B: Backend>(self, x: &Var<B>) -> Result<Option<Var<B>>> {
        if self.is_one() {
            return Ok(None);
        }
        let mut axes = x.axes().to_vec();
        axes[2] *= self.0 - 1;
        let zeros = Tensor::zeros(x.value().device(), axes, x.value().dtype())?;
        Ok(Some(Var::constant(zeros)))
    }
}
