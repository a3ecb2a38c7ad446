//! The forgetting gate.

use super::reduce::{Terms, sum_columns};
use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source},
    memory::groups,
};
use hecate_core::{DType, Result, Tensor, primitives};

const SOURCE: Source = Source { name: "retention", parts: &[PRELUDE, include_str!("retention.wgsl")] };

const RETENTION: Kernel<'static> = Kernel { source: &SOURCE, entry: "retention", constants: &[] };
const BACKWARD: Kernel<'static> = Kernel { source: &SOURCE, entry: "retention_backward", constants: &[] };

pub(crate) const KERNELS: &[Kernel<'static>] = &[RETENTION, BACKWARD];

#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct Args {
    count: u32,
    width: u32,
    unused: [u32; 2],
}

impl Args {
    fn new(x: &Tensor<Wgpu>) -> Self {
        Self { count: x.shape().count() as u32, width: x.shape().last() as u32, unused: [0; 2] }
    }
}

impl primitives::Retention for Wgpu {
    fn retention(&self, x: &Tensor<Self>, slope: &Tensor<Self>, offset: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (args, x) = (Args::new(x), self.widened(x)?);
        let y = self.empty(x.shape().clone(), DType::F32)?;
        let arrays = [Binding::Read(&x), Binding::Read(slope), Binding::Read(offset), Binding::Write(&y)];
        self.launch(&RETENTION, groups(x.shape().count()), &args, &arrays)?;
        Ok(y)
    }

    fn retention_backward(
        &self,
        x: &Tensor<Self>,
        slope: &Tensor<Self>,
        offset: &Tensor<Self>,
        dy: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>, Tensor<Self>)> {
        let (args, dtype, x) = (Args::new(x), x.dtype(), self.widened(x)?);
        let like_x = || self.empty(x.shape().clone(), DType::F32);
        let (dx, scaled) = (like_x()?, like_x()?);
        let [x_at, slope, offset, dy] = [&x, slope, offset, dy].map(Binding::Read);
        let arrays = [x_at, slope, offset, Binding::Write(&dx), dy, Binding::Write(&scaled)];
        self.launch(&BACKWARD, groups(x.shape().count()), &args, &arrays)?;
        let sums = |terms| sum_columns(self, args.width as usize, Terms::Values(terms));
        let (dslope, doffset) = (sums(&scaled)?, sums(&dx)?);
        Ok((self.rounded(dx, dtype)?, dslope, doffset))
    }
}
