//! From `--device` to a device that runs networks, or several that share one.

use crate::{
    error::{Error, Result},
    features::install,
};
use clap::Args;
use hecate::{BackendKind, Choose, devices_of, select};
use hecate_spiking::{CUDA_SYNAPSES, Cpu, DeviceKind, Network, Shards, Spiking};

/// Where networks are run.
#[derive(Args, Debug)]
#[command(next_help_heading = "Device")]
pub(super) struct Choice {
    /// Where to compute: `best`, `cpu`, or a GPU such as `cuda:1`; several with commas share the network
    ///
    /// `cuda:1` is the second GPU, `wgpu:radeon` an adapter by its name. `best` takes the CPU for networks of under a million synapses,
    /// then an NVIDIA GPU; from 16 million synapses on also another one. Spikes are the same everywhere, bit for bit.
    #[arg(long, default_value = "cpu", value_name = "DEVICE", value_delimiter = ',', value_parser = parse)]
    device: Vec<Choose>,
    /// Threads on the CPU; 0 for one a processor
    ///
    /// Results do not depend on it.
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

/// Work on a device that is known at run time.
pub(super) trait Job {
    /// What it gives.
    type Output;

    /// Does the work on this device, whose name is for messages.
    fn run<D: Spiking>(self, device: &D, name: &str) -> Result<Self::Output>;
}

/// A name that networks run on; `reference` is for memories.
fn parse(text: &str) -> std::result::Result<Choose, String> {
    match text.parse::<Choose>() {
        Ok(Choose::Reference) => Err("networks have no reference device; take `cpu`, which gives the same bits".into()),
        Ok(choose) => {
            // A name of no backend was refused while it was parsed.
            let backends = choose.backends().map_err(|error| error.to_string())?;
            // A backend's feature has its name.
            match backends.iter().find(|backend| **backend != BackendKind::Cpu && !backend.is_built_in()) {
                Some(missing) if choose != Choose::Best => {
                    let name = missing.name();
                    Err(format!("no `{name}` in this build, which has `cpu`; build it again: {}", install(&[name])))
                }
                _ => Ok(choose),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The GPU that `best` means among those of one backend, if there is one.
fn best(backend: BackendKind) -> Option<usize> {
    select(&devices_of(&[backend]), &Choose::Best).ok().map(|selected| selected.id.number)
}

/// The backend and number of a device for a network of so many synapses.
fn resolve(choose: &Choose, synapses: usize) -> Result<(BackendKind, usize)> {
    match choose {
        // Nobody wakes a GPU for a small network.
        Choose::Best if synapses < CUDA_SYNAPSES => Ok((BackendKind::Cpu, 0)),
        Choose::Best => {
            let gpus = [(DeviceKind::Cuda, BackendKind::Cuda), (DeviceKind::Wgpu, BackendKind::Wgpu)];
            // Each backend is asked for its best by itself.
            let found = gpus.map(|(kind, backend)| Some((kind, backend, best(backend)?)));
            let there: Vec<_> = found.iter().flatten().map(|gpu| gpu.0).collect();
            // The size decides among what is there.
            let kind = DeviceKind::best_of(synapses, &there);
            let gpu = found.into_iter().flatten().find(|gpu| gpu.0 == kind);
            Ok(gpu.map_or((BackendKind::Cpu, 0), |(_, backend, number)| (backend, number)))
        }
        // The CPU of networks is there without the backend of memories.
        named if named.backends()? == [BackendKind::Cpu] => Ok((BackendKind::Cpu, 0)),
        named => {
            let id = select(&devices_of(&named.backends()?), named)?.id;
            Ok((id.backend, id.number))
        }
    }
}

impl Choice {
    /// Does the work on the device, or on several as one.
    pub(super) fn run<J: Job>(&self, network: &Network, job: J) -> Result<J::Output> {
        let synapses = network.synapse_count();
        // Every name is looked up before a device is opened.
        let chosen = self.device.iter().map(|choose| resolve(choose, synapses)).collect::<Result<Vec<_>>>()?;
        let backend = chosen.first().map_or(BackendKind::Cpu, |first| first.0);
        // Parts of one network are of one type of device.
        if let Some((other, _)) = chosen.iter().find(|other| other.0 != backend) {
            let why = format!("{} and {} share no network; name devices of one kind", backend.name(), other.name());
            return Err(Error::flag("--device", why));
        }
        let numbers: Vec<usize> = chosen.iter().map(|device| device.1).collect();
        // What is told is what was opened, not what was asked for.
        let name = match backend {
            BackendKind::Cpu => vec!["cpu".to_owned(); numbers.len()],
            gpu => numbers.iter().map(|number| format!("{}:{number}", gpu.name())).collect(),
        };
        let work = (job, name.join(","));
        match backend {
            #[cfg(feature = "cuda")]
            BackendKind::Cuda => on(&numbers, work, |&number| Ok(hecate::cuda::Cuda::new(number)?)),
            #[cfg(feature = "wgpu")]
            BackendKind::Wgpu => {
                on(&numbers, work, |&number| Ok(hecate::wgpu::Wgpu::new(&hecate::wgpu::Selection::Index(number))?))
            }
            // Backends that are not built in were refused with the flag.
            _ => on(&numbers, work, |_| self.cpu(numbers.len())),
        }
    }

    /// The CPU with its share of the threads, where several values of it share a network.
    fn cpu(&self, values: usize) -> Result<Cpu> {
        // Values share the processors: each has its part of them, at least one.
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(match self.threads {
            0 if values > 1 => Cpu::with_threads((all / values).max(1)),
            0 => Cpu::new(),
            threads => Cpu::with_threads(threads),
        }?)
    }
}

/// Opens the devices and does the work there: one by itself, several as shards.
fn on<D: Spiking, J: Job>(
    numbers: &[usize],
    (job, name): (J, String),
    open: impl Fn(&usize) -> Result<D>,
) -> Result<J::Output> {
    // A device that cannot be opened ends the run before a burst.
    let mut devices = numbers.iter().map(open).collect::<Result<Vec<_>>>()?;
    // The order of devices is that of the flag.
    match (devices.pop(), devices.is_empty()) {
        (Some(device), true) => job.run(&device, &name),
        (last, _) => job.run(&Shards::new(devices.into_iter().chain(last))?, &name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small networks wake no GPU, and a name means what it says whatever the size.
    #[test]
    fn names_and_sizes_choose() {
        assert_eq!(resolve(&Choose::Best, CUDA_SYNAPSES - 1).unwrap(), (BackendKind::Cpu, 0));
        assert_eq!(resolve(&parse("cpu").unwrap(), usize::MAX).unwrap(), (BackendKind::Cpu, 0));
        assert!(parse("reference").unwrap_err().contains("cpu"));
        assert!(parse("tpu").unwrap_err().contains("cuda"));
        for (name, backend) in [("cuda:0", BackendKind::Cuda), ("wgpu", BackendKind::Wgpu)] {
            assert_eq!(parse(name).is_ok(), backend.is_built_in(), "{name}");
        }
    }
}
