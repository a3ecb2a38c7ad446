//! Arrays one after another in one: kernels take no more than eight.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, WgslSource},
    parameters::{Parameters, array, parameters, vec4},
};
use hecate_core::{DType, Result, Shape, Tensor};

/// Seven arrays into one.
static PACK: WgslSource =
    WgslSource { name: "pack", parts: &[PackingArgs::WGSL, include_str!("packing.wgsl"), include_str!("pack.wgsl")] };
/// One array into seven.
static SPLIT: WgslSource =
    WgslSource { name: "split", parts: &[PackingArgs::WGSL, include_str!("packing.wgsl"), include_str!("split.wgsl")] };

const PACKING: Kernel<'static> = Kernel { source: &PACK, entry: "pack", constants: &[] };
const SPLITTING: Kernel<'static> = Kernel { source: &SPLIT, entry: "split", constants: &[] };

/// The kernels of this file.
pub(crate) const KERNELS: &[Kernel<'static>] = &[PACKING, SPLITTING];

/// Arrays of one dispatch.
const TOGETHER: usize = 7;

/// Words that an invocation copies, as long as there are workgroups left.
const EACH: usize = 4;

parameters! {
    /// How arrays lie in the one, by array; the last number of each is not used.
    struct PackingArgs {
        /// Words of each array.
        counts: array<vec4<u32>, 2>,
        /// Where each begins in the whole.
        offsets: array<vec4<u32>, 2>,
    }
}

/// How some arrays lie in the one, and the workgroups that copy them.
fn plan(counts: &[usize], first: usize) -> (PackingArgs, (usize, usize, usize)) {
    let mut args = PackingArgs { counts: [[0; 4]; 2], offsets: [[0; 4]; 2] };
    let mut offset = first;
    for (i, &count) in counts.iter().enumerate() {
        (args.counts[i / 4][i % 4], args.offsets[i / 4][i % 4]) = (count as u32, offset as u32);
        offset += count;
    }
    // Enough workgroups for the longest array, and no more than 4096.
    let longest = counts.iter().max().copied().unwrap_or(0);
    (args, (longest.div_ceil(256 * EACH).clamp(1, 4096), 1, 1))
}

impl Wgpu {
    /// The words of arrays of 32-bit elements, one after another.
    pub(crate) fn packed(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let counts: Vec<usize> = parts.iter().map(|part| part.shape().count()).collect();
        let whole = self.empty([counts.iter().sum()], DType::U32)?;
        let mut first = 0;
        for (parts, counts) in parts.chunks(TOGETHER).zip(counts.chunks(TOGETHER)) {
            let (args, groups) = plan(counts, first);
            // Where there are fewer, nothing of the last is copied again.
            let padded = (0..TOGETHER).filter_map(|i| parts.get(i).or(parts.last()));
            let mut bindings: Vec<_> = padded.map(|part| Binding::Read(part)).collect();
            bindings.push(Binding::Write(&whole));
            self.launch(&PACKING, groups, &args, &bindings)?;
            first += counts.iter().sum::<usize>();
        }
        Ok(whole)
    }

    /// Arrays of 32-bit floats of these shapes, out of one where they stand one after another.
    pub(crate) fn split(&self, whole: &Tensor<Self>, shapes: &[Shape]) -> Result<Vec<Tensor<Self>>> {
        let mut all = Vec::new();
        let mut first = 0;
        for shapes in shapes.chunks(TOGETHER) {
            let counts: Vec<usize> = shapes.iter().map(Shape::count).collect();
            let (args, groups) = plan(&counts, first);
            let parts: Vec<_> =
                shapes.iter().map(|shape| self.empty(shape.clone(), DType::F32)).collect::<Result<_>>()?;
            // WebGPU wants a buffer for every binding, used or not.
            let unused: Vec<_> = (parts.len()..TOGETHER).map(|_| self.empty([1], DType::F32)).collect::<Result<_>>()?;
            let bindings: Vec<_> =
                std::iter::once(Binding::Read(whole)).chain(parts.iter().chain(&unused).map(Binding::Write)).collect();
            self.launch(&SPLITTING, groups, &args, &bindings)?;
            first += counts.iter().sum::<usize>();
            all.extend(parts);
        }
        Ok(all)
    }
}
