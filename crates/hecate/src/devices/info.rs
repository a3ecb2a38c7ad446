//! What is known of a device before it is opened.

use std::fmt;

/// The oldest driver that the CUDA backend works with, as `1000 major + 10 minor`: CUDA 12.0.
pub const OLDEST_DRIVER: u32 = 12_000;

/// The least compute capability that [`Choose::Best`](crate::Choose::Best) takes: kernels for it need nothing but the driver.
pub const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

/// A backend, whether or not this build has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendKind {
    /// The processor.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// GPUs over Vulkan, Metal or Direct3D 12, and Vulkan in software.
    Wgpu,
}

impl BackendKind {
    /// Every backend there is a crate of.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Cuda, Self::Wgpu];

    /// Its name in `cuda:1`, which is the name of the feature too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// Whether this build has it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::Cpu => cfg!(feature = "cpu"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Wgpu => cfg!(feature = "wgpu"),
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a device is called before it is opened: a backend and a number there. Prints as `cpu`, `cuda:0`, `wgpu:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// The backend.
    pub backend: BackendKind,
    /// The device's number among those of its backend, from 0.
    pub number: usize,
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend {
            BackendKind::Cpu => f.write_str("cpu"),
            backend => write!(f, "{backend}:{}", self.number),
        }
    }
}

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which one it is.
    pub id: DeviceName,
    /// The driver's name for it.
    pub name: String,
    /// Whether it is meant where a backend is named without a number.
    pub is_default: bool,
    /// What it is like.
    pub properties: Properties,
}

/// What a device is like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Properties {
    /// The processor.
    Cpu {
        /// Threads that run at once.
        threads: usize,
        /// The widest vector instructions that kernels use.
        vectors: &'static str,
    },
    /// An NVIDIA GPU.
    Cuda {
        /// Compute capability, major and minor.
        capability: (u32, u32),
        /// Streaming multiprocessors.
        multiprocessors: u32,
        /// Bytes of memory.
        memory: usize,
        /// Version of CUDA that the driver speaks, as `1000 major + 10 minor`.
        driver: u32,
    },
    /// An adapter of WebGPU.
    Wgpu {
        /// What it is: `discrete GPU`, `integrated GPU`, `virtual GPU`, `CPU`, `other`.
        kind: &'static str,
        /// The interface it is reached through: `vulkan`, `metal`, `dx12`.
        interface: String,
        /// The driver and its version.
        driver: String,
        /// Most bytes of one array.
        largest_array: u64,
        /// Why the kernels do not fit it; none where they do.
        too_small: Option<String>,
    },
}

/// A backend, or some of its devices, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The backend.
    pub backend: BackendKind,
    /// What is missing, and the way out.
    pub why: String,
}

/// What was looked for on this machine: what is there, and why the rest is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Devices, by backend and number.
    pub found: Vec<DeviceInfo>,
    /// What is not there.
    pub absent: Vec<Absent>,
}

impl Devices {
    /// The device of this backend that is meant where no number is given.
    pub fn default_of(&self, backend: BackendKind) -> Option<&DeviceInfo> {
        self.of(backend).find(|device| device.is_default)
    }

    /// The devices of one backend, by number.
    pub fn of(&self, backend: BackendKind) -> impl Iterator<Item = &DeviceInfo> {
        self.found.iter().filter(move |device| device.id.backend == backend)
    }

    /// Why a backend cannot be used; none where nothing was said of it.
    pub fn why_absent(&self, backend: BackendKind) -> Option<&str> {
        self.absent.iter().find(|absent| absent.backend == backend).map(|absent| absent.why.as_str())
    }
}

/// Why a backend that this build does not have cannot be used.
pub(crate) fn not_built_in(backend: BackendKind) -> String {
    format!("this build does not have it; build with the feature `{backend}`")
}
