//! `hecate spikes bench`: how long a burst takes, and how that grows with the network.
//!
//! Neuron `i` has synapses to the neurons that follow it, or with a seed to any; weight 128, potential 200, every fourth of them
//! inhibitory; the threshold is 10, the leak 0.1. Every burst stages the same share of the neurons, and the others may not fire: so
//! each burst delivers that share of all synapses, and activity stays.

use super::device::{Choice, Job};
use crate::{
    error::{Error, Result},
    table::Table,
};
use clap::Args;
use hecate_spiking::{Area, Builder, Kind, Network, Neuron, Spiking, State, Stimulus, Synapse};
use indicatif::{HumanBytes, HumanCount};
use std::{
    io::{Write, stdout},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bursts that are not measured: they touch memory for the first time, and compile kernels.
const FIRST: u64 = 10;
/// Bursts that are measured together where nothing comes to the host: a GPU goes on from one to the next.
const TOGETHER: u64 = 10;
/// Parts of a share.
const MILLION: u64 = 1_000_000;

/// Flags of `hecate spikes bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Neurons, with commas between several numbers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10000,100000,1000000", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    neurons: Vec<u32>,
    /// Synapses of each neuron
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    synapses: u32,
    /// Share of the neurons that fire in every burst
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    firing: f64,
    /// Draw targets anywhere, by this seed; without it they are the neurons that follow
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Bursts measured, of which the median is told
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bursts: u32,
    /// Threads of a block on CUDA, with commas between several numbers: 64 to 1024; 256 unless given
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(64..=1024))]
    block: Vec<u32>,
    #[command(flatten)]
    device: Choice,
}

/// Measures one size after another.
pub(crate) fn run(arguments: &BenchArgs) -> Result<ExitCode> {
    // Shares are whole millionths, so that no rounding shows in who fires.
    let share = (arguments.firing * MILLION as f64).round();
    if !(1.0..=MILLION as f64).contains(&share) {
        return Err(Error::flag("--firing", format!("{} is no share; name one from 0.000001 to 1", arguments.firing)));
    }
    // The largest is refused before the smallest is made.
    for &neurons in &arguments.neurons {
        Builder::check_room(neurons as usize, neurons as usize * arguments.synapses as usize)?;
    }
    // Without the flag the device decides.
    let blocks: Vec<_> = arguments.block.iter().copied().map(Some).collect();
    let blocks = if blocks.is_empty() { vec![None] } else { blocks };
    let mut table =
        Table::new(&["neurons", "synapses", "device", "resident", "least", "read", "99 %", "synapses/s", "memory"]);
    let mut points = Vec::new();
    writeln!(stdout(), "microseconds a burst in which {} of the neurons fire\n", arguments.firing)?;
    for &neurons in &arguments.neurons {
        // A size at a time, so that the largest alone has to fit memory.
        let bench = Bench { share: share as u64, bursts: arguments.bursts.into(), block: None };
        let network = bench.network(neurons as usize, arguments.synapses as usize, arguments.seed)?;
        for &block in &blocks {
            let measured = arguments.device.run(&network, (Bench { block, ..bench }, &network))?;
            // The fastest burst is what the device can do.
            points.push((f64::from(neurons), measured.resident[0].as_secs_f64()));
            // Each that fires delivers all of its synapses.
            let delivered = bench.fires(&network).count() as f64 * f64::from(arguments.synapses);
            table.row(measured.row(&network, delivered))?;
        }
    }
    if let Some(slope) = slope(&points) {
        // Other programs on the machine lengthen the median more than the fastest.
        writeln!(stdout(), "\nslope of the fastest bursts on a log scale: {slope:.2}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is measured of each network.
#[derive(Clone, Copy)]
struct Bench {
    /// Of a million neurons so many fire in a burst.
    share: u64,
    bursts: u64,
    block: Option<u32>,
}

/// Times of a burst, ascending, and where they were measured.
struct Measured {
    device: String,
    /// Where nothing comes to the host: means of [`TOGETHER`] bursts.
    resident: Vec<Duration>,
    /// With what fired.
    read: Vec<Duration>,
    /// Of the device's arrays.
    bytes: usize,
}

impl Measured {
    /// Its row of the table.
    fn row(&self, network: &Network, delivered: f64) -> [String; 9] {
        // Tenths of a microsecond: a launch takes a few.
        let micros = |time: Duration| format!("{:.1}", 1e6 * time.as_secs_f64());
        // Times ascend: the middle one is the median.
        let [resident, read] = [&self.resident, &self.read].map(|times| times[times.len() / 2]);
        // The last of a hundred, or the longest of fewer.
        let slow = self.read[self.read.len() * 99 / 100];
        [
            HumanCount(network.count() as u64).to_string(),
            HumanCount(network.synapse_count() as u64).to_string(),
            self.device.clone(),
            micros(resident),
            micros(self.resident[0]),
            micros(read),
            micros(slow),
            format!("{:.2e}", delivered / resident.as_secs_f64()),
            HumanBytes(self.bytes as u64).to_string(),
        ]
    }
}

impl Bench {
    /// Whether a neuron fires: of a hundred every hundredth, where that is the share.
    fn is_active(&self, neuron: u64) -> bool {
        neuron * self.share % MILLION < self.share
    }

    /// Ids of the neurons that fire.
    fn fires(self, network: &Network) -> impl Iterator<Item = u32> {
        (0..network.count() as u32).filter(move |&neuron| self.is_active(neuron.into()))
    }

    /// The network, in which only neurons that are staged can fire.
    fn network(&self, count: usize, synapses: usize, seed: Option<u64>) -> Result<Arc<Network>> {
        let mut builder = Builder::default();
        builder.area(Area::uniform(3))?;
        for i in 0..count {
            // A neuron of no excitability never fires, whatever reaches it.
            let excitability = if self.is_active(i as u64) { 1.0 } else { 0.0 };
            builder.neuron(Neuron { leak: 0.1, excitability, ..Neuron::new(3, 10.0) })?;
        }
        for source in 0..count {
            for i in 0..synapses {
                // Targets follow their source, and wrap around at the end.
                let target = match seed {
                    None => (source + i + 1) % count,
                    Some(seed) => drawn(seed, (source * synapses + i) as u64, count),
                } as u32;
                let kind = if i % 4 == 3 { Kind::Inhibitory } else { Kind::Excitatory };
                builder.synapse(Synapse { source: source as u32, target, weight: 128, potential: 200, kind })?;
            }
        }
        Ok(builder.build()?)
    }
}

/// A number below `count` by a seed and a place (SplitMix64).
fn drawn(seed: u64, place: u64, count: usize) -> usize {
    // Places follow each other by an odd constant, so that all differ.
    let mut x = seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // Its two rounds of mixing.
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) % count as u64) as usize
}

impl Job for (Bench, &Arc<Network>) {
    type Output = Measured;

    fn run<D: Spiking>(self, device: &D, name: &str) -> Result<Measured> {
        let (bench, network) = self;
        // What others send them is less than this.
        let staged: Vec<_> = bench.fires(network).map(|neuron| (neuron, 1e6)).collect();
        let stimulus = Stimulus { staged: &staged, fatigue: false };
        // The state goes on from burst to burst.
        let mut net = device.load(network, &State::start(network)?)?;
        let mut name = name.to_owned();
        if let Some(block) = bench.block {
            device.set_block(&mut net, block)?;
            name = format!("{name} /{block}");
        }
        // Kernels are compiled and caches are warm after these.
        device.bursts(&mut net, stimulus, FIRST)?;
        device.synchronize(&net)?;
        // A GPU queues the bursts, and is waited for once.
        let mut resident = Vec::new();
        for _ in 0..bench.bursts.div_ceil(TOGETHER) {
            let start = Instant::now();
            device.bursts(&mut net, stimulus, TOGETHER)?;
            device.synchronize(&net)?;
            resident.push(start.elapsed() / TOGETHER as u32);
        }
        // Each of these waits for what fired.
        let mut read = Vec::new();
        for _ in 0..bench.bursts {
            let start = Instant::now();
            device.burst(&mut net, stimulus)?;
            // As many as were staged, on every device.
            let fired = device.fired(&net)?.len();
            read.push(start.elapsed());
            if fired != staged.len() {
                return Err(Error::flag("--device", format!("{fired} neurons fired on {name}, not {}", staged.len())));
            }
        }
        // Medians and the least are read from sorted times.
        resident.sort();
        read.sort();
        Ok(Measured { device: name, resident, read, bytes: device.bytes(&net) })
    }
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
    use hecate_spiking::Cpu;

    /// What is measured is what is told: the share fires in every burst and no other, wherever targets are.
    #[test]
    fn the_share_fires() {
        for (share, seed, expected) in [(10_000, None, 11), (10_000, Some(3), 11), (333_334, None, 350)] {
            let bench = Bench { share, bursts: 3, block: None };
            let (cpu, network) = (Cpu::with_threads(1).unwrap(), bench.network(1050, 7, seed).unwrap());
            assert_eq!((bench.fires(&network).count(), network.synapse_count()), (expected, 7350));
            let staged: Vec<_> = bench.fires(&network).map(|neuron| (neuron, 1e6)).collect();
            let mut net = cpu.load(&network, &State::start(&network).unwrap()).unwrap();
            for _ in 0..5 {
                cpu.burst(&mut net, Stimulus { staged: &staged, fatigue: false }).unwrap();
                let fired: Vec<_> = cpu.fired(&net).unwrap().iter().map(|spike| spike.neuron).collect();
                assert_eq!(fired, bench.fires(&network).collect::<Vec<_>>());
            }
            let measured = (bench, &network).run(&cpu, "cpu").unwrap();
            assert_eq!((measured.resident.len(), measured.read.len(), measured.device.as_str()), (1, 3, "cpu"));
        }
    }

    /// A seed draws the same network again, another one another.
    #[test]
    fn seeds_draw_networks() {
        let bench = Bench { share: 10_000, bursts: 1, block: None };
        let digest = |seed| bench.network(300, 5, seed).unwrap().digest();
        assert_eq!(digest(Some(1)), digest(Some(1)));
        assert!(digest(Some(1)) != digest(Some(2)) && digest(None) != digest(Some(1)));
    }

    #[test]
    fn slopes_are_powers() {
        let points = [(1.0, 2.0), (10.0, 200.0), (100.0, 20_000.0)];
        approx::assert_abs_diff_eq!(slope(&points).unwrap(), 2.0, epsilon = 1e-12);
        assert_eq!(slope(&points[..1]), None);
        assert_eq!(slope(&[(5.0, 1.0), (5.0, 2.0)]), None);
    }
}
