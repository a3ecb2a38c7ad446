//! Slots and windows at sizes beyond a warp, a tile of a product, and a block (a workgroup); slots of another norm than 1.

use super::{Gpu, agree};
use hecate_conformance::{Case, Sizes, oracle::Oracle};
use hecate_core::{
    DType, Kernel, Read,
    rules::{Atlas, Lattice, Phi, Trellis, Variant},
};

fn agrees<R: Oracle>(rule: R, sizes: Sizes)
where
    Gpu: Kernel<R>,
{
    agree(&Case::new(rule, sizes, 71));
}

#[test]
fn lattice() {
    agrees(Lattice::default(), Sizes::new(1, 5, 2, 70, 300));
    agrees(Lattice { variant: Variant::Encode, read: Read::Before, frozen: Some(2) }, Sizes::new(1, 5, 1, 300, 40));
}

#[test]
fn trellis() {
    agrees(Trellis { phi: Phi::LnSilu, slots: 40, frozen: None }, Sizes::new(1, 6, 2, 33, 70));
    agrees(Trellis { phi: Phi::L2Silu, slots: 70, frozen: Some(4) }, Sizes::new(1, 6, 1, 5, 530));
}

#[test]
fn atlas() {
    let atlas = |window, newton_schulz, frozen| Atlas { window, newton_schulz, frozen, ..Atlas::default() };
    agrees(atlas(2, 2, None), Sizes::new(1, 3, 1, 140, 140));
    agrees(atlas(3, 1, None), Sizes::new(1, 4, 1, 150, 70));
    agrees(atlas(2, 3, Some(2)), Sizes::new(1, 4, 1, 20, 130));
    agrees(atlas(40, 0, None), Sizes::new(1, 50, 1, 9, 40));
}

/// Such a slot makes what its sequence and head read NaN, and leaves the others alone.
#[test]
fn norms_are_seen() {
    let case = Case::new(Lattice::default(), Sizes::new(2, 3, 2, 4, 5), 73).with(|slot, mut array| {
        if slot == "s" {
            // Slot 1 of head 1 of sequence 0.
            array.values[(4 + 1) * 5..][..5].iter_mut().for_each(|x| *x *= 1.05);
        }
        array
    });
    for device in super::backends() {
        let out = case.infer(&device, DType::F32).unwrap_or_else(|error| panic!("{case} on {device:?}: {error}")).out;
        for (row, values) in out.values.chunks(5).enumerate() {
            let hurt = row < 6 && row % 2 == 1;
            assert!(values.iter().all(|x| x.is_nan() == hurt), "{case} on {device:?}: row {row}");
        }
    }
}
