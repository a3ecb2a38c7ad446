//! Copies to the device and back, on the first GPU.

use super::device;
use crate::device::staging::{BLOCK, BLOCKS};
use half::bf16;
use hecate_core::{DType, Device, Host, Tensor};

/// Elements that differ from call to call and from place to place.
fn numbers(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)).collect()
}

/// What was uploaded comes back, whatever part of how many blocks it takes.
/// Bytes go through a ring of pinned blocks; errors would stand at its seams.
#[test]
fn there_and_back() {
    let Some(device) = device() else { return };
    let block = BLOCK / 4;
    // Around the sizes of a block and of the ring.
    for count in [0, 1, 3, block - 1, block, block + 1, BLOCKS * block, (2 * BLOCKS + 1) * block + 5] {
        let sent = numbers(count, count as u32);
        let memory = device.upload(Host::U32(sent.clone())).expect("an upload");
        let found = device.download(&memory, DType::U32, count).expect("a download");
        assert!(matches!(found, Host::U32(found) if found == sent), "{count} elements");
    }
    // Sixteen bits, and fewer elements than were sent.
    let halves: Vec<_> = (0..1001).map(|i| bf16::from_f32(i as f32)).collect();
    let memory = device.upload(Host::Bf16(halves.clone())).expect("an upload");
    let found = device.download(&memory, DType::Bf16, 1000).expect("a download");
    assert!(matches!(found, Host::Bf16(found) if found == halves[..1000]));
}

/// Kernels see what was uploaded before them, while other uploads use the blocks again, and memory is let go of and
/// taken by others in between.
/// Uploads have a stream of their own, which would overtake kernels if nothing joined the two.
#[test]
fn in_order() {
    let Some(device) = device() else { return };
    let count = BLOCK / 4 + 7;
    let copy = |seed| {
        let sent = Tensor::upload(&device, [count], Host::U32(numbers(count, seed)))?;
        device.copied(&sent)
    };
    // More uploads than the ring has blocks, each followed by a kernel's read.
    let kept: Vec<_> = (0..40).map(|seed| copy(seed).expect("a copy")).collect();
    for (seed, tensor) in kept.iter().enumerate() {
        let found = tensor.download().expect("a download");
        assert!(matches!(found, Host::U32(found) if found == numbers(count, seed as u32)), "number {seed}");
    }
}

/// Threads that share a device get what they asked for.
/// The ring is theirs together: a block that two of them filled at once would mix their numbers.
#[test]
fn from_many_threads() {
    let Some(device) = device() else { return };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let device = &device;
            scope.spawn(move || {
                for i in 0..20 {
                    let sent = numbers(70_001 + i, seed);
                    let memory = device.upload(Host::U32(sent.clone())).expect("an upload");
                    let found = device.download(&memory, DType::U32, sent.len()).expect("a download");
                    assert!(matches!(found, Host::U32(found) if found == sent), "{seed}, {i}");
                }
            });
        }
    });
}
