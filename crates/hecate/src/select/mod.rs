//! Which device: a pure function of what was found.
//!
//! Nothing here looks at the machine, and nothing is remembered: the same list and the same wish give the same device.

#[cfg(test)]
mod tests;

use crate::devices::{
    BackendKind, DeviceInfo, DeviceName, Devices, OLDEST_CAPABILITY, OLDEST_DRIVER, Properties, not_built_in,
};
use hecate_core::{Algorithm, Error, Result};
use std::{cmp::Reverse, fmt, str::FromStr};

/// Elements of `q`, `k` and `v` together under which [`Choose::BestFor`] stays on the processor.
///
/// A call costs a GPU some ten launches of five microseconds, whatever its size; one core does a token of a head of
/// 64 × 64 in about two. The two meet near 25 tokens of one head, 192 elements each.
pub const FEW_ELEMENTS: usize = 1 << 13;

/// What is wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choose {
    /// The fastest kind of device there is: a CUDA GPU, then a GPU of WebGPU, then the processor.
    Best,
    /// As [`Choose::Best`], for calls whose `q`, `k` and `v` have so many elements: small ones stay on the processor.
    BestFor {
        /// Elements of `q`, `k` and `v` of one call together.
        elements: usize,
    },
    /// The equations as they stand: token by token on the processor, without vector instructions. No GPU is touched.
    Reference,
    /// A backend (`cuda`), a device by number (`cuda:1`), or the first with this in its name (`wgpu:radeon`).
    Named(String),
}

/// `best`, `reference`, or a device's name.
impl FromStr for Choose {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "best" => Ok(Self::Best),
            "reference" => Ok(Self::Reference),
            _ => Name::parse(text).map(|_| Self::Named(text.to_owned())),
        }
    }
}

impl fmt::Display for Choose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("best"),
            Self::BestFor { elements } => write!(f, "best for {elements} elements"),
            Self::Reference => f.write_str("reference"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

impl Choose {
    /// The backends whose devices matter to the choice: looking at others would only take time.
    ///
    /// # Errors
    /// As [`select`], for a name that no backend has.
    pub fn backends(&self) -> Result<Vec<BackendKind>> {
        match self {
            Self::Best | Self::BestFor { .. } => Ok(BackendKind::ALL.to_vec()),
            Self::Reference => Ok(vec![BackendKind::Cpu]),
            Self::Named(name) => Ok(vec![Name::parse(name)?.backend]),
        }
    }
}

/// The device that was chosen, and why it is no GPU where it is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selected {
    /// Which device.
    pub id: DeviceName,
    /// Its name.
    pub name: String,
    /// Whether the processor computes the equations as they stand ([`Choose::Reference`]).
    pub reference: bool,
    /// Threads of the processor; 0 for one each.
    pub threads: usize,
    /// How linear rules are computed. A form that the device does not have is an error of [`Selected::run`].
    pub algorithm: Algorithm,
    /// Why the best device is not a GPU; none where it is, or where no GPU was wished for.
    pub fallback: Option<String>,
}

impl Selected {
    /// The device as it comes: all threads, the fastest algorithm, no fallback.
    fn new(device: &DeviceInfo) -> Self {
        Self {
            id: device.id,
            name: device.name.clone(),
            reference: false,
            threads: 0,
            algorithm: Algorithm::Auto,
            fallback: None,
        }
    }

    /// The same device, with so many threads where it is the processor; 0 for one each.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// The same device, with linear rules computed this way.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }
}

/// Chooses among what was found.
///
#[cfg_attr(feature = "cpu", doc = "```")]
#[cfg_attr(not(feature = "cpu"), doc = "```ignore")]
/// use hecate::{Choose, devices, select};
/// let found = devices();
/// let selected = select(&found, &Choose::Best)?;
/// println!("{selected:?}");
/// # Ok::<(), hecate::Error>(())
/// ```
///
/// # Errors
/// [`Error::Config`] for a name that means no device of any backend; [`Error::Unsupported`] where the device is not
/// there, with the reason.
pub fn select(found: &Devices, choose: &Choose) -> Result<Selected> {
    match choose {
        Choose::Best => best(found),
        Choose::BestFor { elements } if *elements < FEW_ELEMENTS => match found.default_of(BackendKind::Cpu) {
            Some(cpu) => Ok(Selected::new(cpu)),
            None => best(found),
        },
        Choose::BestFor { .. } => best(found),
        Choose::Reference => {
            let cpu = found.default_of(BackendKind::Cpu).ok_or_else(|| missing(found, BackendKind::Cpu, ""))?;
            Ok(Selected { reference: true, ..Selected::new(cpu) })
        }
        Choose::Named(name) => named(found, &Name::parse(name)?),
    }
}

/// CUDA before WebGPU before the processor; software that plays a GPU is never taken.
fn best(found: &Devices) -> Result<Selected> {
    let gpu = best_cuda(found).or_else(|| best_adapter(found));
    if let Some(gpu) = gpu {
        return Ok(Selected::new(gpu));
    }
    let Some(cpu) = found.default_of(BackendKind::Cpu) else {
        let why = format!("{}; cpu: {}", no_gpu(found), why_not(found, BackendKind::Cpu));
        return Err(Error::Unsupported { backend: "hecate", what: "any device", why });
    };
    Ok(Selected { fallback: Some(no_gpu(found)), ..Selected::new(cpu) })
}

/// The GPU with the most multiprocessors, then the most memory, then the lowest number.
fn best_cuda(found: &Devices) -> Option<&DeviceInfo> {
    let rank = |device: &&DeviceInfo| match device.properties {
        Properties::Cuda { multiprocessors, memory, .. } => (multiprocessors, memory, Reverse(device.id.number)),
        _ => (0, 0, Reverse(device.id.number)),
    };
    found.of(BackendKind::Cuda).filter(|device| refusal(device).is_none()).max_by_key(rank)
}

/// The adapter that WebGPU itself would take where the kernels fit it; else the first of the fastest kind they fit.
fn best_adapter(found: &Devices) -> Option<&DeviceInfo> {
    let fits = |device: &&DeviceInfo| !matches!(device.properties, Properties::Wgpu { too_small: Some(_), .. });
    let adapter = found.default_of(BackendKind::Wgpu).filter(fits).or_else(|| {
        let rank = |device: &&DeviceInfo| (adapter_rank(device), device.id.number);
        found.of(BackendKind::Wgpu).filter(fits).min_by_key(rank)
    });
    adapter.filter(|device| refusal(device).is_none())
}

/// Kinds of GPU, fastest first; `GPUS.len()` for what is none.
fn adapter_rank(device: &DeviceInfo) -> usize {
    const GPUS: [&str; 3] = ["discrete GPU", "integrated GPU", "virtual GPU"];
    match &device.properties {
        Properties::Wgpu { kind, .. } => GPUS.iter().position(|known| known == kind).unwrap_or(GPUS.len()),
        _ => GPUS.len(),
    }
}

/// Why [`Choose::Best`] passes a device over.
fn refusal(device: &DeviceInfo) -> Option<String> {
    match &device.properties {
        Properties::Cpu { .. } => None,
        Properties::Cuda { driver, .. } if *driver < OLDEST_DRIVER => {
            let [found, least] = [*driver, OLDEST_DRIVER].map(version);
            Some(format!("its driver speaks CUDA {found}, {least} is needed: update the driver"))
        }
        Properties::Cuda { capability: (major, minor), .. } if (*major, *minor) < OLDEST_CAPABILITY => {
            let (least, and) = OLDEST_CAPABILITY;
            Some(format!("its compute capability is {major}.{minor}, kernels are made for {least}.{and} and later"))
        }
        Properties::Cuda { .. } => None,
        Properties::Wgpu { too_small: Some(why), .. } => Some(why.clone()),
        Properties::Wgpu { kind, .. } => match *kind {
            "discrete GPU" | "integrated GPU" | "virtual GPU" => None,
            "CPU" => Some("it computes on the processor, which the cpu backend does faster".to_owned()),
            kind => Some(format!("it is of an unknown kind (`{kind}`); name it to use it")),
        },
    }
}

/// `12_040` as `12.4`.
fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Everything that speaks against a GPU here.
fn no_gpu(found: &Devices) -> String {
    let gpus = [BackendKind::Cuda, BackendKind::Wgpu];
    let refused = gpus.iter().flat_map(|&backend| found.of(backend)).filter_map(|device| {
        let why = refusal(device)?;
        Some(format!("{} ({}): {why}", device.id, device.name))
    });
    let absent = found.absent.iter().filter(|absent| gpus.contains(&absent.backend));
    let absent = absent.map(|absent| format!("{}: {}", absent.backend, absent.why));
    let all: Vec<String> = refused.chain(absent).collect();
    if all.is_empty() { "no GPU was looked for".to_owned() } else { all.join("; ") }
}

/// The device of this name.
fn named(found: &Devices, name: &Name<'_>) -> Result<Selected> {
    let device = match name.which {
        Which::Default => found.default_of(name.backend),
        Which::Number(number) => found.of(name.backend).find(|device| device.id.number == number),
        Which::Part(part) => {
            let part = part.to_lowercase();
            found.of(name.backend).find(|device| device.name.to_lowercase().contains(&part))
        }
    };
    device.map(Selected::new).ok_or_else(|| missing(found, name.backend, name.text))
}

/// The error for a device that is not there.
fn missing(found: &Devices, backend: BackendKind, name: &str) -> Error {
    let asked = if name.is_empty() { String::new() } else { format!("`{name}` was asked for; ") };
    let why = format!("{asked}{}", why_not(found, backend));
    Error::Unsupported { backend: backend.name(), what: "this device", why }
}

/// Why a backend has no such device: the reason that was found, or what it has instead.
fn why_not(found: &Devices, backend: BackendKind) -> String {
    let list: Vec<_> = found.of(backend).map(|device| format!("{} ({})", device.id, device.name)).collect();
    match found.why_absent(backend) {
        Some(why) => why.to_owned(),
        None if !list.is_empty() => format!("there is {}", list.join(", ")),
        None if !backend.is_built_in() => not_built_in(backend),
        None => "none was looked for".to_owned(),
    }
}

/// A device's name, taken apart.
struct Name<'a> {
    text: &'a str,
    backend: BackendKind,
    which: Which<'a>,
}

/// One of several devices.
enum Which<'a> {
    /// The one that the backend takes by itself.
    Default,
    /// The place in the backend's list, from 0.
    Number(usize),
    /// The first with this in its name, whatever the case of its letters.
    Part(&'a str),
}

impl<'a> Name<'a> {
    /// The backend before the colon, and the number or part of a name after it.
    fn parse(text: &'a str) -> Result<Self> {
        let (name, which) = text.split_once(':').map_or((text, None), |(name, which)| (name, Some(which)));
        let backend = BackendKind::ALL.into_iter().find(|backend| backend.name() == name);
        let refuse = || Error::Config {
            what: "select",
            option: "device",
            found: format!("`{text}`"),
            expected: "best, reference, cpu, cuda or wgpu, the last two with a number (`cuda:0`) or a part of a name",
        };
        let which = match (backend.ok_or_else(refuse)?, which) {
            (_, None) => Which::Default,
            (BackendKind::Cpu, Some(_)) | (_, Some("")) => return Err(refuse()),
            (_, Some(which)) => which.parse().map_or(Which::Part(which), Which::Number),
        };
        Ok(Self { text, backend: backend.ok_or_else(refuse)?, which })
    }
}
