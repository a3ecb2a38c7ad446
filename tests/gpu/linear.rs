//! The linear rules at sizes for which the device has kernels of their own, and at odd ones between and beyond, with every
//! algorithm of the column.

use crate::{Gpu, LINEAR_SIZES, linear_backends};
use hecate_conformance::{Case, checks, oracle::Oracle};
use hecate_core::{
    Kernel, Read,
    rules::{Delta, Dgd, Erase, Hebbian, Lightning, Objective, Titans},
};

/// Results and gradients at every size are those of the equations.
fn agrees<R: Oracle>(rule: R)
where
    Gpu: Kernel<R>,
{
    for (seed, sizes) in (61..).zip(LINEAR_SIZES) {
        checks::agrees(&linear_backends(), &Case::new(rule, sizes, seed), "a linear rule's sizes");
    }
}

#[test]
fn hebbian() {
    agrees(Hebbian::default());
}

#[test]
fn delta() {
    agrees(Delta { erase: Erase::Decayed, ..Delta::default() });
    agrees(Delta { frozen: Some(3), ..Delta::default() });
}

#[test]
fn titans() {
    agrees(Titans::default());
    agrees(Titans { frozen: Some(7), ..Titans::default() });
}

#[test]
fn dgd() {
    agrees(Dgd { objective: Objective::L2, frozen: Some(70), ..Dgd::default() });
    agrees(Dgd { objective: Objective::L2, frozen: Some(20), ..Dgd::default() });
}

#[test]
fn lightning() {
    agrees(Lightning::default());
    agrees(Lightning { read: Read::Before, rate: 0.25 });
}
