//! Two values of one GPU are two devices: their work has no common order. A module of the columns that run on GPUs.

use crate::{Gpu, another, backends};
use hecate_conformance::checks::{buffers, devices_apart};
use hecate_core::{Device, rules::*};

#[test]
fn calls() {
    for here in backends() {
        devices_apart::refuses_calls(&here, &another());
    }
}

#[test]
fn rules() {
    for here in backends() {
        let there = another();
        macro_rules! rules {
            ($($rule:ident),*) => { $(devices_apart::refuses_inputs::<$rule, _>(&here, &there);)* };
        }
        hecate_core::for_each_rule!(rules);
        // Gradients are checked in one place for all rules, after a forward that has to be compiled.
        devices_apart::refuses_grads::<Delta, _>(&here, &there);
    }
}

#[test]
fn moving() {
    for here in backends() {
        devices_apart::moves(&here, &another());
        assert!(here.id().to_string().starts_with(Gpu::NAME), "{}", here.id());
    }
}

#[test]
fn buffers_are_no_way_around() {
    for here in backends() {
        buffers::holds_what_it_claims(&here);
        buffers::stays_on_its_device(&here, &another());
    }
}
