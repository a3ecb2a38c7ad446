//! What memories with weights are put together from, as data.

/// The function inside an MLP memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct MatrixMemory {
    /// Whether the input is added to the output; then `K = V`.
    pub residual: bool,
    /// Whether the output passes a layer norm.
    pub norm: bool,
}

/// A memory that is an MLP with one hidden layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
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
pub enum AttentionalBias {
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

/// How the dual variable becomes weights: (54).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Map {
    /// `|X|^{q−2} X / ν^{q−2}`: the solution of the problem that the rule is derived from; doubling `X` doubles `W`.
    #[default]
    Mirror,
    /// `X / ν^{q−2}`, as printed in the paper, without the power of each element. At `q = 4` doubling `X` halves `W`,
    /// and a decaying `X` makes `W` grow without bound.
    Literal,
}

/// Where an error counts as large: (50)–(52).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Huber {
    /// Each coordinate by itself.
    #[default]
    Coordinate,
    /// By its length, which is cut.
    Norm,
    /// By its length, and then every coordinate becomes `δ` times its sign, as printed in the paper: what is taught
    /// jumps where the length passes `δ`.
    Mix,
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
