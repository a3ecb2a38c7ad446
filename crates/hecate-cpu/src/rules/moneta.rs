//! `l_p`, `L_q`, no momentum.

use hecate_core::rules::{Moneta, MonetaMatrix};

crate::deep::cells!(Moneta, MonetaMatrix);
