//! L2, decay, momentum, an MLP.

use hecate_core::rules::TitansMlp;

crate::deep::cells!(TitansMlp);
