//! From `--device` to a backend.

use crate::{error::Result, features::install};
use clap::Args;
use hecate::{Algorithm, BackendKind, Choose, Job, devices_of, select};
#[cfg(feature = "check")]
use std::thread;

/// Where to compute.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device")]
pub(crate) struct Choice {
    /// Where to compute: `best`, or a device, such as `cuda:1`
    ///
    /// `cuda:1` is the second GPU, `wgpu:1` the second adapter, `wgpu:radeon` one by its name. `reference` computes on the CPU
    /// token by token, without vector instructions. `hecate devices` lists what there is.
    #[arg(long, default_value = default_device(), value_parser = parse, value_name = "DEVICE")]
    device: Choose,
    /// Threads on the CPU; 0 for one a processor
    ///
    /// Results do not depend on it.
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
    /// How linear rules are computed
    ///
    /// `auto`, `scan` (token by token), `chunk` or `chunk:N` (products over N tokens). Results differ by rounding alone.
    #[arg(long, hide_short_help = true, default_value_t = Algorithm::Auto)]
    algorithm: Algorithm,
}

/// The first device of this build.
impl Default for Choice {
    fn default() -> Self {
        let device = parse(default_device()).unwrap_or(Choose::Best);
        Self { device, threads: 0, algorithm: Algorithm::Auto }
    }
}

impl Choice {
    /// The same device as each of `jobs` sees it that run at once: on the CPU with its part of the threads, at least one.
    #[cfg(feature = "check")]
    pub(crate) fn shared_by(&self, jobs: usize) -> Self {
        if jobs <= 1 {
            return self.clone();
        }
        let all = match self.threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        // A job is never without a thread, even where there are more jobs than processors.
        Self { threads: (all / jobs).max(1), ..self.clone() }
    }
}

/// Backends of this build.
fn built_in() -> impl Iterator<Item = BackendKind> {
    BackendKind::ALL.into_iter().filter(|backend| backend.is_built_in())
}

/// The first backend of this build: the processor where it is there.
fn default_device() -> &'static str {
    built_in().next().map_or("best", BackendKind::name)
}

fn parse(text: &str) -> std::result::Result<Choose, String> {
    let choose: Choose = text.parse().map_err(|error: hecate::Error| error.to_string())?;
    let backends = choose.backends().map_err(|error| error.to_string())?;
    if backends.iter().any(|backend| backend.is_built_in()) {
        return Ok(choose);
    }
    Err(not_built_in(text, &backends))
}

/// Why a device of these backends is refused; a backend's feature has its name.
fn not_built_in(text: &str, backends: &[BackendKind]) -> String {
    let has: Vec<_> = built_in().map(BackendKind::name).collect();
    let lacks: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
    format!("no `{text}` in this build, which has {}; build it again: {}", has.join(", "), install(&lacks))
}

/// Does the job on the chosen device.
pub(crate) fn with_device<T>(choice: &Choice, job: impl Job<Output = Result<T>>) -> Result<T> {
    // A named backend is the only one that is looked at: waking others takes time.
    let found = devices_of(&choice.device.backends()?);
    select(&found, &choice.device)?.with_threads(choice.threads).with_algorithm(choice.algorithm).run(job)?
}

#[cfg(all(test, feature = "check"))]
mod tests {
    use super::*;
    use clap::Parser;

    /// The flags by themselves.
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        choice: Choice,
    }

    #[test]
    fn missing_backends_are_told_by_their_feature() {
        let told = not_built_in("cuda:1", &[BackendKind::Cuda]);
        assert!(told.starts_with("no `cuda:1` in this build, which has "), "{told}");
        assert!(told.ends_with(&format!("build it again: {}", install(&["cuda"]))), "{told}");
        // Whatever this build has is taken, and what it lacks is refused so.
        for backend in BackendKind::ALL {
            let expected = if backend.is_built_in() { None } else { Some(not_built_in(backend.name(), &[backend])) };
            assert_eq!(parse(backend.name()).err(), expected);
        }
    }

    #[test]
    fn jobs_share_the_threads() {
        let shared = |threads: &str, jobs| {
            let flags = Flags::parse_from(["hecate", "--threads", threads]);
            flags.choice.shared_by(jobs).threads
        };
        assert_eq!([shared("8", 1), shared("8", 2), shared("8", 3), shared("2", 5)], [8, 4, 2, 1]);
        // One job has all that there are, which is what 0 stands for.
        assert_eq!(shared("0", 1), 0);
        assert!(shared("0", 2) >= 1);
    }
}
