//! Element by element: maps, sums, products, conversions.

use super::reduce::{Terms, sum_columns};
use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, Source},
    memory::groups,
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Broadcast, Elementwise, Map},
};

const SOURCE: Source = Source { name: "elementwise", parts: &[PRELUDE, include_str!("elementwise.wgsl")] };

type Constants = [(&'static str, u32); 2];

const fn constants(map: u32, product: bool) -> Constants {
    [("MAP", map), ("PRODUCT", product as u32)]
}

const CONSTANTS: [Constants; 7] = [
    constants(0, false),
    constants(1, false),
    constants(2, false),
    constants(3, false),
    constants(4, false),
    constants(5, false),
    constants(0, true),
];

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
    kernel("combine", &CONSTANTS[0]),
    kernel("combine", &CONSTANTS[6]),
    kernel("scale", &CONSTANTS[0]),
];

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Args {
    count: u32,
    width: u32,
    factor: f32,
    unused: u32,
}

impl Args {
    fn new(count: usize) -> Self {
        Self { count: count as u32, width: count as u32, factor: 1.0, unused: 0 }
    }
}

impl Elementwise for Wgpu {
    fn map(&self, map: Map, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        one(self, "map_forward", &constants(index(map)?, false), Args::new(x.shape().count()), &[x], x.dtype())
    }

    fn map_backward(&self, map: Map, x: &Tensor<Self>, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        one(self, "map_backward", &constants(index(map)?, false), Args::new(x.shape().count()), &[x, dy], x.dtype())
    }

    fn gated(&self, map: Map, x: &Tensor<Self>, g: &Tensor<Self>) -> Result<Tensor<Self>> {
        one(self, "gated", &constants(index(map)?, false), Args::new(x.shape().count()), &[x, g], x.dtype())
    }

    fn gated_backward(
        &self,
        map: Map,
        x: &Tensor<Self>,
        g: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let (count, constants) = (x.shape().count(), constants(index(map)?, false));
        let like = |x: &Tensor<Self>| self.empty(x.shape().clone(), DType::F32);
        let (dx, dg, wide) = (like(x)?, like(g)?, [self.widened(x)?, self.widened(g)?, self.widened(dy)?]);
        let [a, b, c] = &wide;
        let bindings = [Binding::Write(&dx), Binding::Read(a), Binding::Read(b), Binding::Read(c), Binding::Write(&dg)];
        self.launch(&kernel("gated_backward", &constants), groups(count), &Args::new(count), &bindings)?;
        Ok((self.rounded(dx, x.dtype())?, self.rounded(dg, g.dtype())?))
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
        let args = Args { factor, ..Args::new(x.shape().count()) };
        one(self, "scale", &constants(0, false), args, &[x], x.dtype())
    }

    fn cast(&self, dtype: DType, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        self.rounded(self.widened(x)?, dtype)
    }
}

/// The number of a map in the kernels.
fn index(map: Map) -> Result<u32> {
    let place = Map::ALL.iter().position(|&other| other == map);
    let missing = || unsupported("map", format!("there is no kernel for {}", map.name()));
    Ok(place.ok_or_else(missing)? as u32)
}

/// `a b` or `a + b`.
fn combine(device: &Wgpu, dims: Broadcast, product: bool, a: &Tensor<Wgpu>, b: &Tensor<Wgpu>) -> Result<Tensor<Wgpu>> {
    let args = Args { width: dims.width as u32, ..Args::new(a.shape().count()) };
    one(device, "combine", &constants(0, product), args, &[a, b], a.dtype())
}

/// A kernel that makes one array like the first.
fn one(
    device: &Wgpu,
    entry: &'static str,
    constants: &Constants,
    args: Args,
    from: &[&Tensor<Wgpu>],
    dtype: DType,
) -> Result<Tensor<Wgpu>> {
    let wide = from.iter().map(|x| device.widened(x)).collect::<Result<Vec<_>>>()?;
    let y = device.empty(wide[0].shape().clone(), DType::F32)?;
    let bindings: Vec<_> = std::iter::once(Binding::Write(&y)).chain(wide.iter().map(Binding::Read)).collect();
    device.launch(&kernel(entry, constants), groups(args.count as usize), &args, &bindings)?;
    device.rounded(y, dtype)
}
