//! Element by element: maps, sums, products, conversions.
//!
//! Each element is read once and written once, so these kernels are as fast as memory: 16 bytes a thread and access.

use super::entries::Entries;
use crate::{
    Cuda,
    arguments::{In, Uint2, Words},
    launch::{Array, Grid, kernels},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{self, Broadcast, Combine, DropMask, Elementwise, GatedGrads, Map},
};

/// `map(x)`, `x * map(g)`, `a ∘ b`, `map(x + b)`, `factor * x`, dropout and `x.to(dtype)`, with the gradients of maps.
pub(crate) const SOURCE: KernelSource = kernel_source!("elementwise", "elementwise.cu");

kernels! { SOURCE {
    // Arrays [count]; `map` is a place in `Map::ALL`.
    "map_forward" MapForward { x: Array, y: Array, count: u64, map: u32 }
    "map_backward" MapBackward { x: Array, dy: Array, dx: Array, count: u64, map: u32 }
    "gated" Gated { x: Array, g: Array, y: Array, count: u64, map: u32 }
    "gated_backward" GatedBackward {
        x: Array, g: Array, dy: Array, dx: Array, dg: Array, count: u64, map: u32
    }
    // a and y [count], b [width]; `how` is the number of a `Combine`.
    "combine" CombinePair { a: Array, b: Array, y: Array, count: u64, width: u64, how: u32 }
    // The same with a map of the sum, whose gradient is dx.
    "biased" Biased { x: Array, b: Array, y: Array, count: u64, width: u64, map: u32 }
    "biased_backward" BiasedBackward { x: Array, b: Array, dy: Array, dx: Array, count: u64, width: u64, map: u32 }
    // x and y [count], of any two float types: with a factor of 1 this is a conversion.
    "scale" Scale { x: Array, y: Array, count: u64, factor: f32 }
    // x and y [count]; an element is dropped where its random word is under `dropped`, else multiplied by `kept`.
    "dropout" Dropout { x: Array, y: Array, count: u64, key: Uint2, dropped: u32, kept: f32 }
    // A table of arrays, as [`Entries`] makes it.
    "cast_all" Casts { casts: In<Words<6>>, number: u32 }
} }

/// Elements of a kernel that begins early: those of the 64 rows of tokens that are generated.
const EARLY: usize = 1 << 18;

// Core has checked shapes, types and devices before each of these: what fails here is memory or the launch.
// Arithmetic is in 32 bits whatever the type, and each result is rounded once.
impl Elementwise for Cuda {
    /// `y = map(x)` of the shape and type of `x`.
    fn map(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (y, count) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count());
        let arguments = MapForward { x: x.into(), y: (&y).into(), count: count as u64, map: map.index() };
        self.launch(runs(x, count), &arguments)?;
        Ok(y)
    }

    /// `dx = map′(x) dy`, of the shape and type of `x`.
    /// The slope is made again from `x`, so that the forward keeps no array for it.
    fn map_backward(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (dx, count, map) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count(), map.index());
        let arguments = MapBackward { x: x.into(), dy: dy.into(), dx: (&dx).into(), count: count as u64, map };
        self.launch(runs(x, count), &arguments)?;
        Ok(dx)
    }

    /// `y = x map(g)`, arrays of one shape.
    /// Of a few tokens the launch overlaps the end of the kernel before: its start is a good part of its time.
    fn gated(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (y, count, map) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count(), map.index());
        let arguments = Gated { x: x.into(), g: g.into(), y: (&y).into(), count: count as u64, map };
        // Of few tokens: what it waits for is short.
        match count <= EARLY {
            true => self.launch_early(runs(x, count), 1, &arguments)?,
            false => self.launch(runs(x, count), &arguments)?,
        }
        Ok(y)
    }

    /// Both gradients in one launch.
    /// `dx = dy map(g)` and `dg = dy x map′(g)`, of the shapes and types of `x` and `g`.
    fn gated_backward(
        &self,
        _: Checked<Self>,
        map: Map,
        call: &primitives::GatedBackward<'_, Self>,
    ) -> Result<GatedGrads<Tensor<Self>>> {
        let primitives::GatedBackward { x, g, dy } = *call;
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), x.dtype());
        let (x_grad, g_grad, count, map) = (like(x)?, like(g)?, x.shape().count(), map.index());
        let (dx, dg) = ((&x_grad).into(), (&g_grad).into());
        let arguments = GatedBackward { x: x.into(), g: g.into(), dy: dy.into(), dx, dg, count: count as u64, map };
        self.launch(runs(x, count), &arguments)?;
        Ok(GatedGrads { x: x_grad, g: g_grad })
    }

    /// `a [rows, width]` and `b [width]` or of the shape of `a`.
    fn combine(
        &self,
        _: Checked<Self>,
        how: Combine,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (y, count) = (self.empty(a.shape().clone(), a.dtype())?, a.shape().count());
        // `width` is the count where `b` has the shape of `a`.
        let (width, how) = (dims.width as u64, how.number());
        let arguments = CombinePair { a: a.into(), b: b.into(), y: (&y).into(), count: count as u64, width, how };
        self.launch(runs(a, count), &arguments)?;
        Ok(y)
    }

    /// `y = map(x + b)`, `b [width]` or of the shape of `x`.
    fn biased(
        &self,
        _: Checked<Self>,
        map: Map,
        dims: Broadcast,
        x: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (y, count) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count());
        // Neighbours of a run share a map, and mostly a row of `b`.
        let (width, map) = (dims.width as u64, map.index());
        let arguments = Biased { x: x.into(), b: b.into(), y: (&y).into(), count: count as u64, width, map };
        self.launch(runs(x, count), &arguments)?;
        Ok(y)
    }

    /// `dx = map′(x + b) dy`, of the shape and type of `x`.
    fn biased_backward(
        &self,
        _: Checked<Self>,
        map: Map,
        dims: Broadcast,
        call: &primitives::BiasedBackward<'_, Self>,
    ) -> Result<Tensor<Self>> {
        let primitives::BiasedBackward { x, b, dy } = *call;
        let (y, count) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count());
        // The gradient of `b` is the sum of this over rows.
        let (dx, width, map) = ((&y).into(), dims.width as u64, map.index());
        let arguments = BiasedBackward { x: x.into(), b: b.into(), dy: dy.into(), dx, count: count as u64, width, map };
        self.launch(runs(x, count), &arguments)?;
        Ok(y)
    }

    /// `factor x`, of the type of `x`.
    fn scale(&self, _: Checked<Self>, factor: f32, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        scaled(self, factor, x.dtype(), x)
    }

    /// Each thread makes the mask of its own elements.
    /// `y = where(word < dropped, 0, kept * x)`, of the shape and type of `x`. The backward is the same call on `dy`.
    fn dropout(&self, _: Checked<Self>, mask: DropMask, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (y, count) = (self.empty(x.shape().clone(), x.dtype())?, x.shape().count());
        let DropMask { key, dropped, kept } = mask;
        let arguments = Dropout { x: x.into(), y: (&y).into(), count: count as u64, key, dropped, kept };
        self.launch(runs(x, count), &arguments)?;
        Ok(y)
    }

    /// `x` as another type: the factor 1.
    fn cast(&self, _: Checked<Self>, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        scaled(self, 1.0, dtype, x)
    }

    /// All arrays in one launch, of any shapes and types.
    fn cast_all(&self, checked: Checked<Self>, dtype: DType, xs: &[&Tensor<Self>]) -> Result<Vec<Tensor<Self>>> {
        // A table costs an upload, which one array does not need.
        if let [x] = xs {
            return Ok(vec![self.cast(checked, dtype, x)?]);
        }
        // All results first: the table holds their addresses.
        let like = |x: &&Tensor<Self>| self.empty(x.shape().clone(), dtype);
        let ys = xs.iter().map(like).collect::<Result<Vec<_>>>()?;
        let mut entries = Entries::new();
        for (&x, y) in xs.iter().zip(&ys) {
            // Address and type of each; the count follows them.
            let words = [Array::from(x), Array::from(y)].map(|Array { data, dtype, .. }| [data, u64::from(dtype)]);
            entries.add(words.into_iter().flatten(), x.shape().count());
        }
        let table = entries.table(self)?;
        let arguments = Casts { casts: table.pointer(), number: xs.len() as u32 };
        self.launch(Grid::blocks(entries.blocks, 256), &arguments)?;
        Ok(ys)
    }
}

/// A thread for every 16 bytes of `count` elements.
fn runs(x: &Tensor<Cuda>, count: usize) -> Grid {
    Grid::elements(count.div_ceil(Array::from(x).wide()))
}

/// `factor x` as `dtype`.
fn scaled(device: &Cuda, factor: f32, dtype: DType, x: &Tensor<Cuda>) -> Result<Tensor<Cuda>> {
    let (y, count) = (device.empty(x.shape().clone(), dtype)?, x.shape().count());
    let arguments = Scale { x: x.into(), y: (&y).into(), count: count as u64, factor };
    device.launch(runs(x, count), &arguments)?;
    Ok(y)
}
