//! Element by element: maps, sums, products, conversions.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    memory::groups,
    parameters::{Parameters, parameters, vec2},
};
use hecate_core::{
    Checked, DType, Result, Tensor,
    primitives::{BiasedBackward, Broadcast, Combine, DropMask, Elementwise, GatedBackward, GatedGrads, Map},
};

/// One file: an invocation makes one element.
const SOURCE: WgslSource =
    WgslSource { name: "elementwise", parts: &[PRELUDE, ElementwiseArgs::WGSL, include_str!("elementwise.wgsl")] };

/// `MAP` and `COMBINE`.
type Constants = [(&'static str, u32); 2];

/// The numbers of a map and of a [`Combine`].
const fn constants(map: u32, how: Combine) -> Constants {
    [("MAP", map), ("COMBINE", how.number())]
}

/// Those of a map alone.
const fn mapped(map: u32) -> Constants {
    constants(map, Combine::Sum)
}

/// Each map once, then what two arrays can be beside a sum.
const CONSTANTS: [Constants; 11] = [
    mapped(0),
    mapped(1),
    mapped(2),
    mapped(3),
    mapped(4),
    mapped(5),
    mapped(6),
    mapped(7),
    constants(0, Combine::Product),
    constants(0, Combine::Difference),
    constants(0, Combine::Quotient),
];

/// Constants make a kernel of its own for every map.
const fn kernel<'a>(entry: &'static str, constants: &'a Constants) -> Kernel<'a> {
    Kernel { source: &SOURCE, entry, constants }
}

/// Every kernel of the file, each map once.
pub(crate) const KERNELS: &[Kernel<'static>] = &[
    kernel("map_forward", &CONSTANTS[0]),
    kernel("map_backward", &CONSTANTS[1]),
    kernel("gated", &CONSTANTS[2]),
    kernel("gated_backward", &CONSTANTS[3]),
    kernel("map_backward", &CONSTANTS[4]),
    kernel("map_backward", &CONSTANTS[5]),
    kernel("map_backward", &CONSTANTS[6]),
    kernel("map_backward", &CONSTANTS[7]),
    kernel("biased", &CONSTANTS[0]),
    kernel("biased_backward", &CONSTANTS[6]),
    kernel("combine", &CONSTANTS[0]),
    kernel("combine", &CONSTANTS[8]),
    kernel("combine", &CONSTANTS[9]),
    kernel("combine", &CONSTANTS[10]),
    kernel("scale", &CONSTANTS[0]),
    kernel("dropout", &CONSTANTS[0]),
];

parameters! {
    /// What kernels that go element by element are told.
    struct ElementwiseArgs {
        /// Elements.
        count: u32,
        /// Elements of the array that serves every row.
        width: u32,
        /// Of `scale`, and of what `dropout` leaves.
        factor: f32,
        /// Of `dropout`: a [`DropMask`].
        dropped: u32,
        /// Of `dropout`: the mask's random key, 64 bits in two words.
        key: vec2<u32>,
    }
}

impl ElementwiseArgs {
    /// Arrays of one shape: the second serves one row of all elements.
    fn new(count: usize) -> Self {
        Self { count: count as u32, width: count as u32, factor: 1.0, dropped: 0, key: [0; 2] }
    }
}

impl Elementwise for Wgpu {
    /// `y = map(x)` of the shape and type of `x`.
    /// `x` has any shape and a float type; the map is a constant of the kernel, so no element branches.
    fn map(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        one(self, "map_forward", &mapped(map.index()), ElementwiseArgs::new(x.shape().count()), &[x], x.dtype())
    }

    /// `dx = map′(x) dy`, of the shape and type of `x`.
    /// Slopes are made of `x`, so the forward keeps nothing else; `dy` is like `x`.
    fn map_backward(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        one(self, "map_backward", &mapped(map.index()), ElementwiseArgs::new(x.shape().count()), &[x, dy], x.dtype())
    }

    /// `y = x map(g)`, arrays of one shape.
    fn gated(&self, _: Checked<Self>, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>> {
        one(self, "gated", &mapped(map.index()), ElementwiseArgs::new(x.shape().count()), &[x, g], x.dtype())
    }

    /// Both gradients in one pass over the three arrays.
    /// `dx = map(g) dy` and `dg = x map′(g) dy`.
    fn gated_backward(
        &self,
        _: Checked<Self>,
        map: Map,
        call: &GatedBackward<'_, Self>,
    ) -> Result<GatedGrads<Tensor<Self>>> {
        let GatedBackward { x, g, dy } = *call;
        let (count, constants) = (x.shape().count(), mapped(map.index()));
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), DType::F32);
        let (dx, dg, wide) = (like(x)?, like(g)?, [self.widened(x)?, self.widened(g)?, self.widened(dy)?]);
        let [a, b, c] = &wide;
        // y, a, b, c, z of the kernel.
        let bindings = [Binding::Write(&dx), Binding::Read(a), Binding::Read(b), Binding::Read(c), Binding::Write(&dg)];
        self.launch(&kernel("gated_backward", &constants), groups(count), &ElementwiseArgs::new(count), &bindings)?;
        Ok(GatedGrads { x: self.rounded(dx, x.dtype())?, g: self.rounded(dg, g.dtype())? })
    }

    /// `y = map(x + b)`, `b [width]` or of the shape of `x`.
    /// The sum itself is not written to memory.
    fn biased(
        &self,
        _: Checked<Self>,
        map: Map,
        dims: Broadcast,
        x: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let args = ElementwiseArgs { width: dims.width as u32, ..ElementwiseArgs::new(x.shape().count()) };
        one(self, "biased", &mapped(map.index()), args, &[x, b], x.dtype())
    }

    /// `dx = map′(x + b) dy`, of the shape and type of `x`.
    /// That of `b [width]` is its sum over rows.
    fn biased_backward(
        &self,
        _: Checked<Self>,
        map: Map,
        dims: Broadcast,
        call: &BiasedBackward<'_, Self>,
    ) -> Result<Tensor<Self>> {
        let BiasedBackward { x, b, dy } = *call;
        let args = ElementwiseArgs { width: dims.width as u32, ..ElementwiseArgs::new(x.shape().count()) };
        one(self, "biased_backward", &mapped(map.index()), args, &[x, b, dy], x.dtype())
    }

    /// `a [rows, width]` and `b [width]` or of the shape of `a`.
    /// The result is like `a`; element `i` of it takes element `i % width` of `b`.
    fn combine(
        &self,
        _: Checked<Self>,
        how: Combine,
        dims: Broadcast,
        a: &Tensor<Self>,
        b: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let args = ElementwiseArgs { width: dims.width as u32, ..ElementwiseArgs::new(a.shape().count()) };
        one(self, "combine", &constants(0, how), args, &[a, b], a.dtype())
    }

    /// `factor x`, of the type of `x`.
    /// In 16 bits the product is rounded once.
    fn scale(&self, _: Checked<Self>, factor: f32, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let args = ElementwiseArgs { factor, ..ElementwiseArgs::new(x.shape().count()) };
        one(self, "scale", &mapped(0), args, &[x], x.dtype())
    }

    /// Each invocation makes the mask of its own element.
    /// It is made from a key and the element's place, so a backward need not keep it.
    fn dropout(&self, _: Checked<Self>, mask: DropMask, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let DropMask { key, dropped, kept } = mask;
        let args = ElementwiseArgs { key, dropped, factor: kept, ..ElementwiseArgs::new(x.shape().count()) };
        one(self, "dropout", &mapped(0), args, &[x], x.dtype())
    }

    /// At most one of the two steps copies: widening or rounding.
    fn cast(&self, _: Checked<Self>, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        self.rounded(self.widened(x)?, dtype)
    }
}

/// A kernel that makes one array like the first.
fn one(
    device: &Wgpu,
    entry: &'static str,
    constants: &Constants,
    args: ElementwiseArgs,
    from: &[&Tensor<Wgpu>],
    dtype: DType,
) -> Result<Tensor<Wgpu>> {
    // Kernels read and write 32 bits; the result is rounded once.
    let wide = from.iter().map(|x| device.widened(x)).collect::<Result<Vec<_>>>()?;
    let y = device.empty(wide[0].shape().clone(), DType::F32)?;
    let bindings: Vec<_> = std::iter::once(Binding::Write(&y)).chain(wide.iter().map(Binding::Read)).collect();
    device.launch(&kernel(entry, constants), groups(args.count as usize), &args, &bindings)?;
    device.rounded(y, dtype)
}
