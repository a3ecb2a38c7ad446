//! `w = θ`, `r = θ` or `θ a`, `η = 0`; frozen: `r = 0`, `f = 1`.

use crate::engine::{Linear, Spec, Strength};
use hecate_core::rules::{Delta, Erase};

impl Linear for Delta {
    fn spec(self) -> Spec {
        let erase = match (self.frozen, self.erase) {
            (Some(_), _) => Strength::Nothing,
            (None, Erase::Undecayed) => Strength::Theta,
            (None, Erase::Decayed) => Strength::Decayed,
        };
        Spec { read: self.read, frozen: self.frozen, momentum: false, erase }
    }
}
