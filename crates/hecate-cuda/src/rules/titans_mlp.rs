//! L2, decay, momentum, an MLP.

use crate::launch::{Source, source};
use hecate_core::rules::TitansMlp;

pub(crate) const SOURCE: Source = source!("titans_mlp", "titans_mlp.cu");

crate::deep::cells! { SOURCE { TitansMlp: mlp "titans_mlp_forward" "titans_mlp_backward" } }
