//! The function `φ` of the slots, and the gradient it makes: equations (70)–(74).
//!
//! `φ` is the identity, or SiLU followed by a norm with or without centring.
//! All vectors are rows `[m]`, `m` slots; `C` centres where the variant asks for it.

use crate::{
    deep::activation::silu,
    rows::{axpy, dot, scale},
};
use hecate_core::rules::{Phi, SLOT_EPSILON};

/// `φ` over `m` slots.
#[derive(Clone, Copy)]
pub(super) struct SlotPhi {
    /// Which function.
    phi: Phi,
    /// `m`.
    slots: usize,
}

/// `φ` at one point, with what its derivatives need there: rows `[m]`.
pub(super) struct PhiPoint {
    /// `φ(z)`.
    pub(super) f: Vec<f32>,
    /// `silu′(z)`.
    slope: Vec<f32>,
    /// `silu″(z)`.
    curvature: Vec<f32>,
    /// The norm that divides.
    n: f32,
}

/// Rows `[m]` for intermediate results of derivatives.
pub(super) struct PhiWorkspace {
    /// `f − code`.
    e: Vec<f32>,
    /// `N e`.
    g: Vec<f32>,
    /// `silu′ ∘ du`.
    w: Vec<f32>,
    /// `N w`.
    nw: Vec<f32>,
    /// Gradient of `f`.
    df: Vec<f32>,
}

/// Rows in a [`PhiPoint`] and a [`PhiWorkspace`] together, for the peak memory.
pub(super) const ROWS: usize = 8;

impl PhiPoint {
    pub(super) fn new(slots: usize) -> Self {
        let row = || vec![0.0; slots];
        Self { f: row(), slope: row(), curvature: row(), n: 1.0 }
    }
}

impl PhiWorkspace {
    pub(super) fn new(slots: usize) -> Self {
        let row = || vec![0.0; slots];
        Self { e: row(), g: row(), w: row(), nw: row(), df: row() }
    }
}

impl SlotPhi {
    pub(super) fn new(phi: Phi, slots: usize) -> Self {
        Self { phi, slots }
    }

    /// `κ`: the mean's factor with centring, 1 without.
    #[inline(always)]
    fn share(self) -> f32 {
        if self.phi == Phi::LnSilu { 1.0 / self.slots as f32 } else { 1.0 }
    }

    /// `x ← C x`: the row without its mean, where the variant centres.
    #[inline(always)]
    fn centre(self, x: &mut [f32]) {
        if self.phi == Phi::LnSilu {
            let mean = x.iter().sum::<f32>() * self.share();
            x.iter_mut().for_each(|x| *x -= mean);
        }
    }

    /// `x ← C x / n`, with `n` returned, in 64 bits: `f − code` cancels, and hands rounding of `f` on to the slots.
    #[inline(always)]
    fn normalise(self, x: &mut [f32]) -> f32 {
        let share = 1.0 / self.slots as f64;
        let (mean, share) = match self.phi {
            Phi::LnSilu => (x.iter().copied().map(f64::from).sum::<f64>() * share, share),
            _ => (0.0, 1.0),
        };
        let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean) * (f64::from(x) - mean)).sum();
        let n = (share * squares + f64::from(SLOT_EPSILON)).sqrt();
        x.iter_mut().for_each(|x| *x = ((f64::from(*x) - mean) / n) as f32);
        n as f32
    }

    /// Equation (70): `φ(z)`, and the slopes of SiLU there.
    #[inline(always)]
    pub(super) fn evaluate(self, z: &[f32], at: &mut PhiPoint) {
        if self.phi == Phi::Identity {
            return at.f.copy_from_slice(z);
        }
        let PhiPoint { f, slope, curvature, n } = at;
        for (((f, slope), curvature), &z) in f.iter_mut().zip(slope).zip(curvature).zip(z) {
            (*f, *slope, *curvature) = silu(z);
        }
        *n = self.normalise(f);
    }

    /// `out = N e`, of (71): back through the norm, whose Jacobian is symmetric.
    #[inline(always)]
    fn norm_vjp(self, at: &PhiPoint, e: &[f32], out: &mut [f32]) {
        out.copy_from_slice(e);
        self.centre(out);
        axpy(out, -self.share() * dot(&at.f, e), &at.f);
        scale(out, at.n.recip());
    }

    /// `e ← J(z)ᵀ e`, of (71): back through norm and SiLU.
    #[inline(always)]
    pub(super) fn pullback(self, at: &PhiPoint, e: &mut [f32], workspace: &mut PhiWorkspace) {
        if self.phi == Phi::Identity {
            return;
        }
        self.norm_vjp(at, e, &mut workspace.g);
        for ((e, g), slope) in e.iter_mut().zip(&workspace.g).zip(&at.slope) {
            *e = slope * g;
        }
    }

    /// `u` of (72): the gradient of `½|φ(z) − code|²` by `z`.
    #[inline(always)]
    pub(super) fn inner_grad(self, at: &PhiPoint, code: &[f32], u: &mut [f32], workspace: &mut PhiWorkspace) {
        for ((u, f), c) in u.iter_mut().zip(&at.f).zip(code) {
            *u = f - c;
        }
        self.pullback(at, u, workspace);
    }

    /// Equations (73), (74): `du` becomes `dz`, and `dcode` is added to.
    /// `u` depends on `z` through SiLU's slope, through the norm, and through the error.
    #[inline(always)]
    pub(super) fn second_derivative(
        self,
        at: &PhiPoint,
        code: &[f32],
        du: &mut [f32],
        dcode: &mut [f32],
        workspace: &mut PhiWorkspace,
    ) {
        if self.phi == Phi::Identity {
            return axpy(dcode, -1.0, du);
        }
        let (PhiPoint { f, slope, curvature, n }, PhiWorkspace { e, g, w, nw, df }) = (at, workspace);
        for ((e, f), c) in e.iter_mut().zip(f).zip(code) {
            *e = f - c;
        }
        for ((w, slope), du) in w.iter_mut().zip(slope).zip(&*du) {
            *w = slope * du;
        }
        self.norm_vjp(at, e, g);
        self.norm_vjp(at, w, nw);
        axpy(dcode, -1.0, nw);
        df.fill(0.0);
        let factor = -self.share() / n;
        axpy(df, factor * dot(f, e), w);
        axpy(df, factor * dot(f, w), e);
        let dn = -(dot(w, g) + dot(df, f)) / n;
        // What is left of `w` is its workspace.
        let ds = w;
        self.norm_vjp(at, nw, ds);
        self.centre(df);
        axpy(ds, n.recip(), df);
        axpy(ds, self.share() * dn, f);
        for ((((du, ds), slope), curvature), g) in du.iter_mut().zip(ds).zip(slope).zip(curvature).zip(g) {
            *du = curvature * *g * *du + slope * *ds;
        }
    }
}
