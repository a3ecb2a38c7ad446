//! Memories that are functions at sizes that fill a block (a workgroup), that the memory it shares does not hold, and in more
//! sequences and heads than run at once.

use super::{Gpu, agree, backends};
use hecate_conformance::{Case, Sizes, checks, oracle::Oracle};
use hecate_core::{
    Kernel,
    rules::{Memora, MlpMemory, Moneta, TitansMlp, Yaad, YaadMatrix},
};

fn agrees<R: Oracle>(rule: R, sizes: Sizes)
where
    Gpu: Kernel<R>,
{
    agree(&Case::new(rule, sizes, 67));
}

#[test]
fn a_state_larger_than_shared_memory() {
    agrees(TitansMlp::default(), Sizes::new(1, 4, 1, 128, 100));
    agrees(TitansMlp { frozen: Some(3), ..TitansMlp::default() }, Sizes::new(1, 4, 1, 100, 128));
}

#[test]
fn columns_beyond_a_block() {
    let memory = MlpMemory { expansion: 40, ..MlpMemory::default() };
    agrees(Yaad { memory, ..Yaad::default() }, Sizes::new(1, 5, 1, 17, 3));
    agrees(YaadMatrix::default(), Sizes::new(1, 5, 1, 12, 700));
}

#[test]
fn a_full_block() {
    agrees(<Memora>::default(), Sizes::new(1, 9, 1, 64, 40));
    agrees(<Moneta>::default(), Sizes::new(1, 9, 1, 48, 64));
}

/// Columns that one element has nearly all of.
#[test]
fn uneven_distributions() {
    checks::uneven_distributions(&backends());
}

/// Columns that are much the same.
#[test]
fn normed_distributions() {
    checks::normed_distributions(&backends());
}

#[test]
fn more_lanes_than_blocks() {
    agrees(YaadMatrix::default(), Sizes::new(100, 3, 11, 2, 3));
}
