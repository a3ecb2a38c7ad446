//! `hecate spikes bench`: how long a burst takes, and how that grows with the network.
//!
//! Neuron `i` has synapses to the neurons that follow it, weight 128, potential 200, every fourth of them inhibitory; the
//! threshold is 10, the leak 0.1. Every burst stages every hundredth neuron, and the others may not fire: so each burst
//! delivers one synapse in a hundred, and activity stays.

use super::Choice;
use crate::{error::Result, table::Table};
use clap::Args;
use hecate_spiking::{Area, Builder, Cpu, Kind, Network, Neuron, Spiking, State, Stimulus, Synapse};
use indicatif::HumanCount;
use std::{
    io::{Write, stdout},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bursts that are not measured: they touch memory for the first time.
const FIRST: usize = 10;
/// Of so many neurons one fires.
const ONE_OF: usize = 100;

/// Flags of `hecate spikes bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Neurons, with commas between several numbers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000,100000,1000000", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    neurons: Vec<u32>,
    /// Synapses of each neuron
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    synapses: u32,
    /// Bursts measured, of which the median is told
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bursts: u32,
    #[command(flatten)]
    device: Choice,
}

/// Measures one size after another.
pub(crate) fn run(arguments: &BenchArgs) -> Result<ExitCode> {
    let cpu = arguments.device.open()?;
    writeln!(stdout(), "cpu, {} threads; every hundredth neuron fires; milliseconds a burst\n", cpu.threads())?;
    let mut table = Table::new(&["neurons", "synapses", "median", "fastest", "synapses/s"]);
    let mut points = Vec::new();
    for &neurons in &arguments.neurons {
        // A size at a time, so that the largest alone has to fit memory.
        let network = network(neurons as usize, arguments.synapses as usize)?;
        let times = measured(&cpu, &network, arguments.bursts as usize)?;
        let (median, fastest) = (times[times.len() / 2].as_secs_f64(), times[0].as_secs_f64());
        // Each that fires delivers all of its synapses.
        let delivered = fires(&network).count() as f64 * f64::from(arguments.synapses);
        table.row([
            HumanCount(neurons.into()).to_string(),
            HumanCount(network.synapse_count() as u64).to_string(),
            format!("{:.3}", 1e3 * median),
            format!("{:.3}", 1e3 * fastest),
            format!("{:.2e}", delivered / median),
        ])?;
        points.push((f64::from(neurons), fastest));
    }
    if let Some(slope) = slope(&points) {
        // Other programs on the machine lengthen the median more than the fastest.
        writeln!(stdout(), "\nslope of the fastest bursts on a log scale: {slope:.2}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The network, whose hundredth neurons alone can fire.
fn network(count: usize, synapses: usize) -> Result<Arc<Network>> {
    let mut builder = Builder::default();
    builder.area(Area::uniform(3))?;
    for i in 0..count {
        let excitability = if i.is_multiple_of(ONE_OF) { 1.0 } else { 0.0 };
        builder.neuron(Neuron { leak: 0.1, excitability, ..Neuron::new(3, 10.0) })?;
    }
    // Targets follow their source, and wrap around at the end.
    for source in 0..count {
        for i in 0..synapses {
            let target = ((source + i + 1) % count) as u32;
            let kind = if i % 4 == 3 { Kind::Inhibitory } else { Kind::Excitatory };
            builder.synapse(Synapse { source: source as u32, target, weight: 128, potential: 200, kind })?;
        }
    }
    Ok(builder.build()?)
}

/// Ids of the neurons that fire.
fn fires(network: &Network) -> impl Iterator<Item = u32> {
    (0..network.count() as u32).step_by(ONE_OF)
}

/// Times of bursts one after the other, ascending.
fn measured(cpu: &Cpu, network: &Arc<Network>, bursts: usize) -> Result<Vec<Duration>> {
    // What others send them is less than this.
    let staged: Vec<_> = fires(network).map(|neuron| (neuron, 1e6)).collect();
    // The state goes on from burst to burst.
    let mut net = cpu.load(network, &State::start(network)?)?;
    let mut times = Vec::new();
    for _ in 0..bursts + FIRST {
        let start = Instant::now();
        cpu.burst(&mut net, Stimulus { staged: &staged, fatigue: false })?;
        times.push(start.elapsed());
    }
    let mut times = times.split_off(FIRST);
    times.sort();
    Ok(times)
}

/// The slope of a line through logarithms, by least squares; none through one size.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<_> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (x, y) = (logs.iter().map(|p| p.0).sum::<f64>() / count, logs.iter().map(|p| p.1).sum::<f64>() / count);
    // Covariance over variance.
    let both: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let spread = logs.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>();
    (spread > 0.0).then(|| both / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is measured is what is told: every hundredth neuron fires in every burst, and no other.
    #[test]
    fn every_hundredth_neuron_fires() {
        let (cpu, network) = (Cpu::with_threads(1).unwrap(), network(1050, 7).unwrap());
        assert_eq!((fires(&network).count(), network.synapse_count()), (11, 7350));
        let staged: Vec<_> = fires(&network).map(|neuron| (neuron, 1e6)).collect();
        let mut net = cpu.load(&network, &State::start(&network).unwrap()).unwrap();
        for _ in 0..5 {
            cpu.burst(&mut net, Stimulus { staged: &staged, fatigue: false }).unwrap();
            let fired: Vec<_> = cpu.fired(&net).unwrap().iter().map(|spike| spike.neuron).collect();
            assert_eq!(fired, fires(&network).collect::<Vec<_>>());
        }
        assert_eq!(measured(&cpu, &network, 3).unwrap().len(), 3);
    }

    #[test]
    fn slopes_are_powers() {
        let points = [(1.0, 2.0), (10.0, 200.0), (100.0, 20_000.0)];
        approx::assert_abs_diff_eq!(slope(&points).unwrap(), 2.0, epsilon = 1e-12);
        assert_eq!(slope(&points[..1]), None);
        assert_eq!(slope(&[(5.0, 1.0), (5.0, 2.0)]), None);
    }
}
