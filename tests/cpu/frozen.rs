//! Memories in frozen groups of every size, beside the equations in 64 bits.

use hecate_conformance::{Array, Case, Sizes, checks::agrees, oracle::Oracle};
use hecate_core::{
    Kernel, Read,
    rules::{
        Atlas, Lattice, Map, MatrixMemory, Memora, MlpMemory, Moneta, Phi, TitansMlp, Trellis, Variant, Yaad,
        YaadMomentum,
    },
};
use hecate_cpu::{Algorithm, Cpu};

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

/// A rule of several groups, widths of parts of vectors, of whole ones and of several, packed and to an anchor, where it has one;
/// each beside token by token.
fn in_every_form<R: Oracle>(rule: R)
where
    Cpu: Kernel<R>,
{
    let scan = Cpu::new().with_algorithm(Algorithm::Scan).expect("a form");
    on_all(&[Cpu::new(), scan], rule);
}

/// [`in_every_form`] on these.
fn on_all<R: Oracle>(cpus: &[Cpu], rule: R)
where
    Cpu: Kernel<R>,
{
    let cases = [Sizes::new(1, 70, 2, 17, 33), Sizes::new(2, 21, 1, 64, 16)].map(|sizes| Case::new(rule, sizes, 11));
    for case in cases.into_iter().chain([Case::packed(rule, &[1, 40, 2, 65], 2, 6, 35, 5)]) {
        agrees(cpus, &case, "as drawn");
        if let Some(case) = case.anchored(7) {
            agrees(cpus, &case, "to an anchor");
        }
    }
}

#[test]
fn windows_of_groups() {
    // Windows of a token, of a few, and longer than a group and than a call.
    for (window, frozen) in [(1, 16), (3, 5), (10, 4), (80, 64)] {
        for read in [Read::After, Read::Before] {
            in_every_form(Atlas { window, newton_schulz: 0, read, frozen: Some(frozen) });
        }
    }
}

/// Weights that are images of states: powers with shortcuts and without, and distributions.
#[test]
fn images_of_groups() {
    for frozen in [5, 128].map(Some) {
        for read in [Read::After, Read::Before] {
            // Literal weights keep their size at 3 alone, and a norm would amplify what cubed errors are rounded by.
            for (q, map) in [(3.0, Map::Mirror), (2.5, Map::Mirror), (3.0, Map::Literal)] {
                let memory = MlpMemory { norm: false, ..MlpMemory::default() };
                in_every_form(Moneta { memory, q, map, read, frozen, ..Moneta::default() });
                in_every_form(Moneta::<MatrixMemory> { q, map, read, frozen, ..Moneta::default() });
            }
            let clip = Some(4.0);
            // Token by token, what a column has in common is not taken off the sum for its retention: too much is lost there.
            let groups = [Cpu::new()];
            // Small weights move logarithms so little that it is lost in what those are rounded by.
            on_all(&groups, Memora::<MlpMemory> { clip, scale: 4.0, read, frozen, ..Memora::default() });
            on_all(&groups, Memora::<MatrixMemory> { clip, scale: 4.0, read, frozen, ..Memora::default() });
        }
    }
}

#[test]
fn slots_of_groups() {
    for frozen in [2, 16, 64] {
        for phi in [Phi::L2Silu, Phi::LnSilu, Phi::Identity] {
            in_every_form(Trellis { phi, slots: 9, frozen: Some(frozen) });
        }
        for variant in [Variant::Decode, Variant::Similarity, Variant::Encode] {
            for read in [Read::After, Read::Before] {
                in_every_form(Lattice { variant, read, frozen: Some(frozen) });
            }
        }
    }
}
