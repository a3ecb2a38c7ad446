//! `S ← a S − θ J(z)ᵀ (φ(z) − c) x` with `z = R xᵀ`, for keys and for values.

use super::{Forgetting, Oracle, Token, Var};
use hecate_core::rules::{Phi, SLOT_EPSILON, SlotPair, Trellis};

impl Oracle for Trellis {
    fn all() -> Vec<Self> {
        use Phi::*;
        [
            (L2Silu, 16, None),
            (LnSilu, 8, None),
            (Identity, 7, None),
            (L2Silu, 8, Some(16)),
            (LnSilu, 9, Some(5)),
            (Identity, 1, Some(70)),
        ]
        .map(|(phi, slots, frozen)| Self { phi, slots, frozen })
        .into()
    }

    fn group(self) -> Option<usize> {
        self.frozen.map(|group| group as usize)
    }

    /// A norm divides by what was kept.
    fn forgetting(self) -> Forgetting {
        if self.phi == Phi::Identity { Forgetting::Always } else { Forgetting::Sometimes }
    }

    /// Slots meet values, whose squares are about their width: up to 150. Without a norm the values' pass is a delta rule,
    /// stable while `θ|v|²` stays under 2. A norm bounds the steps, but the layer norm's are `√m` times the L2 norm's.
    fn strength(self) -> f64 {
        match self.phi {
            Phi::Identity => 0.01,
            Phi::LnSilu | Phi::L2Silu => 0.1,
        }
    }

    fn step(
        self,
        Token { q, k, v, gates }: &Token<Self>,
        old: &SlotPair<Var>,
        point: &SlotPair<Var>,
    ) -> (Var, SlotPair<Var>) {
        let written = |old: &Var, point: &Var, x: &Var| {
            let gradient = Curve::new(self.phi, &x.dot(&point.t())).gradient(&gates.code);
            gates.log_a.exp() * old - &gates.theta * gradient.t().dot(x)
        };
        let (sk, sv) = (written(&old.sk, &point.sk, k), written(&old.sv, &point.sv, v));
        let out = Curve::new(self.phi, &q.dot(&sk.t())).f.dot(&sv);
        (out, SlotPair { sk, sv })
    }
}

/// `φ` at one place, as a row of slots.
struct Curve {
    phi: Phi,
    /// `φ(z)`.
    f: Var,
    /// `silu′(z)`.
    slope: Var,
    /// What `φ` divides by.
    n: Var,
}

impl Curve {
    fn new(phi: Phi, z: &Var) -> Self {
        if phi == Phi::Identity {
            let one = z.constant(1, 1, vec![1.0]);
            return Self { phi, f: z.clone(), slope: one.clone(), n: one };
        }
        // The logistic function as a hyperbolic tangent, which does not overflow far out.
        let sigmoid = z.scale(0.5).tanh().scale(0.5).shift(0.5);
        let s = centred(phi, &(z * &sigmoid));
        let n = (s.square().sum().scale(share(phi, z))).shift(f64::from(SLOT_EPSILON)).sqrt();
        let slope = &sigmoid * (z * sigmoid.scale(-1.0).shift(1.0)).shift(1.0);
        Self { phi, f: s * n.recip(), slope, n }
    }

    /// `J(z)ᵀ (φ(z) − c)`.
    fn gradient(&self, code: &Var) -> Var {
        let Self { phi, f, slope, n } = self;
        let e = f - code;
        if *phi == Phi::Identity {
            return e;
        }
        let along = (f * &e).sum().scale(share(*phi, f));
        (centred(*phi, &e) - f * along) * n.recip() * slope
    }
}

/// One slot's share in the square of the norm.
fn share(phi: Phi, z: &Var) -> f64 {
    if phi == Phi::LnSilu { 1.0 / z.shape().1 as f64 } else { 1.0 }
}

/// Without its mean, where `φ` takes that off.
fn centred(phi: Phi, s: &Var) -> Var {
    if phi == Phi::LnSilu { s - s.sum().scale(1.0 / s.shape().1 as f64) } else { s.clone() }
}
