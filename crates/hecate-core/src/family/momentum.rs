//! Where momentum takes its gradient.

/// How what was written before goes on moving the memory. `z_t` is what a token writes, a descent of step `θ_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MomentumForm {
    /// `S_t = η_t S_{t−1} + z_t`, `M_t = a_t M_{t−1} + S_t`, with the gradient at `M_{t−1}`: eqs 13–14 of "Titans". Gates that
    /// change from token to token can make it grow without end, however small the steps.
    #[default]
    HeavyBall,
    /// `S_t = η_t (a_t S_{t−1} + z_t)`, `M_t = a_t M_{t−1} + (1 − η_t) (a_t S_{t−1} + z_t)`, with the gradient where momentum
    /// leads, at `N_{t−1} = M_{t−1} + S_{t−1}`.
    ///
    /// `N_t = a_t N_{t−1} + z_t` is the rule without momentum, and `M_t = η_t a_t M_{t−1} + (1 − η_t) N_t` a mean of what `N` was.
    /// So with a linear memory and `θ|k|² ≤ 1 + a` nothing grows by itself, whatever `η` is.
    LookAhead,
}
