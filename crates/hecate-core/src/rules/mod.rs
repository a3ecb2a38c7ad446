//! The rows of the matrix: every rule, with its equations forward and backward.
//!
//! # The linear recurrence
//!
//! [`Hebbian`], [`Delta`], [`Titans`], [`Dgd`] and [`Lightning`] are one recurrence. Per sequence and head, with the
//! scalars `w` (write strength), `r` (erase strength), `a` (retention) and `η` (momentum) of token `t`, and `f ∈ {0,1}`:
//!
//! ```text
//! p_t = k_t M_{t−1}                                  prediction                        (1)
//! z_t = w_t (v_t − f k_t M_c) − r_t p_t              what is written                   (2)
//! S_t = η_t S_{t−1} + k_tᵀ z_t                       momentum                          (3)
//! M_t = a_t M_{t−1} + S_t                            memory                            (4)
//! y_t = q_t M_t   (Read::After)   or   q_t M_{t−1}   (Read::Before)                    (5)
//! ```
//!
//! `f = 1` where the rule is *frozen*: the target is predicted from `M_c`, the memory at the start of the current group
//! of `G` tokens. `c = t − (t mod G)`, counted from the call's first token. Frozen is another function than exact, not
//! a faster way to it, and a text cut into several calls must be cut at multiples of `G`.
//!
//! Backward, in reverse time, with `dM`, `dS` starting at the gradients of the final state and `dM_c` at zero:
//!
//! ```text
//! dM += q_tᵀ dy_t,  dq_t = dy_t M_tᵀ                 (Read::After)                     (6)
//! da_t = ⟨dM, M_{t−1}⟩,  dS += dM,  dη_t = ⟨dS, S_{t−1}⟩                               (7)
//! dz = k_t dS,  dk_t = z_t dSᵀ                                                         (8)
//! dv_t = w_t dz,  dw_t = dz·(v_t − f k_t M_c),  dr_t = −dz·p_t                         (9)
//! dp = −r_t dz,  dk_t += dp M_{t−1}ᵀ                                                  (10)
//! dM ← a_t dM + k_tᵀ dp,  dS ← η_t dS                                                 (11)
//! [f=1] dk_t −= w_t dz M_cᵀ,  dM_c −= w_t k_tᵀ dz;  at the group's first token dM += dM_c, dM_c = 0     (12)
//! dM += q_tᵀ dy_t,  dq_t = dy_t M_{t−1}ᵀ             (Read::Before)                   (13)
//! dlog a_t = a_t da_t,  dlog η_t = η_t dη_t                                           (14)
//! ```
//!
//! # Its exact chunk form
//!
//! One step is linear in `(M, S)`, so inside a chunk of `C` tokens that starts at `(M₀, S₀)` the influence of each
//! write is a product of gates alone. With index 0 for the state before the chunk:
//!
//! ```text
//! A[t] = a_t A[t−1],  A[0] = 1                                       M_t ← M₀         (15)
//! E[t,j] = η_t E[t−1,j],  E[t,t] = 1                                 S_t ← write j    (16)
//! c[t,j] = a_t c[t−1,j] + E[t,j]                                     M_t ← write j    (17)
//! ```
//!
//! (column 0: influence of `S₀`). The tables are built by these recursions and never as exponentials of differences of
//! summed logarithms. All are products and sums of non-negative factors: nothing cancels, zeros are exact. With
//! `L[t,j] = c[t−1,j]` for `j < t`, `Y[t,j] = c[t,j]` for `j ≤ t` (`Y = L` for [`Read::Before`](crate::Read::Before)),
//! `∘` element by element, `x∗X` row `t` of `X` times `x_t`, and rows stacked into `Q`, `K`, `V`, `Z`:
//!
//! ```text
//! P = A[t−1]∗(K M₀) + c[t−1,0]∗(K S₀) + (L ∘ K Kᵀ) Z                                  (18)
//! (I + r∗(L ∘ K Kᵀ)) Z = w∗(V − f K M_c) − r∗(A[t−1]∗(K M₀) + c[t−1,0]∗(K S₀))        (19)
//! O = A[t]∗(Q M₀) + c[t,0]∗(Q S₀) + (Y ∘ Q Kᵀ) Z       ([t−1] for Read::Before)       (20)
//! M_C = A[C] M₀ + c[C,0] S₀ + Kᵀ (c[C,·]∗Z)                                           (21)
//! S_C = E[C,0] S₀ + Kᵀ (E[C,·]∗Z)                                                     (22)
//! ```
//!
//! (19) is one unit-lower-triangular system; the rest are products of matrices. Given `dO`, `dM_C`, `dS_C`, and with
//! `N = K Kᵀ`, `G = Q Kᵀ`, `a⁻ = A[t−1]`, `b⁻ = c[t−1,0]`, and `a⁺`, `b⁺` the factors of (20):
//!
//! ```text
//! dZ = (Y ∘ G)ᵀ dO + c[C,·]∗(K dM_C) + E[C,·]∗(K dS_C)                                (23)
//! Λ = (I + r∗(L ∘ N))⁻ᵀ dZ                                                            (24)
//! dV = w∗Λ,  dw = Σ_cols Λ ∘ (V − f K M_c),  dr = −Σ_cols Λ ∘ P,  dP = −r∗Λ           (25)
//! dN = L ∘ (dP Zᵀ),  dG = Y ∘ (dO Zᵀ)                                                 (26)
//! dQ = (a⁺∗dO) M₀ᵀ + (b⁺∗dO) S₀ᵀ + dG K                                               (27)
//! dK = (a⁻∗dP) M₀ᵀ + (b⁻∗dP) S₀ᵀ + (dN + dNᵀ) K + dGᵀ Q
//!      + (c[C,·]∗Z) dM_Cᵀ + (E[C,·]∗Z) dS_Cᵀ − f dV M_cᵀ                              (28)
//! dM₀ = A[C] dM_C + Kᵀ (a⁻∗dP) + Qᵀ (a⁺∗dO),  dM_c −= f Kᵀ dV                         (29)
//! dS₀ = c[C,0] dM_C + E[C,0] dS_C + Kᵀ (b⁻∗dP) + Qᵀ (b⁺∗dO)                           (30)
//! dL = N ∘ (dP Zᵀ),  dY = G ∘ (dO Zᵀ),  da⁻ = Σ_cols dP ∘ K M₀,  db⁻ = Σ_cols dP ∘ K S₀,
//! da⁺ = Σ_cols dO ∘ Q M₀,  db⁺ = Σ_cols dO ∘ Q S₀,  dc[C,·] = Σ_cols K dM_C ∘ Z,
//! dE[C,·] = Σ_cols K dS_C ∘ Z,  dA[C] = ⟨dM_C, M₀⟩,  dc[C,0] = ⟨dM_C, S₀⟩,  dE[C,0] = ⟨dS_C, S₀⟩       (31)
//! ```
//!
//! and from the tables back to the gates, for `t = C … 1`:
//!
//! ```text
//! da_t = dA[t] A[t−1] + Σ_j dc[t,j] c[t−1,j];  dA[t−1] += a_t dA[t];  dE[t,·] += dc[t,·];
//! dc[t−1,·] += a_t dc[t,·];  dη_t = Σ_{j<t} dE[t,j] E[t−1,j];  dE[t−1,·] += η_t dE[t,·]                 (32)
//! ```
//!
//! Only the states at chunk starts are kept for the backward: `N H ⌈T/C⌉ K V` elements, twice that with momentum.

mod any;
mod atlas;
pub mod channel;
mod deep;
mod delta;
mod dgd;
mod hebbian;
mod lattice;
mod lif;
mod lightning;
mod titans;
mod trellis;

pub use crate::family::MomentumForm;
pub use any::{AnyRule, RuleVisitor};
pub use atlas::{Atlas, NEWTON_SCHULZ, NEWTON_SCHULZ_EPSILON, Window, WindowGates};
pub use channel::{
    ChannelErase, ChannelEraseLogits, ChannelGates, ChannelStepGates, Comba, Dplr, Gdn2, Gla, Kda, LookupGates,
    LookupLogits, Rwkv7, ScaledErase, ScaledEraseLogits,
};
pub use deep::{
    Activation, AnchorMatrix, AnchorWeights, AttentionalBias, COLUMN_EPSILON, Huber, HuberGates, HuberLogits,
    HuberMomentumGates, HuberMomentumLogits, LQ_EPSILON, Map, MatrixMemory, Memora, MemoraMatrix, Memory, MlpMemory,
    MomentumWeights, Moneta, MonetaMatrix, NORM_EPSILON, Retention, Structure, TitansMlp, Weights, Yaad, YaadMatrix,
    YaadMomentum,
};
pub use delta::{Delta, Erase};
pub use dgd::{Dgd, DgdGates, EraseLogits, Objective};
pub use hebbian::{Hebbian, Matrix, WriteGates, WriteLogits};
pub use lattice::{Lattice, RETENTION_FLOOR, SLOT_NORM_TOLERANCE, UnitSlots, Variant};
pub use lif::{Lif, Reset, Surrogate};
pub use lightning::{Lightning, StrengthGates};
pub use titans::{Momentum, MomentumGates, MomentumLogits, Titans};
pub use trellis::{AnchorPair, CodeGates, CodeLogits, Phi, SLOT_EPSILON, SlotPair, Trellis};

/// Every rule under its family: its name, as [`Rule::NAME`](crate::Rule::NAME) spells it, and its type. All else is made
/// from this one list: the trait [`Rules`](crate::Rules), tests of every column, tables.
#[doc(hidden)]
#[macro_export]
macro_rules! rule_list {
    ($then:ident $callback:ident [$($before:tt)*]) => {
        $crate::rule_list! { @$then $callback [$($before)*]
            Linear { hebbian Hebbian, delta Delta, titans Titans, dgd Dgd, lightning Lightning }
            Channel { gla Gla, kda Kda, gdn2 Gdn2, comba Comba, dplr Dplr, rwkv7 Rwkv7 }
            Deep {
                titans_mlp TitansMlp, moneta Moneta, moneta_matrix MonetaMatrix, yaad Yaad, yaad_matrix YaadMatrix,
                yaad_momentum YaadMomentum, memora Memora, memora_matrix MemoraMatrix
            }
            Own { lattice Lattice, trellis Trellis, atlas Atlas, lif Lif }
        }
    };
    (@types $callback:ident [$($before:tt)*] $($family:ident { $($name:ident $rule:ident),* })*) => {
        $callback! { $($before)* $($($rule),*),* }
    };
    (@named $callback:ident [$($before:tt)*] $($family:ident { $($name:ident $rule:ident),* })*) => {
        $callback! { $($before)* $($($name $rule),*),* }
    };
    (@families $callback:ident [] $($families:tt)*) => { $callback! { $($families)* } };
    (@linear $callback:ident [$($before:tt)*] Linear { $($name:ident $rule:ident),* } $($others:tt)*) => {
        $callback! { $($before)* $($name $rule),* }
    };
    (@channel $callback:ident [$($before:tt)*] Linear $linear:tt Channel { $($name:ident $rule:ident),* } $($others:tt)*) => {
        $callback! { $($before)* $($name $rule),* }
    };
    (@own $callback:ident [] Linear $linear:tt Channel $channel:tt Deep $deep:tt Own { $($name:ident $rule:ident),* }) => {
        $callback! { $($rule),* }
    };
}

/// Compiles for a rule of this family alone.
const fn of_family<R: crate::Rule<Family = F>, F>() {}

/// That each rule is listed under its own family is a matter of compiling.
macro_rules! check_families {
    ($($family:ident { $($name:ident $rule:ident),* })*) => {
        $($(const _: () = of_family::<$rule, crate::family::$family>();)*)*
    };
}
rule_list! { families check_families [] }

/// Calls `$callback!` with the type of every rule, in the order of the table. Arguments after the callback's name are
/// passed on in front of the list.
///
/// ```
/// use hecate_core::{Rule, rules::*};
/// macro_rules! names { ($($rule:ident),*) => { [$(<$rule as Rule>::NAME),*] } }
/// assert_eq!(hecate_core::for_each_rule!(names)[0], "hebbian");
/// ```
#[macro_export]
macro_rules! for_each_rule {
    ($callback:ident $(, $($before:tt)*)?) => { $crate::rule_list! { types $callback [$($($before)*)?] } };
}

/// As [`for_each_rule!`](crate::for_each_rule!), with the name of each rule before its type.
///
/// ```
/// use hecate_core::{Rule, rules::*};
/// macro_rules! names_agree {
///     ($($name:ident $rule:ident),*) => { $(assert_eq!(stringify!($name), <$rule as Rule>::NAME);)* };
/// }
/// hecate_core::for_each_named_rule!(names_agree);
/// ```
#[macro_export]
macro_rules! for_each_named_rule {
    ($callback:ident $(, $($before:tt)*)?) => { $crate::rule_list! { named $callback [$($($before)*)?] } };
}

/// As [`for_each_named_rule!`](crate::for_each_named_rule!), of the linear family alone.
///
/// ```
/// macro_rules! names { ($($name:ident $rule:ident),*) => { [$(stringify!($name)),*] } }
/// assert_eq!(hecate_core::for_each_linear_rule!(names)[..2], ["hebbian", "delta"]);
/// ```
#[macro_export]
macro_rules! for_each_linear_rule {
    ($callback:ident $(, $($before:tt)*)?) => { $crate::rule_list! { linear $callback [$($($before)*)?] } };
}

/// As [`for_each_named_rule!`](crate::for_each_named_rule!), of the channel family alone.
///
/// ```
/// macro_rules! names { ($($name:ident $rule:ident),*) => { [$(stringify!($name)),*] } }
/// assert_eq!(hecate_core::for_each_channel_rule!(names)[..2], ["gla", "kda"]);
/// ```
#[macro_export]
macro_rules! for_each_channel_rule {
    ($callback:ident $(, $($before:tt)*)?) => { $crate::rule_list! { channel $callback [$($($before)*)?] } };
}
