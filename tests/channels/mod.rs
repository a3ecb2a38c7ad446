//! Rules that forget by channel, beyond the conformance suite, on the column whose program has this module.

use super::backends;
use hecate_conformance::checks;
use hecate_core::{for_each_channel_rule, rules};

/// The same check of every rule of the family.
macro_rules! of_each_rule {
    ($check:ident, $($name:ident $rule:ident),*) => { $(checks::$check::<rules::$rule, _>(&backends());)* };
}

#[test]
fn channels_may_keep_nothing() {
    for_each_channel_rule!(of_each_rule, forgotten_channels,);
}

#[test]
fn calls_of_lengths_around_chunks() {
    for_each_channel_rule!(of_each_rule, lengths_around_chunks,);
}

#[test]
fn later_tokens_change_no_bit_of_earlier_ones() {
    for_each_channel_rule!(of_each_rule, later_gates_leave_earlier_tokens,);
}

#[test]
fn equal_channels_are_the_delta_rule() {
    checks::equal_channels_are_the_delta_rule(&backends());
}
