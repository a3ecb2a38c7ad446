//! `w = θ`, `r = θ` or `θ a`, `η = 0`; frozen: `r = 0`, `f = 1`.

use crate::engine::{Linear, Scalars, Spec, decays, plus, strengths, times};
use hecate_core::{
    Result, Rule,
    rules::{Delta, Erase, WriteGates},
};

impl Linear for Delta {
    fn spec(self) -> Spec {
        let frozen = self.frozen.map(|group| group as usize);
        Spec { read: self.read, frozen, momentum: false, erase: frozen.is_none() }
    }

    fn lower(self, gates: &WriteGates<&[f32]>) -> Result<Scalars> {
        let a = decays(Self::NAME, "log_a", gates.log_a)?;
        let w = strengths(Self::NAME, "theta", gates.theta)?;
        let r = match (self.frozen, self.erase) {
            (Some(_), _) => Vec::new(),
            (None, Erase::Undecayed) => w.clone(),
            (None, Erase::Decayed) => times(&w, &a),
        };
        Ok(Scalars { w, r, a, eta: Vec::new() })
    }

    fn raise(self, gates: &WriteGates<&[f32]>, scalars: &Scalars, grads: Scalars) -> WriteGates<Vec<f32>> {
        let Scalars { w, r, a, .. } = grads;
        match (self.frozen, self.erase) {
            (Some(_), _) => WriteGates { log_a: times(&scalars.a, &a), theta: w },
            (None, Erase::Undecayed) => WriteGates { log_a: times(&scalars.a, &a), theta: plus(&w, &r) },
            (None, Erase::Decayed) => WriteGates {
                log_a: times(&scalars.a, &plus(&a, &times(gates.theta, &r))),
                theta: plus(&w, &times(&scalars.a, &r)),
            },
        }
    }
}
