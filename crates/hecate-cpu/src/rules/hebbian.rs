//! `w = θ`, `r = 0`, `η = 0`.

use crate::engine::{Linear, Scalars, Spec, decays, strengths, times};
use hecate_core::{
    Result, Rule,
    rules::{Hebbian, WriteGates},
};

impl Linear for Hebbian {
    fn spec(self) -> Spec {
        Spec { read: self.read, frozen: None, momentum: false, erase: false }
    }

    fn lower(self, gates: &WriteGates<&[f32]>) -> Result<Scalars> {
        let a = decays(Self::NAME, "log_a", gates.log_a)?;
        Ok(Scalars { w: strengths(Self::NAME, "theta", gates.theta)?, a, ..Scalars::default() })
    }

    fn raise(self, _: &WriteGates<&[f32]>, scalars: &Scalars, grads: Scalars) -> WriteGates<Vec<f32>> {
        WriteGates { log_a: times(&scalars.a, &grads.a), theta: grads.w }
    }
}
