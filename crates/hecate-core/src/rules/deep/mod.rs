//! Memories that are functions with weights, learned by descent: structure × bias × retention.
//!
//! [`TitansMlp`], [`Moneta`], [`Yaad`] and [`Memora`] are one step. Their pieces are orthogonal: what the memory is
//! ([`Structure`]), what error it is taught by ([`Bias`]), and how it forgets ([`Retention`], [`Deep::momentum`]).
//! Source: Behrouz et al., "It's All Connected" (MIRAS). Per sequence and head, with the gates of token `t`:
//!
//! ```text
//! W = exposed(X_{t−1})           frozen: exposed(X_c), at the start of the current group        (33)
//! e = f(W; k_t) − v_t,  u = ψ(e)                                       bias                      (34)
//! G = ∂⟨f(W; k_t), u⟩/∂W,  u held constant                             inner gradient            (35)
//! X_t = retain(a_t X_{t−1} − θ_t G)                                    without momentum          (36)
//! S_t = η_t S_{t−1} − θ_t G,  X_t = a_t X_{t−1} + S_t                  with momentum             (37)
//! y_t = f(exposed(X_t); q_t)   (Read::After)   or   f(exposed(X_{t−1}); q_t)                     (38)
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
//! # Bias
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
//! # Retention
//!
//! ```text
//! decay    exposed W = X                                                                         (53)
//! L_q      exposed W = B ν^{2−q} (mirror) or X ν^{2−q} (literal),  B = |X|^{q−2} X,
//!          ν = (Σ|X|^q + ε)^{1/q} over each weight matrix;  its adjoint:
//!          mirror:  X̄ = (q−1)|X|^{q−2} ν^{2−q} W̄ + (2−q) ν^{2−2q} ⟨W̄, B⟩ B
//!          literal: X̄ = ν^{2−q} W̄ + (2−q) ν^{2−2q} ⟨W̄, X⟩ B                                      (54)
//! KL       exposed W = c exp X,  retain = log-softmax down each column;  adjoints: X̄ = c exp(X) ∘ W̄ and
//!          X̄ ← X̄ − exp(X) ∘ (column sums of X̄)                                                  (55)
//! ```
//!
//! # Backward
//!
//! In reverse time, `dX` and `dS` starting at the gradients of the final state:
//!
//! ```text
//! dX += pull(∂f/∂W) at the state that was read;  retain's adjoint (55);  d log a = a ⟨dX, X_{t−1}⟩        (56)
//! momentum: dS += dX,  d log η = η ⟨dS, S_{t−1}⟩,  dθ = −⟨dS, G⟩,  Ḡ = −θ dS,  dS ← η dS                   (57)
//! without:  dθ = −⟨dX, G⟩,  Ḡ = −θ dX                                                                      (58)
//! dX ← a dX + pull(dW) with dW of (41)–(46), frozen: into the gradient of the group's start                (59)
//! ```
//!
//! # Frozen groups as products
//!
//! With `frozen`, decay and an MLP without the layer norm's help or with it, `u` and `δ` of all tokens of a group come
//! from its start, so both weight matrices are linear recurrences (1)–(5) with `w = 1`, `r = 0`, and reading them is
//! two calls of the linear engine: one with keys `k`, values `−θδ`, queries `q`; one with keys `h`, values `−θ u_o`,
//! queries `σ` of what the first one read.

mod memora;
mod moneta;
mod titans_mlp;
mod yaad;

pub use memora::{Memora, MemoraMatrix};
pub use moneta::{Map, Moneta, MonetaMatrix};
pub use titans_mlp::{MomentumWeights, TitansMlp};
pub use yaad::{Huber, HuberGates, HuberMomentumGates, Yaad, YaadMatrix, YaadMomentum};

use super::{Matrix, check_frozen};
use crate::{Dims, Error, Initial, Of, Read, Result, Rule, Shape, Slots, slots};
use std::fmt::Debug;

/// Added to the variance in the layer norm of memories.
pub const NORM_EPSILON: f32 = 1e-6;

/// Added to `Σ|X|^q` in (54).
pub const LQ_EPSILON: f32 = 1e-12;

/// The function inside an MLP memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x σ(x)`.
    #[default]
    Silu,
    /// `½ x (1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    GeluTanh,
    /// `x Φ(x)`.
    Gelu,
}

/// A memory that is one matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MatrixMemory {
    /// Whether the input is added to the output; then `K = V`.
    pub residual: bool,
    /// Whether the output passes a layer norm.
    pub norm: bool,
}

/// A memory that is an MLP with one hidden layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MlpMemory {
    /// Width of the hidden layer over that of a key, at least 1.
    pub expansion: u32,
    /// The function of the hidden layer.
    pub activation: Activation,
    /// Whether the input is added to the output; then `K = V`.
    pub residual: bool,
    /// Whether the output passes a layer norm.
    pub norm: bool,
}

impl Default for MlpMemory {
    fn default() -> Self {
        Self { expansion: 2, activation: Activation::default(), residual: false, norm: false }
    }
}

/// What a memory is, whichever rule it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Structure {
    /// One matrix.
    Matrix(MatrixMemory),
    /// An MLP.
    Mlp(MlpMemory),
}

/// How an error becomes what the memory is taught: (47)–(52).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bias {
    /// The error itself.
    L2,
    /// Gradient of `Σ (e² + ε)^{p/2}`, or with `tanh` the smooth sign that MIRAS suggests, which is no gradient.
    Lp {
        /// Power, at least 1.
        p: f32,
        /// Smoothing of the kink at 0, over 0.
        epsilon: f32,
        /// Whether the sign is a hyperbolic tangent.
        tanh: bool,
    },
    /// Bounded by the gate `delta`.
    Huber(Huber),
}

/// How weights are kept: (53)–(55).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Retention {
    /// They shrink.
    Decay,
    /// They are an image of a dual variable.
    Lq {
        /// Norm, at least 2.
        q: f32,
        /// Which image.
        map: Map,
    },
    /// Each column is a distribution times `scale`.
    Kl {
        /// `c`, over 0.
        scale: f32,
    },
}

/// What a rule of this family comes down to; backends run this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deep {
    /// What the memory is.
    pub structure: Structure,
    /// What it is taught.
    pub bias: Bias,
    /// How it forgets.
    pub retention: Retention,
    /// Whether there is an `S`; then the gates hold `log_eta`, and the state ends with as many more matrices.
    pub momentum: bool,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

/// A rule of this family. Gates come in the order `log_a`, `log_eta` where there is momentum, `theta`, `delta` where the
/// bias is Huber's; states in the order weights, momentum.
pub trait DeepRule: Rule {
    /// The rule's pieces.
    fn deep(self) -> Deep;
}

slots! {
    /// Weights of an MLP memory per sequence and head; `D` is the hidden width.
    pub struct Weights {
        /// `W₀ [N,H,K,D]`.
        w0,
        /// `W₁ [N,H,D,V]`.
        w1,
    }
}

/// What a memory can be made of: a type, so that a rule's state is known to the compiler.
pub trait Memory: Copy + Debug + Default + PartialEq + Send + Sync + 'static {
    /// Whether it is one matrix.
    const MATRIX: bool;
    /// Its weights.
    type Weights: Slots;

    /// Shapes of the weights.
    fn weights(self, dims: &Dims) -> Of<Self::Weights, Shape>;

    /// What fresh weights are filled with.
    fn fresh(self, dims: &Dims) -> Of<Self::Weights, Initial>;

    /// The same without the type.
    fn structure(self) -> Structure;
}

impl Memory for MatrixMemory {
    const MATRIX: bool = true;
    type Weights = Matrix<()>;

    fn weights(self, dims: &Dims) -> Matrix<Shape> {
        Matrix { m: dims.matrices() }
    }

    fn fresh(self, dims: &Dims) -> Matrix<Initial> {
        Matrix { m: fan_in(dims.key) }
    }

    fn structure(self) -> Structure {
        Structure::Matrix(self)
    }
}

impl Memory for MlpMemory {
    const MATRIX: bool = false;
    type Weights = Weights<()>;

    fn weights(self, dims: &Dims) -> Weights<Shape> {
        let (count, hidden) = (dims.sequences.count(), self.hidden(dims.key));
        Weights { w0: [count, dims.heads, dims.key, hidden].into(), w1: [count, dims.heads, hidden, dims.value].into() }
    }

    fn fresh(self, dims: &Dims) -> Weights<Initial> {
        Weights { w0: fan_in(dims.key), w1: fan_in(self.hidden(dims.key)) }
    }

    fn structure(self) -> Structure {
        Structure::Mlp(self)
    }
}

impl MlpMemory {
    /// Width of the hidden layer for keys of width `key`.
    pub fn hidden(self, key: usize) -> usize {
        (self.expansion as usize).saturating_mul(key)
    }
}

impl Structure {
    /// Whether the input is added to the output.
    pub fn residual(self) -> bool {
        match self {
            Self::Matrix(memory) => memory.residual,
            Self::Mlp(memory) => memory.residual,
        }
    }

    /// Whether the output passes a layer norm.
    pub fn norm(self) -> bool {
        match self {
            Self::Matrix(memory) => memory.norm,
            Self::Mlp(memory) => memory.norm,
        }
    }

    /// Width of the hidden layer for keys of width `key`; none in a matrix.
    pub fn hidden(self, key: usize) -> Option<usize> {
        match self {
            Self::Matrix(_) => None,
            Self::Mlp(memory) => Some(memory.hidden(key)),
        }
    }
}

fn fan_in(width: usize) -> Initial {
    Initial::Normal((width.max(1) as f32).sqrt().recip())
}

/// Refuses options that fit no memory of these sizes.
fn check(what: &'static str, deep: Deep, dims: &Dims) -> Result<()> {
    let refuse = |option, found: String, expected| Err(Error::Config { what, option, found, expected });
    check_frozen(what, deep.frozen)?;
    if let Structure::Mlp(MlpMemory { expansion: 0, .. }) = deep.structure {
        return refuse("expansion", "0".into(), "a hidden layer at least as wide as a key");
    }
    if deep.structure.residual() && dims.key != dims.value {
        let found = format!("true with keys of width {} and values of width {}", dims.key, dims.value);
        return refuse("residual", found, "keys and values of one width, since inputs are added to outputs");
    }
    if let Bias::Lp { p, epsilon, .. } = deep.bias {
        if !(p.is_finite() && p >= 1.0) {
            return refuse("p", p.to_string(), "a power of at least 1");
        }
        if !(epsilon.is_finite() && epsilon > 0.0) {
            return refuse("epsilon", epsilon.to_string(), "a number over 0");
        }
    }
    match deep.retention {
        Retention::Lq { q, .. } if !(q.is_finite() && q >= 2.0) => refuse("q", q.to_string(), "a norm of at least 2"),
        Retention::Kl { scale } if !(scale.is_finite() && scale > 0.0) => {
            refuse("scale", scale.to_string(), "a number over 0")
        }
        _ => Ok(()),
    }
}
