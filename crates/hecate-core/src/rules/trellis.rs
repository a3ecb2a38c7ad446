//! Trellis: two memories of slots, one from keys and one from values, taught to give the same code.
//!
//! Per sequence and head slots are the rows of `S_K [m,K]` and `S_V [m,V]`. `R_K` and `R_V` are the same at the
//! gradient point: before the token, or, frozen, at the start of the current group of tokens. A token brings along its
//! code `c [m]`. Vectors of slots are columns here, `q`, `k`, `v` rows.
//!
//! # The function of the slots
//!
//! `φ` normalises `s = silu(z)`. With `C` the identity and `κ = 1` (L2), or `C e = e − mean e` and `κ = 1/m` (layer
//! norm):
//!
//! ```text
//! n = √(κ|C s|² + ε),  f = φ(z) = C s/n                             Identity: f = z             (70)
//! N e = (C e − κ f (f·e))/n,  J(z)ᵀ e = silu′(z) ∘ N e              Identity: e                 (71)
//! u(z; c) = J(z)ᵀ (φ(z) − c)               the gradient of ½|φ(z) − c|²                         (72)
//! ```
//!
//! `N` is symmetric. Given the gradient `ū` of (72), with `e = f − c` and `w = silu′(z) ∘ ū`:
//!
//! ```text
//! f̄ = −κ (w (f·e) + e (f·w))/n,  n̄ = −(w·N e + f̄·f)/n                                           (73)
//! dc = −N w,  dz = silu″(z) ∘ N e ∘ ū + silu′(z) ∘ (N N w + C f̄/n + κ n̄ f)                      (74)
//! ```
//!
//! Identity: `dc = −ū`, `dz = ū`.
//!
//! # A token
//!
//! ```text
//! S_K ← a S_K − θ u(R_K kᵀ; c) k,  ρ = φ(S_K qᵀ)                                                (75)
//! S_V ← a S_V − θ u(R_V vᵀ; c) v,  y = ρᵀ S_V                                                   (76)
//! ```
//!
//! The read is after both writes. Backward, in reverse time, with `dS_K`, `dS_V` starting at the gradients of the final
//! state:
//!
//! ```text
//! dS_V += ρ dy,  dz = J(S_K qᵀ)ᵀ S_V dyᵀ,  dS_K += dz q,  dq = dzᵀ S_K                          (77)
//! value, then key, with x = v or k:  da += ⟨dS, S⟩,  dθ −= u·dS xᵀ,  ū = −θ dS xᵀ,  dx = −θ uᵀ dS    (78)
//! dz, dc of (74):  dx += dzᵀ R,  dR = dz x,  dS ← a dS                                          (79)
//! ```
//!
//! with the `S` before the write in `⟨dS, S⟩`. `dR` joins `dS`, frozen at the group's first token; `dlog a = a da`.
//!
//! With anchors `B_K`, `B_V`, what is forgotten goes back to them: `B + a (S − B)` stands for `a S` in (75) and (76), then
//! `da += ⟨dS, S − B⟩` and `dB += (1 − a) dS`.

use crate::{Dims, Error, Initial, Result, Rule, Shape, families::Own, rule::check_frozen, slots};

/// Added to the square of the norm in (70).
pub const SLOT_EPSILON: f32 = 1e-6;

/// Two memories of slots taught to give a token's code: (70)–(79).
///
/// With a norm, slots that grow learn less, which bounds them; with [`Phi::Identity`] both passes are delta rules, stable
/// while `θ|k|²` and `θ|v|²` stay under `1 + a`.
/// Memories of zeros are allowed and learn, since `silu′(0) = ½`, but their first write is `1/√ε` times as large as it
/// should be. After a norm only the direction of `z` counts. A step turns it by about `θ/|z|²`. Near `z = 0` any step is a
/// leap whose gradient has no bound. Fresh slots are therefore large, normal values of deviation `2/√m`, which a unit key
/// meets with `|z| ≈ 2`: no write of `θ ≤ 1` comes near zero soon. Without a norm they are half of that.
/// Source: after Karami et al., "Trellis: Learning to Compress Key-Value Memory in Attention Models"; two passes, online
/// gradient with forgetting, gates and code shared by both passes. Norm and origin of the code differ between accounts of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Trellis {
    /// What becomes of the elements that slots answer with.
    pub phi: Phi,
    /// `m`, the number of slots: at least 1, with the L2 norm 2, with the layer norm 3, or no direction is left to learn.
    pub slots: u32,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

impl Default for Trellis {
    fn default() -> Self {
        Self { phi: Phi::default(), slots: 16, frozen: None }
    }
}

/// What becomes of the elements that the slots of [`Trellis`] answer with. Kernels number it in this order, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Phi {
    /// SiLU, then norm 1.
    #[default]
    L2Silu,
    /// SiLU, then mean 0 and variance 1.
    LnSilu,
    /// Nothing.
    Identity,
}

slots! {
    /// Gates of rules that bring a code along.
    pub struct CodeGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memories.
        log_a: Retention,
        /// `θ [B,T,H]`, finite: step size of the descent; under 0 it is an ascent.
        theta: Step,
        /// `c [B,T,H,m]`, finite: what the slots are taught to answer.
        code: Strength,
    }
}

slots! {
    /// What the two memories of slots go back to as they forget.
    pub struct AnchorPair {
        /// `B_K [H,m,K]`.
        bk,
        /// `B_V [H,m,V]`.
        bv,
    }
}

slots! {
    /// What layers form the gates of rules that bring a code along from.
    pub struct CodeLogits {
        /// Step size.
        b_proj,
        /// What the slots are taught to answer, a number a slot.
        code_proj,
    }
}

slots! {
    /// Slots for keys and for values per sequence and head.
    pub struct SlotPair {
        /// `S_K [N,H,m,K]`.
        sk,
        /// `S_V [N,H,m,V]`.
        sv,
    }
}

impl Rule for Trellis {
    const NAME: &'static str = "trellis";
    type Family = Own;
    type Gates = CodeGates<()>;
    type State = SlotPair<()>;
    type Anchor = AnchorPair<()>;

    fn gates(self, dims: &Dims) -> CodeGates<Shape> {
        let code = [dims.batch, dims.tokens, dims.heads, self.slots as usize].into();
        CodeGates { log_a: dims.scalars(), theta: dims.scalars(), code }
    }

    fn state(self, dims: &Dims) -> SlotPair<Shape> {
        let slots = |width| [dims.sequences.count(), dims.heads, self.slots as usize, width].into();
        SlotPair { sk: slots(dims.key), sv: slots(dims.value) }
    }

    fn initial(self, _: &Dims) -> SlotPair<Initial> {
        let size = if self.phi == Phi::Identity { 1.0 } else { 2.0 };
        let fresh = Initial::Normal(size / (self.slots as f32).sqrt());
        SlotPair { sk: fresh, sv: fresh }
    }

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(&mut self.frozen)
    }

    fn check(self, _: &Dims) -> Result<()> {
        let (least, expected) = match self.phi {
            Phi::Identity => (1, "at least 1"),
            Phi::L2Silu => (2, "at least 2: of one slot, the L2 norm leaves the sign alone"),
            Phi::LnSilu => (3, "at least 3: of two slots, the layer norm leaves the order alone"),
        };
        if self.slots < least {
            return Err(Error::Config { what: Self::NAME, option: "slots", found: self.slots.to_string(), expected });
        }
        check_frozen(Self::NAME, self.frozen)
    }
}
