//! Which adapter: a GPU that one of its drivers reaches, or a driver that computes on the CPU.
//!
//! Adapters are numbered as the drivers list them. The order may change with a driver, so scripts had better name a
//! part of the name.

use crate::error::{no_device, unsupported};
use hecate_core::Result;
use std::fmt;

/// How an adapter is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// What `HECATE_WGPU_ADAPTER` says, a number or a part of a name; the fastest kind there is where it is not set.
    #[default]
    Default,
    /// The adapter with this number in [`Wgpu::adapters`](crate::Wgpu::adapters).
    Index(usize),
    /// The first adapter with this in its name, whatever the case of its letters.
    Name(String),
    /// A GPU of its own before one in the processor, and any GPU before a driver on the CPU.
    HighPerformance,
    /// A GPU in the processor before one of its own, and any GPU before a driver on the CPU.
    LowPower,
}

/// What an adapter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The driver's name for it.
    pub name: String,
    /// The interface it is reached through: `vulkan`, `metal`, `dx12`.
    pub interface: String,
    /// What it is: `discrete GPU`, `integrated GPU`, `virtual GPU`, `CPU`, `other`.
    pub kind: &'static str,
    /// The driver and its version.
    pub driver: String,
    /// Most bytes of one array.
    pub largest_array: u64,
    /// Bytes of memory that invocations of a workgroup can share.
    pub workgroup_storage: u32,
    /// Most invocations of a workgroup.
    pub workgroup_invocations: u32,
    /// Arrays that a kernel can take.
    pub storage_buffers: u32,
    /// Whether it has 16-bit floats of its own.
    pub f16: bool,
    /// Whether the invocations of a subgroup can add up without a barrier.
    pub subgroups: bool,
    /// Fewest invocations of a subgroup.
    pub smallest_subgroup: usize,
    /// Matrices that its subgroups multiply; [`Wgpu::cooperative`](crate::Wgpu::cooperative) makes use of them.
    pub cooperative_matrices: Option<CooperativeMatrices>,
    /// Whether its driver ends the loops of an invocation, without a word, after 65,535 rounds. Mesa's llvmpipe of version 22
    /// was seen to, that of version 25 not. Calls that would take more are refused there.
    pub ends_loops: bool,
    /// Why the kernels do not fit it; none where they do.
    pub too_small: Option<String>,
}

/// Square matrices of f16 that a subgroup holds and multiplies at once, with sums in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CooperativeMatrices {
    /// Rows, columns and terms of one matrix: 16 or 8.
    pub side: u32,
    /// Invocations of a subgroup, which are always as many.
    pub lanes: u32,
}

impl CooperativeMatrices {
    /// The largest that are reported, where f16 and subgroups of one size are there too.
    fn of(adapter: &wgpu::Adapter) -> Option<Self> {
        let info = adapter.get_info();
        let lanes = info.subgroup_max_size;
        // Four subgroups are a workgroup. Where they have fewer than 8 lanes, Mesa 26.1 reports matrices that it cannot open.
        let fits = adapter.features().contains(COOPERATIVE | OPTIONAL)
            && info.subgroup_min_size == lanes
            && (8..=64).contains(&lanes);
        let found = adapter.cooperative_matrix_properties();
        let reported = |side: u32| {
            found.iter().any(|found| {
                [found.m_size, found.n_size, found.k_size] == [side; 3]
                    && found.ab_type == wgpu::CooperativeScalarType::F16
                    && found.cr_type == wgpu::CooperativeScalarType::F32
            })
        };
        let side = [16, 8].into_iter().find(|&side| fits && reported(side))?;
        Some(Self { side, lanes })
    }
}

/// Asked for where somebody wants it: wgpu calls it experimental.
pub(crate) const COOPERATIVE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;

/// What is asked of an adapter that has it; kernels do without elsewhere.
pub(crate) const OPTIONAL: wgpu::Features = wgpu::Features::SHADER_F16.union(wgpu::Features::SUBGROUP);

impl Adapter {
    /// Reads limits and features once; the adapter itself is opened later.
    fn new(adapter: &wgpu::Adapter) -> Self {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let driver = format!("{} {}", info.driver, info.driver_info).trim().to_owned();
        Self {
            too_small: too_small(&info.name, &limits),
            ends_loops: ends_loops(&driver),
            name: info.name,
            interface: info.backend.to_string(),
            kind: kind(info.device_type),
            driver,
            largest_array: largest(&limits),
            workgroup_storage: limits.max_compute_workgroup_storage_size,
            workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            f16: features.contains(wgpu::Features::SHADER_F16),
            subgroups: features.contains(wgpu::Features::SUBGROUP),
            smallest_subgroup: info.subgroup_min_size as usize,
            cooperative_matrices: CooperativeMatrices::of(adapter),
        }
    }

    /// Whether its arrays lie in the machine's own memory.
    pub(crate) fn shares_memory(&self) -> bool {
        [wgpu::DeviceType::IntegratedGpu, wgpu::DeviceType::Cpu].map(kind).contains(&self.kind)
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {}, arrays of up to {} MiB)", self.name, self.interface, self.kind, self.largest_array >> 20)
    }
}

/// Most bytes of an array that a kernel can take.
pub(crate) fn largest(limits: &wgpu::Limits) -> u64 {
    // Rounded down to whole words.
    limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) & !3
}

/// Whether `HECATE_WGPU_COOPERATIVE` asks for cooperative matrices, and the adapter has them.
pub(crate) fn wants_cooperative(adapter: &Adapter) -> bool {
    let wanted = std::env::var("HECATE_WGPU_COOPERATIVE").is_ok_and(|value| value.trim() == "on");
    if wanted && adapter.cooperative_matrices.is_none() {
        tracing::warn!(adapter = adapter.name, "HECATE_WGPU_COOPERATIVE is on, and there are no such matrices here");
    }
    wanted && adapter.cooperative_matrices.is_some()
}

/// Names as messages and [`first_of`] have them.
fn kind(kind: wgpu::DeviceType) -> &'static str {
    match kind {
        wgpu::DeviceType::DiscreteGpu => "discrete GPU",
        wgpu::DeviceType::IntegratedGpu => "integrated GPU",
        wgpu::DeviceType::VirtualGpu => "virtual GPU",
        wgpu::DeviceType::Cpu => "CPU",
        wgpu::DeviceType::Other => "other",
    }
}

/// All adapters and what they are, in the drivers' order.
fn found() -> Vec<(wgpu::Adapter, Adapter)> {
    // WGPU_BACKEND and its kin hold here too.
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    adapters
        .into_iter()
        .map(|adapter| (Adapter::new(&adapter), adapter))
        .map(|(what, adapter)| (adapter, what))
        .collect()
}

/// All adapters, in the order of their numbers.
pub(crate) fn list() -> Vec<Adapter> {
    found().into_iter().map(|(_, adapter)| adapter).collect()
}

/// The adapter that is asked for, large enough for the kernels.
pub(crate) fn choose(selection: &Selection) -> Result<(wgpu::Adapter, Adapter)> {
    let mut found = found();
    let adapters: Vec<&Adapter> = found.iter().map(|(_, adapter)| adapter).collect();
    let number = number(selection, std::env::var(VARIABLE).ok().as_deref(), &adapters)?;
    let (adapter, what) = found.swap_remove(number);
    match what.too_small {
        Some(why) => Err(unsupported("this adapter", why)),
        None => Ok((adapter, what)),
    }
}

/// The number of the adapter that [`Selection::Default`] means.
pub(crate) fn default_of(adapters: &[Adapter]) -> Result<usize> {
    let adapters: Vec<&Adapter> = adapters.iter().collect();
    number(&Selection::Default, std::env::var(VARIABLE).ok().as_deref(), &adapters)
}

/// Says which adapter where the program does not.
const VARIABLE: &str = "HECATE_WGPU_ADAPTER";

/// The number of the adapter that is asked for.
fn number(selection: &Selection, variable: Option<&str>, adapters: &[&Adapter]) -> Result<usize> {
    // The message names what to install.
    if adapters.is_empty() {
        let why = "no Vulkan, Metal or Direct3D 12 driver was found; install the GPU's driver, or mesa-vulkan-drivers \
                   (lavapipe) to compute on the CPU, or use another device";
        return Err(no_device(why));
    }
    // The variable speaks only where the program leaves the choice.
    let asked = match (selection, variable.map(str::trim).filter(|value| !value.is_empty())) {
        (Selection::Default, Some(value)) => match value.parse() {
            Ok(number) => Selection::Index(number),
            // What is no number is a part of a name.
            Err(_) => Selection::Name(value.to_owned()),
        },
        (selection, _) => selection.clone(),
    };
    // Numbers and parts of names as asked; kinds in the order of preference.
    let number = match &asked {
        Selection::Index(number) => Some(*number).filter(|&number| number < adapters.len()),
        Selection::Name(part) => {
            let part = part.to_lowercase();
            adapters.iter().position(|adapter| adapter.name.to_lowercase().contains(&part))
        }
        Selection::Default | Selection::HighPerformance => {
            first_of(adapters, ["discrete GPU", "integrated GPU", "virtual GPU", "other", "CPU"])
        }
        Selection::LowPower => first_of(adapters, ["integrated GPU", "discrete GPU", "virtual GPU", "other", "CPU"]),
    };
    // The message lists all there are.
    number.ok_or_else(|| {
        let list = adapters.iter().enumerate().map(|(i, adapter)| format!("{i}: {adapter}")).collect::<Vec<_>>();
        let source = if *selection == asked { String::new() } else { format!(" ({VARIABLE})") };
        no_device(format!("{asked}{source} was asked for; there is {}", list.join("; ")))
    })
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("any"),
            Self::Index(number) => write!(f, "number {number}"),
            Self::Name(part) => write!(f, "`{part}`"),
            Self::HighPerformance => f.write_str("the fastest"),
            Self::LowPower => f.write_str("the most frugal"),
        }
    }
}

/// The first adapter of the first kind there is.
fn first_of(adapters: &[&Adapter], kinds: [&str; 5]) -> Option<usize> {
    kinds.iter().find_map(|kind| adapters.iter().position(|adapter| adapter.kind == *kind))
}

/// Whether a driver, by its name and version, ends loops early: all of Mesa's that compute on the CPU, until a version that
/// does not. One that does not say its version is taken for an old one.
fn ends_loops(driver: &str) -> bool {
    let version = driver.split_once("Mesa ").and_then(|(_, rest)| rest.split('.').next()?.parse::<u32>().ok());
    driver.contains("llvmpipe") && version.is_none_or(|version| version < WITHOUT_END)
}

/// First version of Mesa of which it is known that loops are not ended.
const WITHOUT_END: u32 = 25;

/// What of an adapter the kernels do not fit into; none where they do.
fn too_small(name: &str, limits: &wgpu::Limits) -> Option<String> {
    // What it is, what there is, what is needed.
    let needed = [
        // WebGPU's least limits; adapters under them are compatibility drivers.
        ("invocations of a workgroup", limits.max_compute_invocations_per_workgroup, 256),
        ("width of a workgroup", limits.max_compute_workgroup_size_x, 256),
        ("bytes of workgroup storage", limits.max_compute_workgroup_storage_size, 16 << 10),
        ("storage buffers of a kernel", limits.max_storage_buffers_per_shader_stage, 8),
        ("workgroups of a dimension", limits.max_compute_workgroups_per_dimension, 65_535),
    ];
    let (what, found, needed) = needed.iter().find(|(_, found, needed)| found < needed)?;
    Some(format!("{name} allows {found} {what}, the kernels need {needed}; choose another ({VARIABLE})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is large enough.
    fn adapter(name: &str, kind: &'static str) -> Adapter {
        Adapter {
            name: name.into(),
            interface: "vulkan".into(),
            kind,
            driver: "a driver".into(),
            largest_array: 128 << 20,
            workgroup_storage: 32 << 10,
            workgroup_invocations: 1024,
            storage_buffers: 8,
            f16: false,
            subgroups: false,
            smallest_subgroup: 4,
            cooperative_matrices: None,
            ends_loops: false,
            too_small: None,
        }
    }

    #[test]
    fn a_gpu_of_its_own_comes_first() {
        let (cpu, small, large) =
            (adapter("llvmpipe", "CPU"), adapter("Iris", "integrated GPU"), adapter("Radeon", "discrete GPU"));
        let all = [&cpu, &small, &large];
        let number = |selection, variable| number(&selection, variable, &all).ok();
        assert_eq!(number(Selection::Default, None), Some(2));
        assert_eq!(number(Selection::Default, Some(" 1 ")), Some(1));
        assert_eq!(number(Selection::Default, Some("LLVM")), Some(0));
        assert_eq!(number(Selection::LowPower, Some("0")), Some(1));
        assert_eq!(number(Selection::HighPerformance, Some("0")), Some(2));
        assert_eq!(number(Selection::Name("radeon".into()), None), Some(2));
        assert_eq!(number(Selection::Index(3), None), None);
    }

    #[test]
    fn old_drivers_that_compute_on_the_cpu_end_loops() {
        for driver in ["llvmpipe Mesa 22.3.6 (LLVM 15.0.6)", "llvmpipe Mesa 24.2.8", "llvmpipe"] {
            assert!(ends_loops(driver), "{driver}");
        }
        for driver in
            ["llvmpipe Mesa 25.0.7-2 (LLVM 15.0.6)", "NVIDIA 550.54", "radv Mesa 22.3.6", "SwiftShader driver"]
        {
            assert!(!ends_loops(driver), "{driver}");
        }
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let cpu = adapter("llvmpipe", "CPU");
        let error = number(&Selection::Default, Some("geforce"), &[&cpu]).expect_err("there is none").to_string();
        for part in ["`geforce` (HECATE_WGPU_ADAPTER)", "0: llvmpipe (vulkan, CPU, arrays of up to 128 MiB)"] {
            assert!(error.contains(part), "{error}");
        }
        let error = number(&Selection::Default, None, &[]).expect_err("there is none").to_string();
        for part in ["no wgpu device: ", "no Vulkan", "install the GPU's driver", "another device"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_small_adapter_is_refused_with_the_numbers() {
        assert_eq!(too_small("A", &wgpu::Limits::default()), None, "WebGPU's own limits");
        let limits = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..wgpu::Limits::default() };
        let error = too_small("A", &limits).expect("too few buffers");
        assert!(error.contains("A allows 4 storage buffers of a kernel, the kernels need 8"), "{error}");
    }
}
