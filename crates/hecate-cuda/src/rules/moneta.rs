//! `l_p`, `L_q`, no momentum.

use crate::launch::{Source, source};
use hecate_core::rules::{Moneta, MonetaMatrix};

pub(crate) const SOURCE: Source = source!("moneta", "moneta.cu");

crate::deep::cells! { SOURCE {
    Moneta: mlp "moneta_forward" "moneta_backward",
    MonetaMatrix: matrix "moneta_forward" "moneta_backward",
} }
