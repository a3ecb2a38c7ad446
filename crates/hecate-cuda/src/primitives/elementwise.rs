//! Element by element: maps, sums, products, conversions.

use crate::{
    Cuda,
    launch::{Array, Grid, Source, kernels, source},
};
use hecate_core::{Result, Tensor, primitives::Map};

pub(crate) const SOURCE: Source = source!("elementwise", "elementwise.cu");

kernels! { SOURCE {
    "map_forward" MapForward { x: Array, y: Array, count: u64, map: u32 }
    "map_backward" MapBackward { x: Array, dy: Array, dx: Array, count: u64, map: u32 }
} }

fn index(map: Map) -> u32 {
    Map::ALL.iter().position(|&other| other == map).unwrap_or(Map::ALL.len()) as u32
}

#[allow(dead_code)]
fn map(device: &Cuda, map: Map, x: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let y = device.empty(x.shape().clone(), x.dtype())?;
    let count = x.shape().count();
    let arguments = MapForward { x: x.into(), y: (&y).into(), count: count as u64, map: index(map) };
    device.launch(Grid::elements(count), &arguments)?;
    Ok(y)
}
