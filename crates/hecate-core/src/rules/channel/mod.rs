//! Memories that forget by key channel, and whose erase may have keys of its own.
//!
//! [`Gla`], [`Kda`], [`Gdn2`], [`Comba`], [`Dplr`] and [`Rwkv7`] are one step. Per sequence and head a token has retention `a [K]`
//! (or one `a` for all channels), an erase key
//! `e [K]`, a rewrite key `b [K]`, a size `θ` and factors `ω [V]` of its value; `diag(a) M` multiplies row `i` by `a_i`:
//!
//! ```text
//! M̃ = diag(a) M_{t−1}                                decay                            (110)
//! p = e M̃     or     e M_{t−1}  (undecayed)          what is erased                   (111)
//! w = ω ∘ v                                          what is written                  (112)
//! M_t = M̃ + θ (bᵀ p + kᵀ w)                          memory                           (113)
//! y = q M_t                                          read                             (114)
//! ```
//!
//! A rule's form says what the keys are: `e` is nothing, `k`, `g k`, `g ∘ k` or `g`; `b` is `−k`, `−g ∘ e` or `g`, with gates `g`.
//!
//! Backward, in reverse time, with `dM` starting at the gradient of the final state:
//!
//! ```text
//! dM += qᵀ dy,  dq = M_t dyᵀ                                                          (115)
//! dp = θ b dM,  dw = θ k dM,  db = θ dM pᵀ,  dk = θ dM wᵀ,  dθ = b (dM pᵀ) + k (dM wᵀ)          (116)
//! dM̃ = dM + eᵀ dp,  de = M̃ dpᵀ                       (undecayed: dM̃ = dM, de = M_{t−1} dpᵀ)    (117)
//! dlog a = a ∘ Σ_cols dM̃ ∘ M_{t−1},  dM ← diag(a) dM̃     (undecayed: + eᵀ dp)         (118)
//! ```
//!
//! then `dω = v ∘ dw`, `dv = ω ∘ dw`, and the keys' gradients go to what the keys are made of. Nothing is divided by `a`, and no
//! logarithms are subtracted: `a = 0` is a gate like others, and gates of later tokens change no bit of earlier ones.

mod comba;
mod dplr;
mod gdn2;
mod gla;
mod kda;

pub use comba::Comba;
pub use dplr::{Dplr, Rwkv7};
pub use gdn2::Gdn2;
pub use gla::Gla;
pub use kda::Kda;

use crate::slots;

slots! {
    /// Gates of rules that are told what each channel keeps, and nothing else.
    pub struct ChannelGates {
        /// `log a [B,T,H,K]` in `[−∞, 0]`: logarithm of what multiplies each row of the old memory.
        log_a: Retention,
    }
}

slots! {
    /// Gates of rules that forget by channel and write with one strength.
    pub struct ChannelStepGates {
        /// As [`ChannelGates::log_a`].
        log_a: Retention,
        /// `θ [B,T,H]`, finite: write strength (KDA's β); under 0 it is an ascent.
        theta: Step,
    }
}

slots! {
    /// Gates of rules that forget by channel, and whose erase and values have factors of their own.
    pub struct ChannelErase {
        /// As [`ChannelGates::log_a`].
        log_a: Retention,
        /// `[B,T,H,K]`, finite: by how much of each channel of the key the memory is erased.
        erase: Strength,
        /// `ω [B,T,H,V]`, finite: how much of each value is written.
        write: Strength,
    }
}

slots! {
    /// What layers form the last two of [`ChannelErase`] from.
    pub struct ChannelEraseLogits {
        /// Of the erase, `K` a head.
        erase_proj,
        /// Of the write, `V` a head.
        write_proj,
    }
}

slots! {
    /// Gates of rules that forget by head, and erase by a share of their key.
    pub struct ScaledErase {
        /// `log a [B,T,H]` in `[−∞, 0]`.
        log_a: Retention,
        /// `θ [B,T,H]`, finite: write strength.
        theta: Step,
        /// `c [B,T,H]`, finite: the share of the key that the memory is erased by.
        share: Strength,
    }
}

slots! {
    /// What layers form the last two of [`ScaledErase`] from.
    pub struct ScaledEraseLogits {
        /// Step size.
        b_proj,
        /// Share of the erase.
        share_proj,
    }
}

slots! {
    /// Gates of rules that forget by channel and look up what they erase by a key of its own.
    pub struct LookupGates {
        /// As [`ChannelGates::log_a`].
        log_a: Retention,
        /// `[B,T,H,K]`, finite: the key by which the memory is read before its decay (`c`; RWKV-7's κ).
        lookup: Strength,
        /// `[B,T,H,K]`, finite: the key under which what was read is added (`b`), or what the lookup's is multiplied by and taken
        /// off under (RWKV-7's α).
        rewrite: Strength,
    }
}

slots! {
    /// What layers form the last two of [`LookupGates`] from.
    pub struct LookupLogits {
        /// Of the lookup, `K` a head.
        lookup_proj,
        /// Of the rewrite, `K` a head.
        rewrite_proj,
    }
}
