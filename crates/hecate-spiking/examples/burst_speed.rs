//! How long a burst takes, and how that grows with the network.
//!
//! `cargo run --release -p hecate-spiking --example burst_speed -- [threads [synapses [neurons...]]]`
//!
//! Neuron `i` has synapses to the neurons that follow it, weight 128, potential 200, every fourth of them inhibitory; the
//! threshold is 10, the leak 0.1. Every burst stages every hundredth neuron, and the
//! others may not fire: so each burst delivers one synapse in a hundred, and activity stays.

use hecate_spiking::{Area, Builder, Cpu, Kind, Network, Neuron, Result, Spiking, State, Stimulus, Synapse};
use std::{
    env,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bursts measured, the median of which is told.
const BURSTS: usize = 200;

fn main() -> Result<()> {
    // Threads, synapses a neuron, and one or several sizes.
    let numbers: Vec<usize> = env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let (threads, synapses) = (numbers.first().copied().unwrap_or(2), numbers.get(1).copied().unwrap_or(50));
    let sizes = numbers.get(2..).filter(|sizes| !sizes.is_empty()).unwrap_or(&[10_000]);
    let cpu = Cpu::with_threads(threads)?;
    println!(
        "{threads} threads, {synapses} synapses a neuron, {BURSTS} bursts; milliseconds a burst, median (fastest)"
    );
    let mut points = Vec::new();
    for &count in sizes {
        let driven = driven(&cpu, &network(count, synapses)?)?;
        println!("{count:>9}  {}", told(&driven));
        points.push((count as f64, driven[0].as_secs_f64()));
    }
    if points.len() > 1 {
        println!("slope of the fastest bursts on a log scale: {:.3}", slope(&points));
    }
    Ok(())
}

/// The network, whose hundredth neurons alone can fire.
fn network(count: usize, synapses: usize) -> Result<Arc<Network>> {
    let mut builder = Builder::default();
    builder.area(Area::uniform(3))?;
    for i in 0..count {
        let excitability = if i % 100 == 0 { 1.0 } else { 0.0 };
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
    builder.build()
}

/// Ids of every hundredth neuron.
fn hundredth(network: &Network) -> impl Iterator<Item = u32> {
    (0..network.count() as u32).step_by(100)
}

/// Bursts one after the other, in which every hundredth neuron fires and delivers.
fn driven(cpu: &Cpu, network: &Arc<Network>) -> Result<Vec<Duration>> {
    // What others send them is less than this.
    let staged: Vec<_> = hundredth(network).map(|neuron| (neuron, 1e6)).collect();
    let mut net = cpu.load(network, &State::start(network)?)?;
    let mut times = Vec::new();
    for _ in 0..BURSTS + 10 {
        let start = Instant::now();
        cpu.burst(&mut net, Stimulus { staged: &staged, fatigue: false })?;
        times.push(start.elapsed());
        assert_eq!(cpu.fired(&net)?.len(), staged.len());
    }
    // The first ones touch memory for the first time.
    let mut times = times.split_off(10);
    times.sort();
    Ok(times)
}

/// Median and fastest: other programs on the machine lengthen the first more than the second.
fn told(times: &[Duration]) -> String {
    let at = |share: usize| 1e3 * times[times.len() * share / 100].as_secs_f64();
    format!("{:>8.3} ({:>6.3})", at(50), at(0))
}

/// The slope of a line through logarithms, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<_> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let (x, y) = (logs.iter().map(|p| p.0).sum::<f64>() / count, logs.iter().map(|p| p.1).sum::<f64>() / count);
    let both: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    both / logs.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>()
}
