//! `hecate spikes run`: a network's bursts, spikes of each area, and their picture.

use super::{
    device::{Choice, Job},
    raster::{self, Raster},
};
use crate::{
    error::{Error, Result},
    progress::Bursts,
    stop::{Stop, status},
    table::Table,
    visible::visible_path,
};
use clap::Args;
use hecate_spiking::{Experiment, Network, Spike, Spiking, State};
use indicatif::HumanCount;
use std::{
    collections::BTreeMap,
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Flags of `hecate spikes run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The network's file (JSON; docs/spiking.md has its format)
    #[arg(value_name = "NETWORK.json")]
    network: PathBuf,
    /// Bursts to run; those that the file asks for unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bursts: Option<u64>,
    /// SVG file for a picture of the spikes: bursts from left to right, neurons by area
    #[arg(long, value_name = "FILE")]
    raster: Option<PathBuf>,
    #[command(flatten)]
    device: Choice,
}

/// Runs the network. Whoever asks to stop sees the bursts until then.
pub(crate) fn run(arguments: RunArgs) -> Result<ExitCode> {
    let path = &arguments.network;
    // The network's own errors have a line and a column, or a neuron; the file is named here.
    let experiment = Experiment::read(path).map_err(|error| match error {
        hecate_spiking::Error::Read { .. } => error.into(),
        error => Error::file(path, error),
    })?;
    // A file need not say how many.
    let bursts = arguments.bursts.unwrap_or(experiment.bursts);
    if bursts == 0 {
        return Err(Error::file(path, "asks for 0 bursts; name how many: `--bursts 80`"));
    }
    // Before the first burst: what cannot be drawn is not run.
    if let Some(path) = &arguments.raster {
        raster::check(path)?;
    }
    let stop = Stop::listen()?;
    let mut found = Found::new(&experiment.network, bursts);
    let all = All { found: &mut found, experiment: &experiment, bursts, stop: &stop };
    arguments.device.run(&experiment.network, all)?;
    // The table comes first: a picture may fail.
    found.tell(&experiment.network)?;
    if let Some(path) = &arguments.raster {
        found.raster.write(path)?;
        writeln!(stdout(), "\nspikes: {}", visible_path(path))?;
    }
    Ok(if found.bursts < bursts { ExitCode::from(status()) } else { ExitCode::SUCCESS })
}

/// All bursts of a run.
struct All<'a> {
    found: &'a mut Found,
    experiment: &'a Experiment,
    bursts: u64,
    stop: &'a Stop,
}

impl Job for All<'_> {
    type Output = ();

    /// One burst after another, until the last or until somebody asks to stop.
    fn run<D: Spiking>(self, device: &D, name: &str) -> Result<()> {
        let Self { found, experiment, bursts, stop } = self;
        name.clone_into(&mut found.device);
        let mut net = device.load(&experiment.network, &State::start(&experiment.network)?)?;
        let progress = Bursts::new(bursts);
        while found.bursts < bursts && !stop.asked() {
            let burst = found.bursts + 1;
            // What is looked at afterwards is not timed, but what a burst moves to the host is.
            let began = Instant::now();
            device.burst(&mut net, experiment.stimulus(burst))?;
            let fired = device.fired(&net)?;
            found.took += began.elapsed();
            found.note(&experiment.network, burst, &fired);
            found.bursts = burst;
            progress.at(burst, found.spikes());
        }
        Ok(())
    }
}

/// What was seen of a run.
struct Found {
    /// Where it ran.
    device: String,
    /// Bursts that were run, and how long they took together.
    bursts: u64,
    took: Duration,
    /// Neurons and spikes by area.
    areas: BTreeMap<u32, (u64, u64)>,
    /// What is drawn of them.
    raster: Raster,
}

impl Found {
    /// Before the first burst.
    fn new(network: &Network, bursts: u64) -> Self {
        let mut areas: BTreeMap<u32, (u64, u64)> = network.areas().iter().map(|area| (area.id, (0, 0))).collect();
        // Memory neurons have areas too, and come after the others.
        for index in 0..network.count() {
            if let Some(area) = network.area_of(network.id(index)) {
                areas.entry(area.id).or_default().0 += 1;
            }
        }
        Self { device: String::new(), bursts: 0, took: Duration::ZERO, areas, raster: Raster::new(network, bursts) }
    }

    /// What fired in a burst.
    fn note(&mut self, network: &Network, burst: u64, fired: &[Spike]) {
        // Ids of neurons are known: the network itself gave them.
        for spike in fired {
            if let Some(area) = network.area_of(spike.neuron) {
                self.areas.entry(area.id).or_default().1 += 1;
            }
            if let Some(index) = network.index(spike.neuron) {
                self.raster.mark(burst, index);
            }
        }
    }

    /// Of all areas.
    fn spikes(&self) -> u64 {
        self.areas.values().map(|&(_, spikes)| spikes).sum()
    }

    /// Prints a row an area, then the whole.
    fn tell(&self, network: &Network) -> Result<()> {
        // Before the first burst there is no rate.
        let rate = |neurons: u64, spikes: u64| 100.0 * spikes as f64 / (neurons * self.bursts).max(1) as f64;
        // Areas that never fired have a row too.
        let mut table = Table::new(&["area", "neurons", "spikes", "fire in a burst"]);
        for (area, &(neurons, spikes)) in &self.areas {
            let share = format!("{:.2} %", rate(neurons, spikes));
            table.row([area.to_string(), HumanCount(neurons).to_string(), HumanCount(spikes).to_string(), share])?;
        }
        // The whole network, in one line.
        let each = 1e3 * self.took.as_secs_f64() / self.bursts.max(1) as f64;
        let [neurons, synapses, spikes, bursts] =
            [network.count() as u64, network.synapse_count() as u64, self.spikes(), self.bursts].map(HumanCount);
        let whole = format!("{spikes} spikes in {bursts} bursts of {neurons} neurons and {synapses} synapses");
        Ok(writeln!(stdout(), "\n{whole}, {each:.3} ms a burst on {}", self.device)?)
    }
}
