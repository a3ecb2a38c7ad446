//! Huber's error, decay, with and without momentum.

use crate::launch::{Source, source};
use hecate_core::rules::{Yaad, YaadMatrix, YaadMomentum};

pub(crate) const SOURCE: Source = source!("yaad", "yaad.cu");

crate::deep::cells! { SOURCE {
    Yaad: mlp "yaad_forward" "yaad_backward",
    YaadMatrix: matrix "yaad_forward" "yaad_backward",
    YaadMomentum: momentum "yaad_momentum_forward" "yaad_momentum_backward",
} }
