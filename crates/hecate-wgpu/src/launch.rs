//! Kernels by name, and the one place where they are started.

use crate::{
    Wgpu,
    error::{failed, unsupported},
    parameters::Parameters,
    queue::{Dispatch, PARAMETERS_OF_ONE},
};
use hecate_core::{Result, Tensor};
use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
};

/// A file of kernels: texts put one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WgslSource {
    /// Name without extension.
    pub(crate) name: &'static str,
    /// WGSL, what is shared first.
    pub(crate) parts: &'static [&'static str],
}

/// What all files of kernels begin with.
pub(crate) const PRELUDE: &str = include_str!("hecate.wgsl");

/// Sums and maxima over a workgroup, on any adapter and on one with subgroups.
pub(crate) const WORKGROUP: [&str; 2] = [include_str!("workgroup.wgsl"), include_str!("workgroup_subgroups.wgsl")];

/// A kernel, compiled for constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel<'a> {
    /// The file it is in.
    pub(crate) source: &'static WgslSource,
    /// Its name there.
    pub(crate) entry: &'static str,
    /// Constants that the file leaves open, such as the lengths of arrays.
    pub(crate) constants: &'a [(&'static str, u32)],
}

impl Kernel<'_> {
    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for part in self.source.parts {
            text.push_str(part);
            text.push('\n');
        }
        // After the rest, because what a kernel asks of the language comes first.
        for (name, value) in self.constants {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
        text
    }

    /// Its name, and what it is compiled for.
    pub(crate) fn title(&self) -> String {
        let constants: Vec<String> = self.constants.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        format!("`{}` of {}.wgsl ({})", self.entry, self.source.name, constants.join(", "))
    }
}

/// An array that a kernel takes. Their order is that of the kernel's bindings, from 1: the parameters are at 0.
#[derive(Clone, Copy, Debug)]
pub enum Binding<'a> {
    /// `var<storage, read>`.
    Read(&'a Tensor<Wgpu>),
    /// `var<storage, read_write>`.
    Write(&'a Tensor<Wgpu>),
}

impl<'a> Binding<'a> {
    /// The array itself.
    fn tensor(self) -> &'a Tensor<Wgpu> {
        match self {
            Self::Read(x) | Self::Write(x) => x,
        }
    }

    /// Its buffer on the device.
    fn memory(self) -> &'a wgpu::Buffer {
        self.tensor().buffer().memory()
    }

    /// Whether the kernel writes it.
    fn written(self) -> bool {
        matches!(self, Self::Write(_))
    }

    /// The tensor's own bytes in whole words, and not all that its memory has.
    fn bytes(self) -> u64 {
        let x = self.tensor();
        (x.shape().count() * x.dtype().size()).next_multiple_of(4).max(4) as u64
    }

    /// The window of the buffer that the kernel sees.
    fn resource(self) -> wgpu::BindingResource<'a> {
        let size = wgpu::BufferSize::new(self.bytes());
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: self.memory(), offset: 0, size })
    }
}

/// Which bindings are written, the first in the lowest bit, below a leading one.
type Pattern = u64;

/// A kernel that is compiled.
struct Compiled {
    /// The kernel, ready to be dispatched.
    pipeline: wgpu::ComputePipeline,
    /// What its bind groups look like.
    bindings: wgpu::BindGroupLayout,
}

/// A kernel for one set of constants; who comes first compiles it, and others wait for that alone.
struct Variant {
    /// What it is compiled for.
    constants: Vec<(&'static str, u32)>,
    /// Which of its arrays it writes.
    pattern: Pattern,
    /// None until somebody has compiled it.
    compiled: Arc<Mutex<Option<Arc<Compiled>>>>,
}

/// Kernels that are compiled, by the names of their source and their own.
#[derive(Default)]
pub(crate) struct Pipelines(Mutex<HashMap<(&'static str, &'static str), Vec<Variant>>>);

impl Pipelines {
    /// The kernel, compiled now if it never was.
    fn get(&self, device: &Wgpu, kernel: &Kernel<'_>, pattern: Pattern, checks: Checks) -> Result<Arc<Compiled>> {
        // The lock of one kernel alone is held while it is compiled.
        let place = self.place(kernel, pattern);
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = &*place {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(compile(device, kernel, pattern, checks)?);
        *place = Some(compiled.clone());
        Ok(compiled)
    }

    /// Where the kernel is or will be.
    fn place(&self, kernel: &Kernel<'_>, pattern: Pattern) -> Arc<Mutex<Option<Arc<Compiled>>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let variants = all.entry((kernel.source.name, kernel.entry)).or_default();
        // Few variants a kernel: a list is enough.
        let fits = |variant: &&Variant| variant.constants == kernel.constants && variant.pattern == pattern;
        if let Some(variant) = variants.iter().find(fits) {
            return variant.compiled.clone();
        }
        let compiled = Arc::default();
        variants.push(Variant { constants: kernel.constants.to_vec(), pattern, compiled: Arc::clone(&compiled) });
        compiled
    }
}

/// What of a kernel is checked while it runs: whether an index is inside its array, whether a loop ends.
pub(crate) type Checks = wgpu::ShaderRuntimeChecks;

/// Layout, module and pipeline; an error of any of them names the kernel.
#[expect(unsafe_code, reason = "some kernels do without checks")]
fn compile(device: &Wgpu, kernel: &Kernel<'_>, pattern: Pattern, checks: Checks) -> Result<Compiled> {
    let (title, raw) = (kernel.title(), device.raw());
    // A lost device would fail in ways that say less.
    device.faults().check(&title)?;
    device.faults().scoped(raw, &format!("compiling {title}"), || {
        let bindings = raw.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&title),
            entries: &layout(pattern),
        });
        let layout = raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&title),
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 0,
        });
        let text = wgpu::ShaderModuleDescriptor {
            label: Some(&title),
            source: wgpu::ShaderSource::Wgsl(kernel.text().into()),
        };
        // SAFETY: whoever asks for fewer checks than all vouches for the kernel (`launch_unchecked`).
        let module = unsafe { raw.create_shader_module_trusted(text, checks) };
        let pipeline = raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&title),
            layout: Some(&layout),
            module: &module,
            entry_point: Some(kernel.entry),
            // Kernels write what they share before they read it.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: None,
        });
        Compiled { pipeline, bindings }
    })
}

/// The parameters, then the arrays.
fn layout(pattern: Pattern) -> Vec<wgpu::BindGroupLayoutEntry> {
    let entry = |binding: u32, ty, has_dynamic_offset| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
        count: None,
    };
    // The leading one of the pattern says how many arrays there are.
    let arrays = (0..pattern.ilog2()).map(|i| {
        let read_only = pattern >> i & 1 == 0;
        entry(i + 1, wgpu::BufferBindingType::Storage { read_only }, false)
    });
    std::iter::once(entry(0, wgpu::BufferBindingType::Uniform, true)).chain(arrays).collect()
}

/// Rounds that all loops of an invocation make together, at most. Old versions of Mesa's llvmpipe end every loop of an
/// invocation after as many without a word, so long work is cut into parts, or refused there ([`Wgpu::check_rounds`]).
pub(crate) const ROUNDS: usize = 65_535;

/// Most workgroups of a dimension, everywhere.
pub(crate) const DIMENSION: usize = 65_535;

/// Workgroups as the device counts them: where there are too many along the first dimension, they go on in the second, if
/// nobody else uses it (`group_index` in the kernels).
fn folded(groups: (usize, usize, usize)) -> Option<[u32; 3]> {
    let (x, y, z) = match groups {
        (x, 1, z) if x > DIMENSION => (DIMENSION, x.div_ceil(DIMENSION), z),
        other => other,
    };
    let fits = [x, y, z].iter().all(|&n| n <= DIMENSION);
    fits.then_some([x as u32, y as u32, z as u32])
}

impl Wgpu {
    /// Queues a kernel on so many workgroups. `parameters` is the structure that the kernel has as a uniform at binding 0.
    pub(crate) fn launch<P: Parameters>(
        &self,
        kernel: &Kernel<'_>,
        groups: (usize, usize, usize),
        parameters: &P,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        debug_assert!(kernel.source.parts.contains(&P::WGSL), "{} takes other parameters", kernel.title());
        self.start(kernel, groups, bytemuck::bytes_of(parameters), bindings, Checks::checked())
    }

    /// Refuses work of so many rounds an invocation that this driver would not do all of it.
    pub(crate) fn check_rounds(&self, what: &'static str, rounds: usize) -> Result<()> {
        if rounds <= ROUNDS || !self.adapter().ends_loops {
            return Ok(());
        }
        let driver = &self.adapter().driver;
        let why = format!(
            "{rounds} rounds of loops, and {driver} ends them after {ROUNDS}; make the call shorter, or use another device"
        );
        Err(unsupported(what, why))
    }

    /// As [`Wgpu::launch`], and nothing is checked while the kernel runs: a compiler may unroll its loops then, and keep what
    /// they index in registers. Software would only compile longer for it, so loops stay bounded there. A kernel is either
    /// always started so, or never.
    ///
    /// # Safety
    /// Every index of the kernel is inside its array, every loop of it ends, and it divides by nothing that is zero.
    #[expect(unsafe_code, reason = "the kernel is trusted")]
    pub(crate) unsafe fn launch_unchecked<P: Parameters>(
        &self,
        kernel: &Kernel<'_>,
        groups: (usize, usize, usize),
        parameters: &P,
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        debug_assert!(kernel.source.parts.contains(&P::WGSL), "{} takes other parameters", kernel.title());
        let checks = Checks { force_loop_bounding: self.adapter().kind == "CPU", ..Checks::unchecked() };
        self.start(kernel, groups, bytemuck::bytes_of(parameters), bindings, checks)
    }

    /// Refusals come before anything is queued: a batch holds other calls' work too.
    pub(crate) fn start(
        &self,
        kernel: &Kernel<'_>,
        groups: (usize, usize, usize),
        parameters: &[u8],
        bindings: &[Binding<'_>],
        checks: Checks,
    ) -> Result<()> {
        let Some(groups) = folded(groups) else {
            let why =
                format!("{} wants {groups:?} workgroups; make the batch or the sequences smaller", kernel.title());
            return Err(unsupported("a call of this size", why));
        };
        // Nothing to do is no error.
        if groups.contains(&0) {
            return Ok(());
        }
        self.check_launch(kernel, parameters.len(), bindings)?;
        tracing::trace!(kernel = kernel.entry, file = kernel.source.name, ?groups, "launch");
        // Built from the last binding on, so that the first ends in the lowest bit.
        let pattern = bindings.iter().rev().fold(1, |bits, binding| bits << 1 | Pattern::from(binding.written()));
        let compiled = self.pipelines().get(self, kernel, pattern, checks)?;
        let bindings = self.bind(kernel.entry, &compiled.bindings, bindings);
        let dispatch = Dispatch { pipeline: &compiled.pipeline, bindings: &bindings, groups };
        // A full batch is submitted at once.
        if self.queue().dispatch(&dispatch, parameters) {
            self.queue().submit("submitting kernels", |_| {})?;
        }
        Ok(())
    }

    /// The parameters' window and the arrays, bound.
    fn bind(&self, label: &str, layout: &wgpu::BindGroupLayout, bindings: &[Binding<'_>]) -> wgpu::BindGroup {
        let arrays = bindings.iter().map(|binding| (binding.memory(), binding.bytes()));
        self.bind_groups().get(layout, arrays, || {
            let parameters = wgpu::BindingResource::Buffer(self.queue().parameters());
            let resources = std::iter::once(parameters).chain(bindings.iter().map(|binding| binding.resource()));
            let entry = |(binding, resource)| wgpu::BindGroupEntry { binding, resource };
            let entries: Vec<_> = (0..).zip(resources).map(entry).collect();
            // Its errors come with the submission's: a scope a dispatch would cost as much as the dispatch.
            self.raw().create_bind_group(&wgpu::BindGroupDescriptor { label: Some(label), layout, entries: &entries })
        })
    }

    /// Refuses what would only fail at the submission, and then for all that is in it.
    fn check_launch(&self, kernel: &Kernel<'_>, parameters: usize, bindings: &[Binding<'_>]) -> Result<()> {
        let refuse = |why: String| Err(failed(format!("starting {}", kernel.title()), why));
        if parameters > PARAMETERS_OF_ONE {
            return refuse(format!("{parameters} bytes of parameters, {PARAMETERS_OF_ONE} at most"));
        }
        let most = self.limits().max_storage_buffers_per_shader_stage as usize;
        if bindings.len() > most {
            return refuse(format!("{} arrays, this adapter takes {most}", bindings.len()));
        }
        // WebGPU refuses a buffer that is written under one name and used under another.
        let shared = |i: usize, binding: &Binding<'_>| {
            binding.written()
                && bindings.iter().enumerate().any(|(j, other)| j != i && other.memory() == binding.memory())
        };
        match bindings.iter().enumerate().find(|(i, binding)| shared(*i, binding)) {
            None => Ok(()),
            Some((i, binding)) => {
                refuse(format!("array {} ({:?}) is written and is another too", i + 1, binding.tensor()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn many_workgroups_go_on_in_the_second_dimension() {
        assert_eq!(folded((65_535, 1, 2)), Some([65_535, 1, 2]));
        assert_eq!(folded((65_536, 1, 2)), Some([65_535, 2, 2]));
        assert_eq!(folded((3 * 65_535 + 1, 1, 1)), Some([65_535, 4, 1]));
        assert_eq!(folded((65_536, 2, 1)), None);
        assert_eq!(folded((1, 1, 65_536)), None);
        assert_eq!(folded((5, 0, 1)), Some([5, 0, 1]));
    }
}
