//! Kernels of one's own: WGSL that another crate brings, started on tensors.

use crate::{
    Binding, Wgpu,
    launch::{Checks, Kernel, WgslSource},
};
use hecate_core::{Result, Tensor};

/// A file of kernels: `static SOURCE: OwnSource = OwnSource::new("mine", &[include_str!("mine.wgsl")])`. Names tell files apart: no two of
/// a program have the same.
#[derive(Clone, Copy, Debug)]
pub struct OwnSource(WgslSource);

impl OwnSource {
    /// The file's name without extension, and the texts that it is put together from.
    pub const fn new(name: &'static str, parts: &'static [&'static str]) -> Self {
        Self(WgslSource { name, parts })
    }
}

impl Wgpu {
    /// Queues the kernel `entry` on so many workgroups; it is compiled when it is first started. Binding 0 is a uniform structure of
    /// `parameters`, at most 64 words; arrays follow it, from binding 1 on. Every access is checked while it runs.
    ///
    /// # Errors
    /// [`hecate_core::Error::OtherDevice`] for arrays of another queue; [`hecate_core::Error::Device`] for a text that does not compile,
    /// more arrays than the adapter takes, or one that is written and is another too.
    pub fn launch_own(
        &self,
        source: &'static OwnSource,
        entry: &'static str,
        groups: usize,
        parameters: &[u32],
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        for binding in bindings {
            let (Binding::Read(array) | Binding::Write(array)) = binding;
            Tensor::check_device(array, self, "launch_own", "bindings")?;
        }
        let kernel = Kernel { source: &source.0, entry, constants: &[] };
        self.start(&kernel, (groups, 1, 1), bytemuck::cast_slice(parameters), bindings, Checks::checked())
    }
}
