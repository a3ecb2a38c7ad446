//! `w = r = θ`; frozen: `r = 0`, `f = 1`.

use crate::engine::{Linear, Spec, Strength};
use hecate_core::rules::Titans;

impl Linear for Titans {
    fn spec(self) -> Spec {
        let erase = if self.frozen.is_some() { Strength::Nothing } else { Strength::Theta };
        Spec { read: self.read, frozen: self.frozen, momentum: true, erase }
    }
}
