//! `l_p`, `L_q`, no momentum.

use crate::{launch::Kernel, recurrent};
use hecate_core::rules::{Moneta, MonetaMatrix};

crate::deep::cells! { 1 1 0: Moneta, MonetaMatrix }

/// The kernels of these rules.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(Moneta, "BIAS" = 1, "RETENTION" = 1, "MOMENTUM" = 0);
