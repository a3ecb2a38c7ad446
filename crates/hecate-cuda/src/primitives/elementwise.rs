//! Element by element: maps, sums, products, conversions.

use super::{
    entries::Entries,
    reduce::{Terms, sum_columns},
};
use crate::{
    Cuda,
    error::unsupported,
    launch::{Array, Grid, Pointer, Source, kernels, pointer, source},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Broadcast, Elementwise, Map},
};

pub(crate) const SOURCE: Source = source!("elementwise", "elementwise.cu");

kernels! { SOURCE {
    "map_forward" MapForward { x: Array, y: Array, count: u64, map: u32 }
    "map_backward" MapBackward { x: Array, dy: Array, dx: Array, count: u64, map: u32 }
    "gated" Gated { x: Array, g: Array, y: Array, count: u64, map: u32 }
    "gated_backward" GatedBackward {
        x: Array, g: Array, dy: Array, dx: Array, dg: Array, count: u64, map: u32
    }
    "combine" Combine { a: Array, b: Array, y: Array, count: u64, width: u64, product: u32 }
    "scale" Scale { x: Array, y: Array, count: u64, factor: f32 }
    "cast_all" Casts { casts: Pointer, number: u32 }
} }

impl Elementwise for Cuda {
    fn map(&self, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (y, count) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count());
        let arguments = MapForward { x: x.into(), y: (&y).into(), count: count as u64, map: index(map)? };
        self.launch(runs(x, count), &arguments)?;
        Ok(y)
    }

    fn map_backward(&self, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (dx, count, map) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count(), index(map)?);
        let arguments = MapBackward { x: x.into(), dy: dy.into(), dx: (&dx).into(), count: count as u64, map };
        self.launch(runs(x, count), &arguments)?;
        Ok(dx)
    }

    fn gated(&self, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (y, count, map) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count(), index(map)?);
        let arguments = Gated { x: x.into(), g: g.into(), y: (&y).into(), count: count as u64, map };
        self.launch(runs(x, count), &arguments)?;
        Ok(y)
    }

    fn gated_backward(
        &self,
        map: Map,
        x: &Tensor<Self>,
        g: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), x.dtype());
        let (x_grad, g_grad, count, map) = (like(x)?, like(g)?, x.shape().count(), index(map)?);
        let (dx, dg) = ((&x_grad).into(), (&g_grad).into());
        let arguments = GatedBackward { x: x.into(), g: g.into(), dy: dy.into(), dx, dg, count: count as u64, map };
        self.launch(runs(x, count), &arguments)?;
        Ok((x_grad, g_grad))
    }

    fn add(&self, dims: Broadcast, a: &Tensor<Self>, b: &Tensor<Self>) -> Result<Tensor<Self>> {
        combine(self, dims, false, a, b)
    }

    fn mul(&self, dims: Broadcast, a: &Tensor<Self>, b: &Tensor<Self>) -> Result<Tensor<Self>> {
        combine(self, dims, true, a, b)
    }

    fn mul_backward(
        &self,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let da = combine(self, dims, true, dy, b)?;
        let db = match dims.rows {
            1 => combine(self, dims, true, dy, a)?,
            _ => sum_columns(self, dims.width, Terms::Products(a, dy))?,
        };
        Ok((da, db.reshape(b.shape().clone())?))
    }

    fn scale(&self, factor: f32, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        scaled(self, factor, x.dtype(), x)
    }

    fn cast(&self, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        scaled(self, 1.0, dtype, x)
    }

    fn cast_all(&self, dtype: DType, xs: &[&Tensor<Self>]) -> Result<Vec<Tensor<Self>>> {
        if let [x] = xs {
            return Ok(vec![self.cast(dtype, x)?]);
        }
        let like = |x: &&Tensor<Self>| self.empty(x.shape().clone(), dtype);
        let ys = xs.iter().map(like).collect::<Result<Vec<_>>>()?;
        let mut entries = Entries::new();
        for (&x, y) in xs.iter().zip(&ys) {
            let words = [Array::from(x), Array::from(y)].map(|Array { data, dtype, .. }| [data, u64::from(dtype)]);
            entries.add(words.into_iter().flatten(), x.shape().count());
        }
        let table = entries.table(self)?;
        let arguments = Casts { casts: pointer(&table), number: xs.len() as u32 };
        self.launch(Grid::blocks(entries.blocks, 256), &arguments)?;
        Ok(ys)
    }
}

/// A thread for every 16 bytes of `count` elements.
fn runs(x: &Tensor<Cuda>, count: usize) -> Grid {
    Grid::elements(count.div_ceil(Array::from(x).wide()))
}

/// The number of a map in the kernels.
fn index(map: Map) -> Result<u32> {
    let place = Map::ALL.iter().position(|&other| other == map);
    let missing = || unsupported("map", format!("there is no kernel for {}", map.name()));
    Ok(place.ok_or_else(missing)? as u32)
}

/// `a b` or `a + b`.
fn combine(device: &Cuda, dims: Broadcast, product: bool, a: &Tensor<Cuda>, b: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let (y, count) = (device.empty(a.shape().clone(), a.dtype())?, a.shape().count());
    let (width, product) = (dims.width as u64, u32::from(product));
    let arguments = Combine { a: a.into(), b: b.into(), y: (&y).into(), count: count as u64, width, product };
    device.launch(runs(a, count), &arguments)?;
    Ok(y)
}

/// `factor x` as `dtype`.
fn scaled(device: &Cuda, factor: f32, dtype: DType, x: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let (y, count) = (device.empty(x.shape().clone(), dtype)?, x.shape().count());
    let arguments = Scale { x: x.into(), y: (&y).into(), count: count as u64, factor };
    device.launch(runs(x, count), &arguments)?;
    Ok(y)
}
