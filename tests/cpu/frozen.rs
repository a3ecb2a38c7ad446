//! Memories in frozen groups of every size, beside the equations in 64 bits.

use hecate_conformance::{Array, Case, Sizes, checks::agrees, oracle::Oracle};
use hecate_core::{
    Kernel,
    rules::{Atlas, Lattice, Memora, MlpMemory, Moneta, TitansMlp, Trellis, Yaad, YaadMomentum},
};
use hecate_cpu::Cpu;

/// Groups of a token, of a few, and of as many as GPUs have kernels for.
const GROUPS: [u32; 4] = [1, 5, 16, 64];

/// Calls `check` with each rule of this name in groups of `group`.
macro_rules! each_rule {
    ($group:expr, $check:expr) => {{
        let check = $check;
        each_rule!(@ $group, check, TitansMlp, Yaad<MlpMemory>, YaadMomentum, Moneta<MlpMemory>, Memora<MlpMemory>, Lattice,
            Trellis, Atlas);
    }};
    (@ $group:expr, $check:ident, $($rule:ty),*) => { $({
        let mut rule = <$rule>::default();
        rule.frozen = Some($group);
        $check.of(rule);
    })* };
}

/// What is done with a rule.
struct Check(fn(&str, Array) -> Array, &'static str);

impl Check {
    /// Over 70 tokens, which no group but those of one and of five divides.
    fn of<R: Oracle>(&self, rule: R)
    where
        Cpu: Kernel<R>,
    {
        let Self(change, what) = *self;
        let case = Case::new(rule, Sizes::new(1, 70, 2, 6, 5), 3).with(change);
        agrees(&[Cpu::new()], &case, what);
    }
}

/// The first row of keys in all places.
fn all_alike(x: &Array) -> Vec<f64> {
    let row = 2 * x.shape.last();
    (0..x.values.len()).map(|i| x.values[i % row]).collect()
}

#[test]
fn groups_of_any_size() {
    for group in GROUPS {
        each_rule!(group, Check(|_, x| x, "as drawn"));
    }
}

/// Keys that say nothing, and keys that all say the same.
#[test]
fn keys_without_a_difference() {
    for group in GROUPS {
        each_rule!(
            group,
            Check(
                |slot, x| match slot {
                    "k" => Array { values: vec![0.0; x.values.len()], ..x },
                    _ => x,
                },
                "keys of zero"
            )
        );
        each_rule!(
            group,
            Check(
                |slot, x| match slot {
                    "k" => Array { values: all_alike(&x), ..x },
                    _ => x,
                },
                "equal keys"
            )
        );
    }
}

/// Memories that forget nearly all of what they hold, at every ninth token.
#[test]
fn strong_decay() {
    for group in GROUPS {
        each_rule!(
            group,
            Check(
                |slot, x| match slot {
                    "log_a" => {
                        let forgetful = |(i, &log_a)| if i / 2 % 9 == 8 { -3.0 } else { log_a };
                        Array { values: x.values.iter().enumerate().map(forgetful).collect(), ..x }
                    }
                    _ => x,
                },
                "strong decay"
            )
        );
    }
}
