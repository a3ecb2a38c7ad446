//! From a chosen device to a value that computes.

#[cfg(any(feature = "cpu", feature = "cuda", feature = "wgpu"))]
use crate::devices::BackendKind;
use crate::{devices::not_built_in, select::Selected};
#[cfg(any(feature = "cpu", feature = "cuda"))]
use hecate_core::Algorithm;
use hecate_core::{Backend, Error, Result};

/// Work that any backend can do: the way from a device that is known at run time into code generic over [`Backend`].
///
#[cfg_attr(feature = "cpu", doc = "```")]
#[cfg_attr(not(feature = "cpu"), doc = "```ignore")]
/// use hecate::{Backend, Choose, Job, devices, select};
///
/// struct Name;
/// impl Job for Name {
///     type Output = &'static str;
///     fn run<B: Backend>(self, _device: &B) -> Self::Output {
///         B::NAME
///     }
/// }
///
/// let selected = select(&devices(), &Choose::Reference)?;
/// assert_eq!(selected.run(Name)?, "cpu");
/// # Ok::<(), hecate::Error>(())
/// ```
pub trait Job {
    /// What it gives.
    type Output;

    /// Does the work on this device.
    fn run<B: Backend>(self, device: &B) -> Self::Output;
}

impl Selected {
    /// Opens the device and does the work there. A `tracing` warning says so where the best device is no GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a backend that this build does not have, and for a form of the linear rules that the
    /// device does not have; the device's own where it cannot be opened.
    pub fn run<J: Job>(&self, job: J) -> Result<J::Output> {
        if let Some(why) = &self.fallback {
            tracing::warn!(device = %self.id, "no GPU is used: {why}");
        }
        match self.id.backend {
            #[cfg(feature = "cpu")]
            BackendKind::Cpu => Ok(job.run(&self.cpu()?)),
            #[cfg(feature = "cuda")]
            BackendKind::Cuda => {
                let gpu = hecate_cuda::Cuda::new(self.id.number)?;
                // An algorithm that is not forced leaves the choice to each call.
                Ok(job.run(&if self.algorithm == Algorithm::Auto { gpu } else { gpu.with_algorithm(self.algorithm)? }))
            }
            #[cfg(feature = "wgpu")]
            BackendKind::Wgpu => {
                let selection = hecate_wgpu::Selection::Index(self.id.number);
                Ok(job.run(&hecate_wgpu::Wgpu::new(&selection)?.with_algorithm(self.algorithm)?))
            }
            #[allow(unreachable_patterns, reason = "with all backends built in nothing is left")]
            missing => {
                drop(job);
                let why = not_built_in(missing);
                Err(Error::Unsupported { backend: missing.name(), what: "this device", why })
            }
        }
    }

    /// The processor, or the reference on it.
    #[cfg(feature = "cpu")]
    fn cpu(&self) -> Result<hecate_cpu::Cpu> {
        use hecate_cpu::Cpu;
        match self.threads {
            threads if self.reference => match self.algorithm.check()? {
                Algorithm::Auto | Algorithm::Scan => Cpu::reference(threads),
                Algorithm::Chunk(_) => {
                    let why = "it goes token by token; take `auto` or `scan`, or the device `cpu`".to_owned();
                    Err(Error::Unsupported { backend: "the reference", what: "linear rules in chunks", why })
                }
            },
            0 => Cpu::new().with_algorithm(self.algorithm),
            threads => Cpu::with_threads(threads)?.with_algorithm(self.algorithm),
        }
    }
}
