//! Memories that are functions with weights, learned by descent: structure × bias × retention.
//!
//! [`TitansMlp`], [`Moneta`], [`Yaad`] and [`Memora`] are one step. Their pieces are orthogonal: what the memory is
//! ([`Structure`]), what error it is taught by ([`AttentionalBias`]), and how it forgets ([`Retention`],
//! [`DeepForm::momentum`](crate::families::DeepForm::momentum)).
//! Source: Behrouz et al., "It's All Connected" (MIRAS). Per sequence and head, with the gates of token `t`, `w` the
//! map from a state to weights:
//!
//! ```text
//! W = w(X_{t−1})                 frozen: w(X_c), at the start of the current group              (33)
//! e = f(W; k_t) − v_t,  u = ψ(e)                                       bias                      (34)
//! G = ∂⟨f(W; k_t), u⟩/∂W,  u held constant                             inner gradient            (35)
//! X_t = retain(a_t X_{t−1} − θ_t G)                                    without momentum          (36)
//! S_t = η_t S_{t−1} − θ_t G,  X_t = a_t X_{t−1} + S_t                  with momentum             (37)
//! y_t = f(w(X_t); q_t)         (Read::After)   or   f(w(X_{t−1}); q_t)                           (38)
//! ```
//!
//! # Structure
//!
//! A matrix has `o = x W₀`, an MLP `pre = x W₀`, `h = σ(pre)`, `o = h W₁`. The output is `[x +] [LN](o)`; the layer
//! norm has no parameters: `x̂ = (o − mean o)/s`, `s² = var o + 10⁻⁶`, and its Jacobian is symmetric,
//! `J e = (e − mean e − x̂ mean(x̂∘e))/s`. With `u_o = J u` (without norm `u`):
//!
//! ```text
//! matrix: G₀ = kᵀ u_o                                                                            (39)
//! MLP:    G₁ = hᵀ u_o,  b = W₁ u_o,  δ = b ∘ σ′(pre),  G₀ = kᵀ δ                                 (40)
//! ```
//!
//! Given the gradients `Ḡ₀`, `Ḡ₁` of (39) or (40):
//!
//! ```text
//! h̄ = Ḡ₁ u_o,  ū_o = h Ḡ₁,  δ̄ = k Ḡ₀,  dk = Ḡ₀ δ                                                 (41)
//! b̄ = δ̄ ∘ σ′,  p̄ = δ̄ ∘ b ∘ σ″ + h̄ ∘ σ′,  ū_o += b̄ W₁,  dW₁ = b̄ᵀ u_o                            (42)
//! LN: ū = J ū_o,  ō = ∂⟨ū_o, J(o) u⟩/∂o                       without: ū = ū_o, ō = 0           (43)
//! ē = ψ′(e)ᵀ ū,  dv = −ē,  [residual] dk += ē,  ō += J ē (without norm ē)                        (44)
//! p̄ += (W₁ ō) ∘ σ′,  dW₁ += hᵀ ō,  dW₀ = kᵀ p̄,  dk += W₀ p̄                                      (45)
//! matrix: ū_o = k Ḡ₀,  dk = Ḡ₀ u_o;  (43), (44);  dW₀ = kᵀ ō,  dk += W₀ ō                        (46)
//! ```
//!
//! where in (43), with `g = J u`, `d` the width and `x̄ = −(ū_o (x̂·u) + u (x̂·ū_o))/(s d)`,
//! `ō = (x̄ − mean x̄)/s − ((ū_o·g)/s + (x̄·x̂)/s) x̂/d`.
//!
//! # Attentional bias
//!
//! ```text
//! L2          ψ = e                                        ψ′ᵀū = ū                              (47)
//! Lp          ψ = p e m^{(p−2)/2},  m = e² + ε             ū p m^{(p−4)/2} (m + (p−2) e²)        (48)
//! Lp, tanh    ψ = p tanh(10 e) m^{(p−1)/2}                 its derivative, element by element    (49)
//! Huber       ψ = clip(e, −δ, δ)      inside ū;  outside 0, dδ = Σ ū sign e                      (50)
//! Huber norm  ψ = e min(1, δ/|e|)     inside ū;  outside (δ/|e|)(ū − ê(ê·ū)), dδ = ê·ū           (51)
//! Huber mix   ψ = e if |e| ≤ δ, else δ sign e:  inside ū;  outside 0, dδ = sign(e)·ū             (52)
//! ```
//!
//! With `clip = c`, `u` of (34) is shortened to a length under `c`; short errors keep theirs, and all their direction.
//! `ū` of (43) goes back through it before (44):
//!
//! ```text
//! u = s ψ,  s = (1 + |ψ|²/c²)^{−1/2}                       ψ̄ = s (ū − u (u·ū)/c²)               (94)
//! ```
//!
//! # Retention
//!
//! ```text
//! decay    w(X) = X                                                                              (53)
//! L_q      w(X) = B ν^{2−q} (mirror) or X ν^{2−q} (literal),  B = |X|^{q−2} X,
//!          ν = (Σ|X|^q + ε)^{1/q} over each weight matrix;  its adjoint:
//!          mirror:  X̄ = (q−1)|X|^{q−2} ν^{2−q} W̄ + (2−q) ν^{2−2q} ⟨W̄, B⟩ B
//!          literal: X̄ = ν^{2−q} W̄ + (2−q) ν^{2−2q} ⟨W̄, X⟩ B                                      (54)
//! KL       w(X) = c exp X,  retain = log-softmax down each column;  adjoints: X̄ = c exp(X) ∘ W̄ and
//!          X̄ ← X̄ − exp(X) ∘ (column sums of X̄)                                                  (55)
//! ```
//!
//! # An anchor
//!
//! With an anchor `B` ([`Inputs::anchor`](crate::Inputs::anchor)), what is forgotten goes back to `B` and not to zero:
//! `B + a_t (X_{t−1} − B)` stands for `a_t X_{t−1}` in (36) and (37), and the gradient point stays `X_{t−1}`. With `dX` of
//! what stands there, `d log a = a ⟨dX, X_{t−1} − B⟩`, `dB += (1 − a) dX`, and (59) is as it was. Of distributions `X` are
//! logarithms, so the forgotten ones are a product of powers. Reads come after the write.
//! Weights that decay to zero leave the region that a model was trained in; two layers of zeros learn nothing at all.
//!
//! With `renorm`, which takes frozen groups, decay and an anchor, each column `x` of the weights `X_c` at the start of a
//! group is first set back to the length that the same column `b` of `B` has. Momentum stays. What a call is given starts a
//! group and is set back too; what it hands on is not, until the next group starts. So a text that is cut at groups is one text.
//! Given `ȳ` of the column that tokens find:
//!
//! ```text
//! y = f x,  f = √((|b|² + ε)/(|x|² + ε)),  ε = 10⁻⁶
//! x̄ = f (ȳ − x (x·ȳ)/(|x|² + ε)),  b̄ = f b (x·ȳ)/(|b|² + ε)                                    (95)
//! ```
//!
//! `ε` keeps columns of zeros what they are, and their gradients finite. Source of the idea: Zhang et al., "Test-Time
//! Training Done Right" (LaCT), which sets rows of fast weights back behind each chunk.
//!
//! # Backward
//!
//! In reverse time, `dX` and `dS` starting at the gradients of the final state:
//!
//! ```text
//! dX += pullback(∂f/∂W) at the state that was read;  retain's adjoint (55);  d log a = a ⟨dX, X_{t−1}⟩    (56)
//! momentum: dS += dX,  d log η = η ⟨dS, S_{t−1}⟩,  dθ = −⟨dS, G⟩,  Ḡ = −θ dS,  dS ← η dS                   (57)
//! without:  dθ = −⟨dX, G⟩,  Ḡ = −θ dX                                                                      (58)
//! dX ← a dX + pullback(dW) with dW of (41)–(46), frozen: into the gradient of the group's start            (59)
//! ```
//!
//! # Frozen groups as products
//!
//! This holds with `frozen`, decay and an MLP, with the layer norm or without. `u` and `δ` of all tokens of a group
//! come from its start. So both weight matrices are linear recurrences (1)–(5) with `w = 1`, `r = 0`. Reading them is
//! two calls of the linear engine. The first has keys `k`, values `−θδ`, queries `q`. The second has keys `h`, values
//! `−θ u_o`, and as queries `σ` of what the first one read.

mod memora;
mod moneta;
mod titans_mlp;
mod yaad;

pub use crate::family::{Activation, AttentionalBias, Huber, Map, MatrixMemory, MlpMemory, Retention, Structure};
pub use memora::{Memora, MemoraMatrix};
pub use moneta::{Moneta, MonetaMatrix};
pub use titans_mlp::{MomentumWeights, TitansMlp};
pub use yaad::{HuberGates, HuberLogits, HuberMomentumGates, HuberMomentumLogits, Yaad, YaadMatrix, YaadMomentum};

use super::Matrix;
use crate::{
    Slots,
    families::{DeepMatrix, LowerWeights},
    slots,
};
use std::fmt::Debug;

/// Added to the variance in the layer norm of memories.
pub const NORM_EPSILON: f32 = 1e-6;

/// Added to squared lengths of columns in (95).
pub const COLUMN_EPSILON: f32 = 1e-6;

/// Added to `Σ|X|^q` in (54).
pub const LQ_EPSILON: f32 = 1e-12;

slots! {
    /// Weights of an MLP memory per sequence and head; `D` is the hidden width.
    pub struct Weights {
        /// `W₀ [N,H,K,D]`.
        w0,
        /// `W₁ [N,H,D,V]`.
        w1,
    }
}

slots! {
    /// What the weights of an MLP memory go back to as they are forgotten.
    pub struct AnchorWeights {
        /// Of `W₀`, `[H,K,D]`.
        b0,
        /// Of `W₁`, `[H,D,V]`.
        b1,
    }
}

slots! {
    /// What a memory of one matrix goes back to as it is forgotten.
    pub struct AnchorMatrix {
        /// `B [H,K,V]`.
        b,
    }
}

/// What a memory can be made of: a type, so that a rule's state is known to the compiler.
pub trait Memory: Copy + Debug + Default + PartialEq + Send + Sync + 'static {
    /// Whether it is one matrix.
    const MATRIX: bool;
    /// Its weights.
    type Weights: LowerWeights;
    /// What they go back to.
    type Anchor: Slots;

    /// The same without the type.
    fn structure(self) -> Structure;
}

impl Memory for MatrixMemory {
    const MATRIX: bool = true;
    type Weights = Matrix<()>;
    type Anchor = AnchorMatrix<()>;

    fn structure(self) -> Structure {
        Structure::Matrix(self)
    }
}

impl Memory for MlpMemory {
    const MATRIX: bool = false;
    type Weights = Weights<()>;
    type Anchor = AnchorWeights<()>;

    fn structure(self) -> Structure {
        Structure::Mlp(self)
    }
}

impl LowerWeights for Matrix<()> {
    fn lower_backward<T>(mut matrix: impl FnMut(DeepMatrix) -> T) -> Matrix<T> {
        Matrix { m: matrix(DeepMatrix::W0) }
    }
}

impl LowerWeights for Weights<()> {
    fn lower_backward<T>(mut matrix: impl FnMut(DeepMatrix) -> T) -> Weights<T> {
        Weights { w0: matrix(DeepMatrix::W0), w1: matrix(DeepMatrix::W1) }
    }
}
