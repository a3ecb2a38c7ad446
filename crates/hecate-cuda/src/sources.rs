//! All files of kernels.

use crate::{launch::Source, primitives};

/// Each is compiled for every architecture in a test, and kept as PTX in `ptx/`.
#[allow(dead_code)]
pub(crate) const ALL: &[&Source] = &[&primitives::elementwise::SOURCE];
