//! Memories that are functions at sizes that fill a workgroup, whose rows workgroup memory does not hold, and in many
//! sequences and heads.

use super::agree;
use hecate_core::{
    Kernel,
    rules::{Memora, MlpMemory, Moneta, TitansMlp, Yaad, YaadMatrix},
};
use hecate_tests::{Case, Sizes, oracle::Oracle};
use hecate_wgpu::Wgpu;

fn agrees<R: Oracle>(rule: R, sizes: Sizes)
where
    Wgpu: Kernel<R>,
{
    agree(&Case::new(rule, sizes, 67));
}

#[test]
fn rows_beyond_workgroup_memory() {
    agrees(TitansMlp::default(), Sizes::new(1, 4, 1, 128, 100));
    agrees(TitansMlp { frozen: Some(3), ..TitansMlp::default() }, Sizes::new(1, 4, 1, 100, 128));
}

#[test]
fn columns_beyond_a_workgroup() {
    let memory = MlpMemory { expansion: 40, ..MlpMemory::default() };
    agrees(Yaad { memory, ..Yaad::default() }, Sizes::new(1, 5, 1, 17, 3));
    agrees(YaadMatrix::default(), Sizes::new(1, 5, 1, 12, 700));
}

#[test]
fn a_full_workgroup() {
    agrees(<Memora>::default(), Sizes::new(1, 9, 1, 64, 40));
    agrees(<Moneta>::default(), Sizes::new(1, 9, 1, 48, 64));
}

#[test]
fn many_lanes() {
    agrees(YaadMatrix::default(), Sizes::new(100, 3, 11, 2, 3));
}
