//! Sums of partial results.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, WgslSource},
    parameters::{Parameters, parameters},
};
use hecate_core::{DType, Result, Tensor};

const SOURCE: WgslSource =
    WgslSource { name: "sum_parts", parts: &[PRELUDE, SumPartsArgs::WGSL, include_str!("sum_parts.wgsl")] };

/// An invocation adds up one element of all parts.
const SUM_PARTS: Kernel<'static> = Kernel { source: &SOURCE, entry: "sum_parts", constants: &[] };

/// The one kernel.
pub(crate) const KERNELS: &[Kernel<'static>] = &[SUM_PARTS];

parameters! {
    /// What the sum of parts is told.
    struct SumPartsArgs {
        /// Elements of the result.
        count: u32,
        /// Parts.
        number: u32,
    }
}

/// The sum over the first axis of `parts [number, ..]` in 32 bits, in an order that sizes alone decide.
pub(super) fn sum_parts(device: &Wgpu, parts: &Tensor<Wgpu>) -> Result<Tensor<Wgpu>> {
    let (number, rest) = parts.shape().axes().split_first().map_or((1, &[][..]), |(number, rest)| (*number, rest));
    if number == 1 {
        return parts.reshape(rest);
    }
    let out = device.empty(rest, DType::F32)?;
    let count = out.shape().count();
    let args = SumPartsArgs { count: count as u32, number: number as u32 };
    let arrays = [Binding::Read(parts), Binding::Write(&out)];
    device.launch(&SUM_PARTS, (count.div_ceil(64), 1, 1), &args, &arrays)?;
    Ok(out)
}
