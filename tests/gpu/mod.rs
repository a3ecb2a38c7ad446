//! Tests of the columns that run on GPUs, beyond the conformance suite. The column's own file says what `Gpu` is, what
//! `backends` there are, and at which `LINEAR_SIZES` the linear rules have kernels of their own.

#[path = "../channels/mod.rs"]
mod channels;
mod deep;
mod devices;
mod linear;
pub(crate) mod sizes;
mod slots;

use super::{Gpu, backends};
use hecate_conformance::{Case, checks, every_cell_is_tested, oracle::Oracle, record::assert_recorded, require::skip};
use hecate_core::{Device, Kernel, Result};

#[test]
fn every_rule_and_primitive_is_tested() {
    every_cell_is_tested();
}

/// What docs/conformance.tsv says of this column is what comes out here.
#[test]
fn the_record_is_true() {
    backends().iter().for_each(|gpu| assert_recorded(include_str!("../../docs/conformance.tsv"), gpu));
}

/// The device, or nothing where it did not open, which is said, and fails where `HECATE_REQUIRE` asks for it.
pub(crate) fn opened(device: Result<Gpu>) -> Vec<Gpu> {
    match device {
        Ok(gpu) => vec![gpu],
        Err(error) => {
            skip(Gpu::NAME, &error.to_string());
            Vec::new()
        }
    }
}

/// Results and gradients of a case are those of the equations.
pub(crate) fn agree<R: Oracle>(case: &Case<R>)
where
    Gpu: Kernel<R>,
{
    checks::agrees(&backends(), case, "a GPU's sizes");
}
