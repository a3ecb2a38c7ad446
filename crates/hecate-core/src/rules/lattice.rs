//! Lattice: slots of unit norm, each written only across its own direction.
//!
//! Per sequence and head, slots `s_i` are the rows of `S [K,V]`. Those of the gradient point are `r_i`: `s_i` before
//! the token, or, frozen, at the start of the current group of tokens. `q` and `k` are weights of slots.
//!
//! ```text
//! h = v                                     Decode: h = v − Σ_i k_i r_i                         (60)
//! b_i = r_i·h,  g_i = k_i                   Encode: g_i = k_i − b_i                             (61)
//! U_i = h − b_i r_i                         what of h lies across r_i                           (62)
//! X_i = a s_i + θ g_i U_i,  n_i = |X_i|,  s_i ← X_i/n_i                                         (63)
//! y = Σ_i q_i s_i                           after the write (Read::After), or before it         (64)
//! ```
//!
//! The step is descent on `½|v − k S|²` (Decode), ascent on `k S·v` (Similarity) or descent on `½|k − S v|²` (Encode)
//! over slots on the unit sphere. Backward, in reverse time, with `dS` starting at the gradient of the final state and
//! `s′_i` the slots after the token:
//!
//! ```text
//! dS += qᵀ dy,  dq_i = s′_i·dy              (Read::After)                                       (65)
//! dX_i = (ds_i − s′_i (s′_i·ds_i))/n_i,  ds_i ← a dX_i                                          (66)
//! dg_i = θ U_i·dX_i,  dθ = Σ_i g_i U_i·dX_i,  dlog a = −θ dθ,  dU_i = θ g_i dX_i,  dk_i = dg_i   (67)
//! db_i = −dU_i·r_i,  dh = Σ_i dU_i + db_i r_i,  dr_i = db_i h − b_i dU_i     Encode: db_i −= dg_i   (68)
//! dv = dh                                   Decode: dk_i −= r_i·dh,  dr_i −= k_i dh             (69)
//! ```
//!
//! `dr_i` joins `ds_i`, frozen at the group's first token; with [`Read::Before`] (65) comes last, with `s_i` for `s′_i`.
//! That `dlog a = −θ dθ` is because only the ratio of `θ` to `a` matters: what scales `X_i` does not turn it.
//!
//! With an anchor `B`, slots turn back to its rows: `X_i = b_i + a (s_i − b_i) + θ g_i U_i`, and `a` may be 0. Then
//! `d log a = a Σ_i dX_i·(s_i − b_i)` and `db_i = (1 − a) dX_i`.
//!
//! # The floor of retention
//!
//! At `a = 0` a slot that nothing is written to would have no direction. So `a = max(exp log_a, `[`RETENTION_FLOOR`]`)`,
//! and `dlog a = 0` at the floor. Exact, `n_i² = a² + θ² g_i² |U_i|²` is then never under the floor. Frozen,
//! `U_i` lies across `r_i` and not across `s_i`: `n_i ≥ a s_i·r_i`, which shrinks through a group that writes strongly.

use super::{AnchorMatrix, WriteGates};
use crate::{
    Dims, Initial, Read, Result, Rule,
    families::Own,
    rule::{check_frozen, check_read},
    slots,
};

/// Least retention of [`Lattice`]; its gradient is 0 there.
pub const RETENTION_FLOOR: f32 = 1e-3;

/// How far the norm of an initial slot of [`Lattice`] may be from 1: more than rounding to 16 bits costs.
pub const SLOT_NORM_TOLERANCE: f32 = 0.01;

/// A memory of `K` slots of width `V` and unit norm: (60)–(69).
///
/// Initial slots must have norm 1, to 1 %. Norms stay 1 whatever is written, so no step size makes it run away; values
/// of norm far over `a/θ` replace a slot's direction by their own. Squares of `θ g U` must be finite floats.
/// Source: Karami and Mirrokni, "Lattice: Learning to Efficiently Compress the Memory", orthogonal state recurrence.
/// Which of the variants and whether slots are renormalised at every step (as here) differs between accounts of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Lattice {
    /// What the slots are taught.
    pub variant: Variant,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

/// What the slots of [`Lattice`] are taught. Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Variant {
    /// To give back the value when weighed by the key: `½|v − k S|²`.
    #[default]
    Decode,
    /// To be like the value where the key is large: `−k S·v`.
    Similarity,
    /// To give back the key when asked with the value: `½|k − S v|²`.
    Encode,
}

slots! {
    /// Unit rows per sequence and head.
    pub struct UnitSlots {
        /// `S [N,H,K,V]`, a slot a row, each of norm 1.
        s,
    }
}

impl Rule for Lattice {
    const NAME: &'static str = "lattice";
    type Family = Own;
    type Gates = WriteGates<()>;
    type State = UnitSlots<()>;
    type Anchor = AnchorMatrix<()>;

    fn initial(self, _: &Dims) -> UnitSlots<Initial> {
        UnitSlots { s: Initial::Unit }
    }

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(&mut self.frozen)
    }

    fn check(self, dims: &Dims) -> Result<()> {
        check_frozen(Self::NAME, self.frozen)?;
        check_read(Self::NAME, self.read, dims)
    }
}
