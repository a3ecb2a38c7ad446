//! `w = θ`, `r = θ + β` (L2) or `β` (dot, and L2 frozen with `f = 1`), `η = 0`.

use crate::engine::{Linear, Scalars, Spec, decays, plus, strengths, times};
use hecate_core::{
    Result, Rule,
    rules::{Dgd, DgdGates, Objective},
};

/// Whether the erase strength holds θ beside β.
fn erases_twice(rule: Dgd) -> bool {
    rule.objective == Objective::L2 && rule.frozen.is_none()
}

impl Linear for Dgd {
    fn spec(self) -> Spec {
        Spec { read: self.read, frozen: self.frozen.map(|group| group as usize), momentum: false, erase: true }
    }

    fn lower(self, gates: &DgdGates<&[f32]>) -> Result<Scalars> {
        let a = decays(Self::NAME, "log_a", gates.log_a)?;
        let w = strengths(Self::NAME, "theta", gates.theta)?;
        let beta = strengths(Self::NAME, "beta", gates.beta)?;
        let r = if erases_twice(self) { plus(&w, &beta) } else { beta };
        Ok(Scalars { w, r, a, eta: Vec::new() })
    }

    fn raise(self, _: &DgdGates<&[f32]>, scalars: &Scalars, grads: Scalars) -> DgdGates<Vec<f32>> {
        DgdGates {
            log_a: times(&scalars.a, &grads.a),
            theta: if erases_twice(self) { plus(&grads.w, &grads.r) } else { grads.w },
            beta: grads.r,
        }
    }
}
