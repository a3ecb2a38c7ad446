//! The function of the slots, and the gradient it makes: equations (70)–(74).

use crate::{
    deep::activation::silu,
    rows::{axpy, dot, scale},
};
use hecate_core::rules::{Phi, SLOT_EPSILON};

/// `φ` over `m` slots.
#[derive(Clone, Copy)]
pub(super) struct Function {
    phi: Phi,
    slots: usize,
}

/// `φ` at one place: rows `[m]`.
pub(super) struct Place {
    /// `φ(z)`.
    pub(super) f: Vec<f32>,
    /// `silu′(z)`.
    slope: Vec<f32>,
    /// `silu″(z)`.
    bend: Vec<f32>,
    n: f32,
}

/// Rows `[m]` for intermediate results.
pub(super) struct Room {
    e: Vec<f32>,
    g: Vec<f32>,
    w: Vec<f32>,
    nw: Vec<f32>,
    df: Vec<f32>,
}

/// Rows in a [`Place`] and a [`Room`].
pub(super) const ROWS: usize = 8;

impl Place {
    pub(super) fn new(slots: usize) -> Self {
        let row = || vec![0.0; slots];
        Self { f: row(), slope: row(), bend: row(), n: 1.0 }
    }
}

impl Room {
    pub(super) fn new(slots: usize) -> Self {
        let row = || vec![0.0; slots];
        Self { e: row(), g: row(), w: row(), nw: row(), df: row() }
    }
}

impl Function {
    pub(super) fn new(phi: Phi, slots: usize) -> Self {
        Self { phi, slots }
    }

    /// `κ`.
    #[inline(always)]
    fn share(self) -> f32 {
        if self.phi == Phi::LnSilu { 1.0 / self.slots as f32 } else { 1.0 }
    }

    /// `x ← C x`.
    #[inline(always)]
    fn centre(self, x: &mut [f32]) {
        if self.phi == Phi::LnSilu {
            let mean = x.iter().sum::<f32>() * self.share();
            x.iter_mut().for_each(|x| *x -= mean);
        }
    }

    /// (70).
    #[inline(always)]
    pub(super) fn at(self, z: &[f32], place: &mut Place) {
        if self.phi == Phi::Identity {
            return place.f.copy_from_slice(z);
        }
        let Place { f, slope, bend, n } = place;
        for (((f, slope), bend), &z) in f.iter_mut().zip(slope).zip(bend).zip(z) {
            (*f, *slope, *bend) = silu(z);
        }
        self.centre(f);
        *n = (self.share() * dot(f, f) + SLOT_EPSILON).sqrt();
        scale(f, n.recip());
    }

    /// `out = N e`, of (71).
    #[inline(always)]
    fn turn(self, place: &Place, e: &[f32], out: &mut [f32]) {
        out.copy_from_slice(e);
        self.centre(out);
        axpy(out, -self.share() * dot(&place.f, e), &place.f);
        scale(out, place.n.recip());
    }

    /// `e ← J(z)ᵀ e`, of (71).
    #[inline(always)]
    pub(super) fn pull(self, place: &Place, e: &mut [f32], room: &mut Room) {
        if self.phi == Phi::Identity {
            return;
        }
        self.turn(place, e, &mut room.g);
        for ((e, g), slope) in e.iter_mut().zip(&room.g).zip(&place.slope) {
            *e = slope * g;
        }
    }

    /// `u` of (72).
    #[inline(always)]
    pub(super) fn gradient(self, place: &Place, code: &[f32], u: &mut [f32], room: &mut Room) {
        for ((u, f), c) in u.iter_mut().zip(&place.f).zip(code) {
            *u = f - c;
        }
        self.pull(place, u, room);
    }

    /// (73), (74): `du` becomes `dz`, and `dcode` is added to.
    #[inline(always)]
    pub(super) fn bend(self, place: &Place, code: &[f32], du: &mut [f32], dcode: &mut [f32], room: &mut Room) {
        if self.phi == Phi::Identity {
            return axpy(dcode, -1.0, du);
        }
        let (Place { f, slope, bend, n }, Room { e, g, w, nw, df }) = (place, room);
        for ((e, f), c) in e.iter_mut().zip(f).zip(code) {
            *e = f - c;
        }
        for ((w, slope), du) in w.iter_mut().zip(slope).zip(&*du) {
            *w = slope * du;
        }
        self.turn(place, e, g);
        self.turn(place, w, nw);
        axpy(dcode, -1.0, nw);
        df.fill(0.0);
        let factor = -self.share() / n;
        axpy(df, factor * dot(f, e), w);
        axpy(df, factor * dot(f, w), e);
        let dn = -(dot(w, g) + dot(df, f)) / n;
        // What is left of `w` is its room.
        let ds = w;
        self.turn(place, nw, ds);
        self.centre(df);
        axpy(ds, n.recip(), df);
        axpy(ds, self.share() * dn, f);
        for ((((du, ds), slope), bend), g) in du.iter_mut().zip(ds).zip(slope).zip(bend).zip(g) {
            *du = bend * *g * *du + slope * *ds;
        }
    }
}
