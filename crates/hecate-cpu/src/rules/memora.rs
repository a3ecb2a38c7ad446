//! L2, relative entropy, no momentum.

use hecate_core::rules::{Memora, MemoraMatrix};

crate::deep::cells!(Memora, MemoraMatrix);
