//! `w = θ`, `r = 0`, `η = 0`.

use crate::engine::{Linear, Spec, Strength};
use hecate_core::rules::Hebbian;

impl Linear for Hebbian {
    fn spec(self) -> Spec {
        Spec { read: self.read, frozen: None, momentum: false, erase: Strength::Nothing }
    }
}
