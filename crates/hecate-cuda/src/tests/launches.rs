//! Launches that are refused, by us or by the driver, on the first GPU: the next call works.

use super::device;
use crate::launch::{Array, Grid, kernels};
use hecate_core::{
    DType, Error, Result, Tensor,
    primitives::{Map, map, scale},
};

kernels! { crate::primitives::elementwise::SOURCE {
    "map_forward" MapForward { x: Array, y: Array, count: u64, map: u32 }
} }

/// A driver's error can stay with the context and fail every later call. So each refusal is followed by a product, whose
/// numbers are compared.
#[test]
fn a_refused_launch_leaves_the_device_usable() {
    let Some(device) = device() else { return };
    let x = Tensor::from_f32(&device, [3], vec![1.0, -2.0, 3.5]).expect("an array");
    let y = Tensor::zeros(&device, [3], DType::F32).expect("an array");
    // Compiled and loaded, so that what fails is the launch.
    map(Map::Silu, &x).expect("a map");
    let launch = |grid: Grid| -> Result<()> {
        device.launch(grid, &MapForward { x: (&x).into(), y: (&y).into(), count: 3, map: 0 })
    };
    let right = Grid::elements(3);
    let before_the_driver = [
        Grid { shared: 1 << 30, ..right },
        Grid { blocks: (0, 1, 1), ..right },
        Grid { blocks: (1 << 32, 1, 1), ..right },
        Grid { blocks: (1, 65_536, 1), ..right },
        Grid { threads: 0, ..right },
        Grid { threads: 1025, ..right },
    ];
    for grid in before_the_driver {
        let error = launch(grid).expect_err("no GPU starts this");
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("map_forward"), "{error}");
        assert_eq!(scale(2.0, &x).and_then(|x| x.to_f32()).expect("a product"), [2.0, -4.0, 7.0]);
    }
    // More threads than the kernel was compiled for: the driver's to refuse.
    let error = launch(Grid { threads: 1024, ..right }).expect_err("too many threads for this kernel");
    assert!(matches!(error, Error::Device { .. }), "{error:?}");
    assert!(error.to_string().contains("map_forward"), "{error}");
    assert_eq!(scale(2.0, &x).and_then(|x| x.to_f32()).expect("a product"), [2.0, -4.0, 7.0]);
    assert_eq!(y.to_f32().expect("values"), [0.0; 3]);
}
