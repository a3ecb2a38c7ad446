//! Which memory a captured step may read while kernels before still run, on the first GPU.
//!
//! A kernel that begins early reads matrices at once where nobody writes them. Seldom would wrong numbers show that it read
//! them too soon: that depends on how long the kernels before take. So the marks of memory are looked at, not results.

use super::device;
use crate::{Cuda, primitives::layout::copy_all};
use hecate_core::{
    DType, Result, Tensor, capture,
    primitives::{
        AdamW, Fp8, Fp8Factor, Fp8Matmul, Operands, Slot, Transpose, adamw, fp8_matmul, matmul_backward_onto, scale,
    },
};

/// Rows and columns of a matrix: large enough for cuBLAS.
const SIZE: usize = 256;

/// What kernels that begin early are told of it.
fn settled(x: &Tensor<Cuda>) -> bool {
    x.buffer().is_settled()
}

/// Runs `step` twice, as it is and captured, each time with `count` matrices that were there before and are nobody else's.
fn captured(device: &Cuda, count: usize, mut step: impl FnMut(bool, Vec<Tensor<Cuda>>) -> Result<()>) {
    let matrix = |_| Tensor::zeros(device, [SIZE, SIZE], DType::F32).expect("an array");
    let mut given = [(); 2].map(|()| (0..count).map(matrix).collect::<Vec<_>>()).into_iter();
    let (x, mut capturing) = (matrix(0), false);
    let mut whole = |state: Vec<Tensor<Cuda>>, x: Tensor<Cuda>| {
        let matrices = given.next().expect("two runs");
        // Before anything is queued they are what they were.
        assert!(matrices.iter().all(|x| settled(x) == capturing));
        step(capturing, matrices)?;
        capturing = true;
        Ok((state, scale(1.0, &x)?))
    };
    capture(device, &[], &x, &mut whole).expect("a capture").graph().map(drop).expect("a graph");
    assert!(given.next().is_none(), "the step was not captured");
}

/// Weights are, which is what a token's kernels read most of.
#[test]
fn what_a_step_leaves_alone_is_settled() {
    let Some(device) = device() else { return };
    captured(&device, 2, |capturing, given| {
        let made = scale(2.0, &given[0])?;
        assert!(!settled(&made), "made by the step");
        // Reading is no writing, and other names are the same memory.
        assert_eq!(given.iter().map(settled).collect::<Vec<_>>(), [capturing; 2]);
        assert_eq!(settled(&given[1].reshape([SIZE * SIZE])?), capturing);
        Ok(())
    });
}

/// Every way to write memory that was there before: in place where nobody else holds it, by copies, and by filling.
#[test]
fn what_a_step_writes_over_is_not_settled() {
    let Some(device) = device() else { return };
    captured(&device, 9, |capturing, mut given| {
        // Each is taken out, so that the step alone holds it.
        let mut next = || given.pop().expect("a matrix");
        let (grad, x) = (next(), next());
        let slot = Slot { value: next(), mean: next(), square: next() };
        let constants = AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.9, epsilon: 1e-6, weight_decay: 0.0, step: 1 };
        // Whoever updates a copy has nothing to mark.
        let at = slot.value.buffer().pointer();
        let Slot { value, mean, square } = adamw(&constants, None, slot, &grad)?;
        assert_eq!(value.buffer().pointer(), at, "nobody else held it");
        assert!(![&value, &mean, &square].into_iter().any(settled), "an update");
        // cuBLAS adds to what is there.
        let onto = Operands { a: Some(next()), b: None };
        let sum = matmul_backward_onto(&grad, &x, Transpose::default(), &grad, onto)?.a;
        assert!(!settled(&sum), "a product added to what was there");
        // By the driver, and by a kernel for many arrays.
        let [one, many] = [next(), next()];
        device.copy(&x, &one)?;
        copy_all(&device, &[(&x, &many)])?;
        assert!(!settled(&one) && !settled(&many), "copies");
        let filled = next();
        device.fill(filled.buffer(), 0)?;
        assert!(!settled(&filled), "filled");
        // Of all nine these two are as they were.
        assert_eq!([&x, &grad].map(settled), [capturing; 2], "both were read alone");
        Ok(())
    });
}

/// Products of 8 bits write a caller's array that others hold too.
#[test]
fn maxima_that_are_raised_are_not_settled() {
    let Some(device) = device().filter(|device| device.check_fp8().is_ok()) else { return };
    captured(&device, 2, |capturing, given| {
        let maxima = given[1].reshape([SIZE * SIZE])?;
        let factor = |maximum| Fp8Factor { x: &given[0], format: Fp8::E4M3, scale: None, maximum };
        // A scale of its own comes from an array of its own.
        fp8_matmul(factor(None), factor(None), Transpose::default())?;
        assert_eq!(settled(&maxima), capturing, "nobody raised them");
        fp8_matmul(factor(Some((&maxima, 3))), factor(None), Transpose::default())?;
        assert!(!settled(&maxima) && settled(&given[0]) == capturing);
        Ok(())
    });
}
