//! `w = θ`, `r = θ + β` (L2) or `β` (dot, and L2 frozen with `f = 1`), `η = 0`.

use crate::engine::{Linear, Spec, Strength};
use hecate_core::rules::{Dgd, Objective};

impl Linear for Dgd {
    fn spec(self) -> Spec {
        let erase = match (self.objective, self.frozen) {
            (Objective::L2, None) => Strength::Both,
            _ => Strength::Beta,
        };
        Spec { read: self.read, frozen: self.frozen, momentum: false, erase }
    }
}
