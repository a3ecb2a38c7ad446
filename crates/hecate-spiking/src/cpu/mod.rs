//! The CPU: threads look up what the neurons that fired deliver; then the targets are divided among tasks.
//!
//! A burst needs nothing of itself but what fired in the last one, so a task delivers to its own neurons, and then decides
//! which of them fire, without waiting for others. Rows ascend by target: the synapses of a fired neuron that lead into a
//! task lie side by side. Sums are integers, so the result does not depend on the number of tasks or threads.

mod delivery;
mod learning;
mod task;

use crate::{
    Error, Network, Result, Spike, Spiking, State, Stimulus, Synapse,
    network::{Entry, within},
    state,
};
use delivery::Delivery;
use hecate_core::DeviceId;
pub(crate) use learning::Learning;
use rayon::prelude::*;
use std::{collections::BTreeMap, fmt, num::NonZero, ops::Range, sync::Arc, thread};
use task::{Surroundings, Task};

/// The processor that this program runs on, with a pool of threads of its own. Clones are the same device.
#[derive(Clone)]
pub struct Cpu {
    id: DeviceId,
    pool: Arc<rayon::ThreadPool>,
}

/// Most threads of a pool.
const THREADS: usize = 1 << 12;
/// Tasks a thread: neurons that fire may lie in few areas, so that tasks differ in length.
const TASKS: usize = 2;
/// Neurons a task has at least: finding a neuron's synapses in a task takes as long as delivering to some of them.
const NEURONS: usize = 1 << 10;
/// Synapses below which waking threads takes longer than delivering alone.
const ALONE: usize = 1 << 11;

impl Cpu {
    /// A pool of one thread a processor.
    ///
    /// # Errors
    /// As [`Cpu::with_threads`].
    pub fn new() -> Result<Self> {
        Self::with_threads(thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// A pool of so many threads, 1 to 4096. Results do not depend on the number.
    ///
    /// # Errors
    /// [`Error::Value`] for another number; [`Error::Threads`] if the system starts no threads.
    pub fn with_threads(threads: usize) -> Result<Self> {
        if !(1..=THREADS).contains(&threads) {
            return Err(crate::builder::value("device", 0, "threads", threads, "1 to 4096"));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|source| Error::Threads { threads, source })?;
        tracing::info!(threads, "opened the CPU for spiking networks");
        Ok(Self { id: DeviceId::new(|number| format!("cpu (pool {number})")), pool: Arc::new(pool) })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Refuses what another device value loaded.
    fn check(&self, net: &Net) -> Result<()> {
        if net.device == self.id {
            return Ok(());
        }
        Err(Error::OtherDevice { found: net.device.clone(), expected: self.id.clone() })
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({} threads)", self.threads())
    }
}

/// Synapses that were made, by index of their source, each list ascending by target.
pub(crate) type Made = BTreeMap<u32, Vec<Entry>>;

/// A network, or a part of it, in main memory.
pub struct Net {
    device: DeviceId,
    network: Arc<Network>,
    part: Range<usize>,
    /// Number of bursts so far.
    burst: u64,
    tasks: Vec<Task>,
    /// What fired of the part in the last burst.
    own: Vec<Spike>,
    /// What fired anywhere in the last burst that was heard.
    fired: Vec<Spike>,
    /// What these deliver in the burst that comes.
    deliveries: Vec<Delivery>,
    /// Whether the last burst was heard.
    heard: bool,
    learning: Learning,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, burst, tasks, .. } = self;
        write!(f, "Net(neurons {part:?} after {burst} bursts, {} tasks)", tasks.len())
    }
}

impl Net {
    /// Looks up what the last burst's spikes deliver, and says whether one thread delivers it soonest.
    fn find_deliveries(&mut self, pool: &rayon::ThreadPool) -> bool {
        // Threads look rows up as they add: each waits for memory alone.
        let Self { network, fired, learning, deliveries, .. } = self;
        let find = |spike: &Spike| Delivery::new(network, learning.made(), spike);
        if fired.len() < ALONE || pool.current_num_threads() == 1 {
            deliveries.clear();
            deliveries.extend(fired.iter().map(find));
        } else {
            pool.install(|| fired.par_iter().map(find).collect_into_vec(deliveries));
        }
        self.tasks.len() == 1 || deliveries.iter().map(|delivery| delivery.end - delivery.start).sum::<usize>() < ALONE
    }

    /// Adds what fired elsewhere to what fired here, ascending.
    fn gather(&mut self, others: &[Spike]) {
        self.fired.clear();
        self.fired.extend_from_slice(&self.own);
        self.fired.extend_from_slice(others);
        if !others.is_empty() {
            self.fired.sort_unstable_by_key(|spike| spike.neuron);
        }
    }
}

/// The neurons of `part`, divided into so many ranges that differ by one in length at most.
fn divided(part: &Range<usize>, count: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, length) = (part.start, part.len());
    (0..count).map(move |task| start + length * task / count..start + length * (task + 1) / count)
}

impl Spiking for Cpu {
    const NAME: &'static str = "cpu";
    type Net = Net;

    fn load_part(&self, network: &Arc<Network>, state: &State, part: Range<usize>) -> Result<Net> {
        state.check(network)?;
        if part.is_empty() || part.end > network.count() {
            return Err(Error::Part { start: part.start, end: part.end, count: network.count() });
        }
        // A sum, a potential, two counts, a candidate's bit, and what learning counts.
        network.check_memory("a spiking network", 8 + 4 + 2 + 2 + 1 + 16)?;
        // One thread gains nothing by tasks; several share them evenly even if activity lies in one place.
        let tasks = part.len().div_ceil(NEURONS).min(if self.threads() == 1 { 1 } else { TASKS * self.threads() });
        let tasks = divided(&part, tasks).map(|targets| Task::new(network, state, targets)).collect::<Result<_>>()?;
        let own = state.fired.iter().filter(|spike| network.index(spike.neuron).is_some_and(|at| part.contains(&at)));
        let net = Net {
            device: self.id.clone(),
            network: Arc::clone(network),
            own: own.copied().collect(),
            part,
            burst: state.burst,
            tasks,
            fired: state.fired.clone(),
            deliveries: Vec::new(),
            heard: true,
            learning: Learning::new(network, state)?,
        };
        tracing::debug!(?net, synapses = network.synapse_count(), "loaded a spiking network");
        Ok(net)
    }

    fn fire(&self, net: &mut Net, stimulus: Stimulus<'_>) -> Result<()> {
        self.check(net)?;
        if !net.heard {
            return Err(Error::Order { found: "was to fire before its last burst was heard" });
        }
        stimulus.check(&net.network)?;
        net.burst = net.burst.wrapping_add(1);
        let alone = net.find_deliveries(&self.pool) && stimulus.staged.len() < ALONE;
        let Net { network, burst, tasks, own, deliveries, learning, .. } = net;
        let (entries, made) = (learning.entries(network), learning.made());
        let around = Surroundings { network, entries, made, deliveries, burst: *burst };
        if alone {
            tasks.iter_mut().for_each(|task| task.burst(&around, stimulus));
        } else {
            self.pool.install(|| tasks.par_iter_mut().for_each(|task| task.burst(&around, stimulus)));
        }
        // Tasks ascend, and so do the spikes of each.
        own.clear();
        tasks.iter().for_each(|task| own.extend_from_slice(task.fired()));
        net.heard = false;
        tracing::trace!(burst = net.burst, delivered = net.deliveries.len(), fired = net.own.len(), "a burst");
        Ok(())
    }

    fn hear(&self, net: &mut Net, others: &[Spike]) -> Result<()> {
        self.check(net)?;
        if net.heard {
            return Err(Error::Order { found: "was to hear before it fired" });
        }
        state::check_spikes("spike of another part", &net.network, others)?;
        let inside = |spike: &Spike| net.network.index(spike.neuron).is_some_and(|index| net.part.contains(&index));
        if let Some(index) = others.iter().position(inside) {
            let (found, expected) = (others[index].neuron, "a neuron of another part");
            return Err(crate::builder::value("spike of another part", index, "neuron", found, expected));
        }
        // What is refused below must leave the part as it was.
        let before = std::mem::take(&mut net.fired);
        net.gather(others);
        if let Err(error) = net.learning.learn(&net.network, &net.part, &net.fired) {
            net.fired = before;
            return Err(error);
        }
        net.heard = true;
        Ok(())
    }

    fn fired(&self, net: &Net) -> Result<Vec<Spike>> {
        self.check(net)?;
        Ok(net.own.clone())
    }

    /// A burst has ended when its call returns.
    fn synchronize(&self, net: &Net) -> Result<()> {
        self.check(net)
    }

    fn bytes(&self, net: &Net) -> usize {
        net.tasks.iter().map(Task::bytes).sum::<usize>() + net.learning.bytes(&net.network)
    }

    fn state(&self, net: &Net) -> Result<State> {
        self.check(net)?;
        if !net.heard {
            return Err(Error::Order { found: "was asked for its state before its last burst was heard" });
        }
        // Neurons of other parts stay zero.
        let mut state = State::start(&net.network)?;
        state.burst = net.burst;
        // What fired anywhere, since any neuron may have synapses into this part.
        state.fired = net.fired.clone();
        net.tasks.iter().for_each(|task| task.write(&net.network, &mut state));
        net.learning.write(&net.network, &mut state)?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_neuron_is_in_one_task() {
        for (part, count) in [(0..7, 3), (5..6, 1), (100..1124, 64)] {
            let tasks: Vec<_> = divided(&part, count).collect();
            assert_eq!(tasks.len(), count);
            assert!(tasks.iter().all(|task| !task.is_empty()), "{tasks:?}");
            assert_eq!(tasks.into_iter().flatten().collect::<Vec<_>>(), part.collect::<Vec<_>>());
        }
    }
}
