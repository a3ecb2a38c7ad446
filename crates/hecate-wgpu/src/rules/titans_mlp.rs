//! L2, decay, momentum, an MLP.

use crate::{launch::Kernel, recurrent};
use hecate_core::rules::TitansMlp;

crate::deep::cells! { 0 0 1: TitansMlp }

/// The kernels of these rules.
pub(crate) const KERNELS: &[Kernel<'static>] =
    recurrent::kernels!(TitansMlp, "BIAS" = 0, "RETENTION" = 0, "MOMENTUM" = 1);
