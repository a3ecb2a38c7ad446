//! Slot memories and Atlas in frozen groups, which go by pieces of a group.

use super::backends;
use hecate_conformance::{Case, Sizes, checks, error, oracle::Oracle};
use hecate_core::{
    DType, Kernel, Read,
    rules::{Atlas, Lattice, Phi, Trellis, Variant},
};
use hecate_cuda::Cuda;

/// As good as token by token in 32 bits; in 16, errors are at most twice what rounding costs anyway.
fn holds<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    let devices = backends();
    checks::agrees(&devices, case, "in groups");
    if !devices.is_empty() {
        checks::rounding_of(&devices, case);
    }
}

fn lattice(group: u32) -> Lattice {
    Lattice { frozen: Some(group), ..Lattice::default() }
}

fn trellis(group: u32) -> Trellis {
    Trellis { frozen: Some(group), ..Trellis::default() }
}

/// Groups alone in an interval and several, whole and not, and sequences that end inside one.
#[test]
fn groups_of_any_size() {
    for (seed, group) in (1..).zip([1, 4, 5, 16, 20, 64, 65]) {
        holds(&Case::new(lattice(group), Sizes::new(1, 83, 2, 20, 32), seed));
        holds(&Case::new(trellis(group), Sizes::new(1, 83, 2, 24, 36), seed));
    }
    holds(&Case::packed(lattice(16), &[40, 1, 64, 17], 2, 16, 64, 9));
    holds(&Case::packed(trellis(64), &[70, 3, 128], 1, 32, 16, 9));
}

/// Every option that these kernels have, and the widths that are timed.
#[test]
fn options() {
    let sizes = Sizes::new(1, 70, 1, 64, 64);
    for (seed, variant) in (11..).zip([Variant::Decode, Variant::Similarity, Variant::Encode]) {
        holds(&Case::new(Lattice { variant, ..lattice(16) }, sizes, seed));
        holds(&Case::new(Lattice { variant, read: Read::Before, ..lattice(20) }, Sizes::new(1, 50, 2, 12, 64), seed));
    }
    for (seed, phi) in (21..).zip([Phi::L2Silu, Phi::LnSilu, Phi::Identity]) {
        holds(&Case::new(Trellis { phi, ..trellis(16) }, sizes, seed));
        holds(&Case::new(Trellis { phi, slots: 33, ..trellis(16) }, Sizes::new(1, 40, 1, 32, 20), seed));
    }
    // More slots than a block has warps for at once, and more memories than run at once.
    holds(&Case::new(lattice(16), Sizes::new(1, 40, 1, 100, 32), 31));
    holds(&Case::new(trellis(16), Sizes::new(20, 17, 14, 8, 8), 32));
}

fn atlas(group: u32) -> Atlas {
    Atlas { newton_schulz: 5, frozen: Some(group), ..Atlas::default() }
}

/// Newton-Schulz by halves: errors are at most twice what rounding costs anyway.
fn rounds(case: &Case<Atlas>) {
    let devices = backends();
    if !devices.is_empty() {
        checks::rounding_of(&devices, case);
    }
}

/// Groups, windows, steps and reads, with sequences that end inside a group.
#[test]
fn orthogonal_updates() {
    let sizes = Sizes::new(1, 83, 1, 64, 64);
    for (seed, group) in (61..).zip([1, 5, 16, 20, 64]) {
        rounds(&Case::new(atlas(group), sizes, seed));
    }
    for (seed, window) in (71..).zip([1, 2, 3]) {
        rounds(&Case::new(Atlas { window, read: Read::Before, ..atlas(16) }, sizes, seed));
    }
    rounds(&Case::new(Atlas { newton_schulz: 3, ..atlas(16) }, sizes, 75));
    rounds(&Case::packed(atlas(16), &[40, 1, 64, 17], 1, 64, 64, 76));
}

/// Keys that say nothing and keys that all say the same, and memories that forget nearly everything.
fn extreme_tokens<R: Oracle>(plain: &Case<R>)
where
    Cuda: Kernel<R>,
{
    checks::agrees(&backends(), &plain.clone().changed("k", |_, _| 0.0), "keys of zeros");
    checks::agrees(&backends(), &plain.clone().changed("k", |i, all| all[i % 32]), "equal keys");
    checks::agrees(&backends(), &plain.clone().changed("log_a", |t, all| 8.0 * all[t]), "strong decay");
}

#[test]
fn extreme_tokens_of_lattice() {
    extreme_tokens(&Case::new(lattice(16), Sizes::new(1, 50, 1, 32, 32), 41));
}

#[test]
fn extreme_tokens_of_trellis() {
    extreme_tokens(&Case::new(trellis(16), Sizes::new(1, 50, 1, 32, 32), 42));
}

/// The same call gives the same bits, whatever is in memory before it; without a gradient nothing else is different.
fn bits_repeat<R: Oracle>(case: &Case<R>)
where
    Cuda: Kernel<R>,
{
    for device in backends() {
        let [first, second] = [0, 1].map(|_| case.run(&device, DType::Bf16).unwrap());
        for ((slot, first), (_, second)) in first.list().into_iter().zip(second.list()) {
            assert_eq!(error(&first.values, &second.values), 0.0, "{slot}");
        }
        let outputs = case.infer(&device, DType::Bf16).unwrap();
        assert_eq!(error(&first.outputs.out.values, &outputs.out.values), 0.0);
    }
}

#[test]
fn bits_of_groups_repeat() {
    bits_repeat(&Case::new(lattice(16), Sizes::new(2, 130, 3, 64, 64), 51));
    bits_repeat(&Case::new(trellis(64), Sizes::new(2, 130, 3, 64, 64), 52));
    bits_repeat(&Case::new(atlas(64), Sizes::new(1, 130, 2, 64, 64), 53));
}
