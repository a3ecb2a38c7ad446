//! `S ← a S − θ J(z)ᵀ (φ(z) − c) x` with `z = R xᵀ`, for keys and for values.
//!
//! (70)–(76) of `hecate-core`: slots `S_K [m,K]` and `S_V [m,V]`, code `c [1,m]`. Vectors of slots are rows here.
//! The Jacobian is spelt out because the inner gradient is part of the forward; its own derivative comes from dfdx.

use super::{Forgetting, Oracle, Token, Var};
use hecate_core::rules::{Phi, SLOT_EPSILON, SlotPair, Trellis};

impl Oracle for Trellis {
    fn all() -> Vec<Self> {
        use Phi::*;
        [
            // Numbers of slots that are powers of two and that are not. One slot alone has no layer norm, which would
            // make it 0.
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

    fn step(self, token: &Token<Self>, old: &SlotPair<Var>, point: &SlotPair<Var>) -> (Var, SlotPair<Var>) {
        let Token { q, k, v, gates, .. } = token;
        // Keys and values are written alike: (75), and the first part of (76).
        let written = |old: &Var, point: &Var, x: &Var| {
            let gradient = Curve::new(self.phi, &x.dot(&point.t())).gradient(&gates.code);
            gates.log_a.exp() * old - &gates.theta * gradient.t().dot(x)
        };
        let (sk, sv) = (written(&old.sk, &point.sk, k), written(&old.sv, &point.sv, v));
        // The read comes after both writes, with the query's weights of slots `[1,m]`: (75), (76).
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
        // `C s` of (70).
        let s = centred(phi, &(z * &sigmoid));
        let n = (s.square().sum().scale(share(phi, z))).shift(f64::from(SLOT_EPSILON)).sqrt();
        // `σ(z) (1 + z (1 − σ(z)))`.
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
        // `N e` of (71): what points along `f` changes the norm only, which `φ` forgets.
        let along = (f * &e).sum().scale(share(*phi, f));
        (centred(*phi, &e) - f * along) * n.recip() * slope
    }
}

/// One slot's share in the square of the norm.
///
/// `κ` of (70): 1 for the L2 norm, `1/m` for the layer norm.
fn share(phi: Phi, z: &Var) -> f64 {
    if phi == Phi::LnSilu { 1.0 / z.shape().1 as f64 } else { 1.0 }
}

/// Without its mean, where `φ` takes that off.
fn centred(phi: Phi, s: &Var) -> Var {
    if phi == Phi::LnSilu { s - s.sum().scale(1.0 / s.shape().1 as f64) } else { s.clone() }
}
