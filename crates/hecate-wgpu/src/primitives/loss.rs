//! Cross-entropy.

use crate::{
    Wgpu,
    launch::{Binding, Kernel, PRELUDE, Source, WORKGROUP},
    memory::groups,
};
use hecate_core::{DType, Result, Tensor, primitives::Loss};

const TEXT: &str = include_str!("loss.wgsl");
/// For any adapter, and for one with subgroups.
static SOURCES: [Source; 2] = [
    Source { name: "loss", parts: &[PRELUDE, WORKGROUP[0], TEXT] },
    Source { name: "loss_subgroups", parts: &[PRELUDE, WORKGROUP[1], TEXT] },
];

/// Every kernel of the file.
pub(crate) const KERNELS: &[Kernel<'static>] =
    &[kernel(false, "cross_entropy"), kernel(true, "cross_entropy"), kernel(false, "cross_entropy_backward")];

const fn kernel(subgroups: bool, entry: &'static str) -> Kernel<'static> {
    Kernel { source: &SOURCES[subgroups as usize], entry, constants: &[] }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Args {
    rows: u32,
    width: u32,
    factor: f32,
    classes: u32,
}

impl Args {
    fn new(classes: usize, logits: &Tensor<Wgpu>, factor: f32) -> Self {
        let (rows, width) = (logits.shape().rows() as u32, logits.shape().last() as u32);
        Self { rows, width, factor, classes: classes as u32 }
    }
}

impl Loss for Wgpu {
    fn cross_entropy(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        let rows = logits.shape().rows();
        let (loss, lse) = (self.empty([rows], DType::F32)?, self.empty([rows], DType::F32)?);
        let wide = self.widened(logits)?;
        let bindings = [Binding::Read(&wide), Binding::Read(targets), Binding::Write(&loss), Binding::Write(&lse)];
        let args = Args::new(classes, logits, 1.0);
        self.launch(&kernel(self.has_subgroups(), "cross_entropy"), (rows, 1, 1), &args, &bindings)?;
        Ok((loss, lse))
    }

    fn cross_entropy_backward(
        &self,
        classes: usize,
        logits: &Tensor<Self>,
        targets: &Tensor<Self>,
        lse: &Tensor<Self>,
        factor: f32,
    ) -> Result<Tensor<Self>> {
        let count = logits.shape().count();
        let (wide, dlogits) = (self.widened(logits)?, self.empty(logits.shape().clone(), DType::F32)?);
        let bindings = [Binding::Read(&wide), Binding::Read(targets), Binding::Read(lse), Binding::Write(&dlogits)];
        let args = Args::new(classes, logits, factor);
        self.launch(&kernel(false, "cross_entropy_backward"), groups(count), &args, &bindings)?;
        self.rounded(dlogits, logits.dtype())
    }
}
