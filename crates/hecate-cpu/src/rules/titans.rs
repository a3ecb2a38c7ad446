//! `w = r = θ`; frozen: `r = 0`, `f = 1`.

use crate::engine::{Linear, Scalars, Spec, decays, plus, strengths, times};
use hecate_core::{
    Result, Rule,
    rules::{MomentumGates, Titans},
};

impl Linear for Titans {
    fn spec(self) -> Spec {
        let frozen = self.frozen.map(|group| group as usize);
        Spec { read: self.read, frozen, momentum: true, erase: frozen.is_none() }
    }

    fn lower(self, gates: &MomentumGates<&[f32]>) -> Result<Scalars> {
        let a = decays(Self::NAME, "log_a", gates.log_a)?;
        let eta = decays(Self::NAME, "log_eta", gates.log_eta)?;
        let w = strengths(Self::NAME, "theta", gates.theta)?;
        let r = if self.frozen.is_some() { Vec::new() } else { w.clone() };
        Ok(Scalars { w, r, a, eta })
    }

    fn raise(self, _: &MomentumGates<&[f32]>, scalars: &Scalars, grads: Scalars) -> MomentumGates<Vec<f32>> {
        MomentumGates {
            log_a: times(&scalars.a, &grads.a),
            log_eta: times(&scalars.eta, &grads.eta),
            theta: if grads.r.is_empty() { grads.w } else { plus(&grads.w, &grads.r) },
        }
    }
}
