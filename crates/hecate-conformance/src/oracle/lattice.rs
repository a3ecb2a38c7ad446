//! `S ← rows of (a S + θ g (h − b R)) over their norms`.
//!
//! (60)–(64) of `hecate-core`: slots are the rows of `S [K,V]`, each of length 1; `R` is `S` at the gradient point.
//! `h` is `[1,V]`, `b` and `g` are columns `[K,1]` with a number for each slot.

use super::{Oracle, Token, Var, read};
use hecate_core::{
    Read,
    rules::{Lattice, RETENTION_FLOOR, UnitSlots, Variant},
};

impl Oracle for Lattice {
    fn all() -> Vec<Self> {
        use {Read::*, Variant::*};
        [
            // Each variant exact and read after; the rest of the options once each, groups shorter and longer than a
            // chunk.
            (Decode, After, None),
            (Similarity, After, None),
            (Encode, After, None),
            (Decode, Before, None),
            (Decode, After, Some(16)),
            (Encode, After, Some(70)),
            (Similarity, Before, Some(5)),
        ]
        .map(|(variant, read, frozen)| Self { variant, read, frozen })
        .into()
    }

    /// Encode descends on `½|k − S v|²`, which is stable while `θ|v|²`, or `θ/a |v|²` where `a` is small, stays under about
    /// 2, and values here are normal numbers. The others move slots by `θ|h|` at most.
    fn strength(self) -> f64 {
        match self.variant {
            Variant::Encode => 0.03,
            _ if self.frozen.is_some() => 0.1,
            _ => 1.0,
        }
    }

    fn step(self, token: &Token<Self>, old: &UnitSlots<Var>, point: &UnitSlots<Var>) -> (Var, UnitSlots<Var>) {
        let Token { q, k, v, gates, .. } = token;
        // (60): Decode writes what is left of the value, the others the value.
        let h = if self.variant == Variant::Decode { v - k.dot(&point.s) } else { v.clone() };
        // (61): how much of `h` lies along each slot.
        let b = point.s.dot(&h.t());
        let g = if self.variant == Variant::Encode { k.t() - &b } else { k.t() };
        // (62), all slots at once: `h [1,V]` serves every row of `b R [K,V]`.
        let across = h - b * &point.s;
        // The norm of `X` falls out, so `X/a` serves as well, and what is zero comes out as zero: `d log a` where `θ` is.
        let x = &old.s + &gates.theta * floored(gates.log_a.exp()).recip() * g * across;
        // Lengths of rows by a product with ones `[V,1]`: `sum` adds up whole matrices.
        let ones = x.constant(v.shape().1, 1, vec![1.0; v.shape().1]);
        let s = &x * x.square().dot(&ones).sqrt().recip();
        (read(self.read, q, &old.s, &s), UnitSlots { s })
    }
}

/// Not under the floor, and without a gradient there.
///
/// `max(a, floor)` (63). Under the floor it is a constant, so `dlog a = 0` there, as the kernels have it.
fn floored(a: Var) -> Var {
    let floor = f64::from(RETENTION_FLOOR);
    if a.value() > floor { a } else { a.constant(1, 1, vec![floor]) }
}
