//! Kernels that a program brings itself: what they compute, and what of them is refused.
#![allow(unsafe_code)]

use super::{another, backends};
use hecate_core::{Result, Tensor};
use hecate_cuda::{Argument, Cuda, OwnGrid, OwnKernel};
use hecate_ptx::{Module, named};

/// The sum of two arrays, and where they lie.
struct Sum {
    kernel: OwnKernel,
    x: Tensor<Cuda>,
    y: Tensor<Cuda>,
    out: Tensor<Cuda>,
}

const GRID: OwnGrid = OwnGrid { blocks: [1, 1, 1], threads: [256, 1, 1], shared: 0 };

/// `out = x + y` of arrays.
fn text() -> Module {
    named("add_f32").expect("a kernel")
}

impl Sum {
    fn new(gpu: &Cuda) -> Self {
        let array =
            |from: f32| Tensor::from_f32(gpu, [300], (0..300).map(|i| from + i as f32).collect()).expect("an array");
        let kernel = gpu.load_ptx(text().text(), "add_f32").expect("PTX that an assembler takes");
        Self { kernel, x: array(0.0), y: array(1000.0), out: array(f32::NAN) }
    }

    fn arguments(&self) -> [Argument<'_>; 4] {
        [Argument::Read(&self.x), Argument::Read(&self.y), Argument::Write(&self.out), Argument::U64(300)]
    }

    fn launch(&self, grid: OwnGrid, arguments: &[Argument<'_>]) -> Result<()> {
        // SAFETY: arrays have as many elements as the last argument says; what differs from the kernel's own is refused.
        unsafe { self.kernel.launch(grid, arguments) }
    }

    /// A launch is refused with all of these words.
    fn refused(&self, grid: OwnGrid, arguments: &[Argument<'_>], words: &[&str]) {
        let error = self.launch(grid, arguments).expect_err("a launch that no kernel should see").to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "{error}: no `{word}`"));
    }
}

#[test]
fn sums() {
    for gpu in backends() {
        let sum = Sum::new(&gpu);
        sum.launch(GRID, &sum.arguments()).expect("a launch");
        let expected: Vec<f32> = (0..300).map(|i| 1000.0 + 2.0 * i as f32).collect();
        assert_eq!(sum.out.to_f32().expect("an array"), expected);
    }
}

#[test]
fn launches_that_are_refused() {
    for gpu in backends() {
        let sum = Sum::new(&gpu);
        let arguments = sum.arguments();
        // The driver of this GPU tells what a kernel takes from CUDA 12.4 on.
        if gpu.properties().driver >= 12_040 {
            sum.refused(GRID, &arguments[..3], &["add_f32", "[8, 8, 8]", "[8, 8, 8, 8]"]);
            let narrow = [arguments[0], arguments[1], arguments[2], Argument::U32(300)];
            sum.refused(GRID, &narrow, &["[8, 8, 8, 4]"]);
        }
        let elsewhere = Tensor::from_f32(&another(), [300], vec![0.0; 300]).expect("an array");
        let foreign = [Argument::Read(&elsewhere), arguments[1], arguments[2], arguments[3]];
        sum.refused(GRID, &foreign, &["arrays of the device value that loaded the kernel"]);
        for grid in [
            OwnGrid { blocks: [0, 1, 1], ..GRID },
            OwnGrid { blocks: [1, 65_536, 1], ..GRID },
            OwnGrid { threads: [1025, 1, 1], ..GRID },
            OwnGrid { threads: [32, 32, 2], ..GRID },
            OwnGrid { shared: 1 << 20, ..GRID },
        ] {
            sum.refused(grid, &arguments, &["add_f32", "2147483647", "1024 together"]);
        }
        assert!(sum.out.to_f32().expect("an array").iter().all(|x| x.is_nan()));
    }
}

#[test]
fn texts_that_are_refused() {
    for gpu in backends() {
        let refused = |text: &str, name: &str, word: &str| {
            let error = gpu.load_ptx(text, name).expect_err("no kernel");
            assert!(error.to_string().contains(word) || format!("{error:?}").contains(word), "{error:?}: no `{word}`");
        };
        let module = text();
        refused(module.text(), "sub_f32", "no kernel of this name");
        refused("juggle", "add_f32", "the driver refuses");
        refused("", "add_f32", "the driver refuses");
        refused(&format!("{}\0", module.text()), "add_f32", "zero byte");
        refused(module.text(), "add\0", "zero byte");
        // The GPU goes on after all of it.
        let sum = Sum::new(&gpu);
        sum.launch(GRID, &sum.arguments()).expect("a launch");
        assert_eq!(sum.out.to_f32().expect("an array")[1], 1002.0);
    }
}
