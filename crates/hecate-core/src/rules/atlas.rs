//! Atlas: a memory that learns a window of tokens at every step, its update orthogonalised where wanted.

use crate::{Dims, Error, NoSlots, Read, Result, Rule, Shape, families::Own, rule::check_frozen, slots};

/// `(α, β, κ)` of a Newton-Schulz step (90): those of the Muon optimiser, which bring singular values of `[0.003, 1]`
/// near 1 in five steps.
pub const NEWTON_SCHULZ: [f32; 3] = [3.4445, -4.7750, 2.0315];

/// Joins the norm that Newton-Schulz divides by (88), so that no momentum at all stays none.
pub const NEWTON_SCHULZ_EPSILON: f32 = 1e-7;

/// Steps of Newton-Schulz at most: each multiplies rounding in weak directions by 3.4.
const STEPS: u32 = 10;

/// Tokens of a window at most.
const WINDOW: u32 = 1024;

/// The Omega rule of Atlas: every token descends on the last `c` tokens at once, with momentum.
///
/// With `(k_{t−j}, v_{t−j})`, `j = 0 … c−1`, from the buffers where they are older than the call; a zero key stands for
/// no token. `M_c` is the memory at the start of the current group where the rule is frozen, else `M_{t−1}`:
///
/// ```text
/// e_j = v_{t−j} − k_{t−j} M_c                            errors in the window            (80)
/// S_t = η_t S_{t−1} + Σ_j γ_{t,j} k_{t−j}ᵀ e_j           momentum                        (81)
/// U_t = NS(S_t)          without Newton-Schulz steps     U_t = S_t                       (82)
/// M_t = a_t M_{t−1} + θ_t U_t                            memory                          (83)
/// y_t = q_t M_t   (Read::After)   or   q_t M_{t−1}   (Read::Before)                      (84)
/// ```
///
/// A window of one token without Newton-Schulz and with `θ = 1` is [`Titans`](super::Titans), its step size in `γ`.
/// Newton-Schulz forgets the size of what it is given, `NS(cS) = NS(S)`: with it the step size is `θ`, without it `γ`.
///
/// Backward, in reverse time, with `dM`, `dS` and the gradients of window rows starting at those of the final state:
///
/// ```text
/// dM += q_tᵀ dy_t,  dq_t = dy_t M_tᵀ  (Read::After);  da_t = ⟨dM, M_{t−1}⟩,  dθ_t = ⟨dM, U_t⟩,
/// dS += NS′(S_t)ᵀ (θ_t dM),  dη_t = ⟨dS, S_{t−1}⟩                                        (85)
/// g_j = k_{t−j} dS,  dγ_{t,j} = g_j·e_j,  dv_{t−j} += γ_{t,j} g_j,
/// dk_{t−j} += γ_{t,j} (e_j dSᵀ − g_j M_cᵀ),  dM_c −= γ_{t,j} k_{t−j}ᵀ g_j                (86)
/// dM ← a_t dM,  dS ← η_t dS;  dM += dM_c, dM_c = 0 at every token, frozen: at the group's first;
/// dM += q_tᵀ dy_t,  dq_t = dy_t M_{t−1}ᵀ  (Read::Before)                                 (87)
/// ```
///
/// # Newton-Schulz
///
/// With the coefficients [`NEWTON_SCHULZ`], ε = [`NEWTON_SCHULZ_EPSILON`], and `S` transposed where it has more rows than
/// columns (the same function, on the smaller `A`):
///
/// ```text
/// ν = √(|S|² + ε²),  X = S/ν                                                              (88)
/// A = X Xᵀ,  B = βA + κA²                                                                 (89)
/// X ← αX + B X           as often as there are steps                                      (90)
/// ```
///
/// Backward, over the steps in reverse, `D` starting at the gradient of `NS(S)`:
///
/// ```text
/// dB = D Xᵀ,  dA = β dB + κ (dB A + A dB),  D ← αD + B D + (dA + dAᵀ) X                   (91)
/// dS = D/ν − S ⟨D, S⟩/ν³                                                                  (92)
/// ```
///
/// Five steps multiply rounding errors in directions that `S` hardly has by up to `3.4445⁵ = 485`. Where `S` is of low
/// rank, as at the first tokens of an empty memory, 32-bit results are good to about `1e-4`. Gradients at `S = 0` are
/// finite, and up to `485/ε`.
///
/// # Exact chunk form, without Newton-Schulz
///
/// Each token writes `c` rows, which all see the same `M_{t−1}`. With the tables (15), (16) and the emission in (17),
///
/// ```text
/// c[t,j] = a_t c[t−1,j] + θ_t E[t,j];   backward: dE[t,·] += θ_t dc[t,·],  dθ_t = Σ_j dc[t,j] E[t,j]      (93)
/// ```
///
/// (18)–(31) hold for the written rows, `w = r = γ`, when each row of a table that belongs to a token is repeated for its
/// rows. `L` is zero between rows of one token.
///
/// Source: Behrouz et al., "Atlas", eqs 32–33, with `S` for their `−S`. Their θ is half of ours: no ½ in their loss.
/// Coefficients are of Jordan et al., "Muon".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields, default))]
pub struct Atlas {
    /// Tokens that a step learns from, the current one included: `c`, 1 to 1024.
    pub window: u32,
    /// Steps of Newton-Schulz on the momentum, up to 10; 0 for none.
    pub newton_schulz: u32,
    /// When a token reads.
    pub read: Read,
    /// Groups of this many tokens share one gradient point.
    pub frozen: Option<u32>,
}

impl Default for Atlas {
    fn default() -> Self {
        Self { window: 4, newton_schulz: 0, read: Read::default(), frozen: None }
    }
}

slots! {
    /// Gates of [`Atlas`].
    pub struct WindowGates {
        /// `log a [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old memory.
        log_a: Retention,
        /// `log η [B,T,H]` in `[−∞, 0]`: logarithm of what multiplies the old momentum.
        log_eta: Momentum,
        /// `θ [B,T,H]`, finite: how much of the momentum, or of what Newton-Schulz makes of it, the memory takes.
        theta: Step,
        /// `γ [B,T,H,c]`, finite: weight of each token of the window; number `j` is that of the token `j` steps back.
        gamma: Strength,
    }
}

slots! {
    /// A matrix, its momentum, and the tokens that the next window begins with, per sequence and head.
    pub struct Window {
        /// `M [N,H,K,V]`.
        m,
        /// `S [N,H,K,V]`.
        s,
        /// The last keys `[N,H,c−1,K]`, oldest first; a row of zeros stands for no token.
        kbuf,
        /// The last values `[N,H,c−1,V]`, oldest first.
        vbuf,
    }
}

impl Rule for Atlas {
    const NAME: &'static str = "atlas";
    type Family = Own;
    type Gates = WindowGates<()>;
    type State = Window<()>;
    type Anchor = NoSlots;

    fn gates(self, dims: &Dims) -> WindowGates<Shape> {
        let gamma = [dims.batch, dims.tokens, dims.heads, self.window as usize].into();
        WindowGates { log_a: dims.scalars(), log_eta: dims.scalars(), theta: dims.scalars(), gamma }
    }

    fn state(self, dims: &Dims) -> Window<Shape> {
        let buffer =
            |width| [dims.sequences.count(), dims.heads, (self.window as usize).saturating_sub(1), width].into();
        Window { m: dims.matrices(), s: dims.matrices(), kbuf: buffer(dims.key), vbuf: buffer(dims.value) }
    }

    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        Some(&mut self.frozen)
    }

    fn check(self, _: &Dims) -> Result<()> {
        let within = |option, found: u32, fits, expected| match fits {
            true => Ok(()),
            false => Err(Error::Config { what: Self::NAME, option, found: found.to_string(), expected }),
        };
        within("window", self.window, (1..=WINDOW).contains(&self.window), "1 to 1024 tokens")?;
        within("newton_schulz", self.newton_schulz, self.newton_schulz <= STEPS, "0 to 10 steps")?;
        check_frozen(Self::NAME, self.frozen)
    }
}
