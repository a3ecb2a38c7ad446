//! Huber's error, decay, with and without momentum.

use crate::{launch::Kernel, recurrent};
use hecate_core::rules::{Yaad, YaadMatrix, YaadMomentum};

crate::deep::cells! { 2 0 0: Yaad, YaadMatrix }
crate::deep::cells! { 2 0 1: YaadMomentum }

/// The kernels of these rules.
pub(crate) const KERNELS: &[Kernel<'static>] = recurrent::kernels!(Yaad, "BIAS" = 2, "RETENTION" = 0, "MOMENTUM" = 0);

/// Those with momentum.
pub(crate) const MOMENTUM: &[Kernel<'static>] =
    recurrent::kernels!(YaadMomentum, "BIAS" = 2, "RETENTION" = 0, "MOMENTUM" = 1);
