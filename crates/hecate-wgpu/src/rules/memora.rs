//! L2, relative entropy, no momentum.

use crate::{launch::Kernel, recurrent};
use hecate_core::rules::{Memora, MemoraMatrix};

crate::deep::cells! { 0 2 0: Memora, MemoraMatrix }

/// The kernels of these rules.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(Memora, "BIAS" = 0, "RETENTION" = 2, "MOMENTUM" = 0);
