//! L2, relative entropy, no momentum.

use crate::launch::{Source, source};
use hecate_core::rules::{Memora, MemoraMatrix};

pub(crate) const SOURCE: Source = source!("memora", "memora.cu");

crate::deep::cells! { SOURCE {
    Memora: mlp "memora_forward" "memora_backward",
    MemoraMatrix: matrix "memora_forward" "memora_backward",
} }
