//! Steps that the GPU knows by heart: a graph of kernels, started at once.
//!
//! What a graph's kernels point to must stay where it is as long as the graph is there. Memory asked for while a step is
//! recorded belongs to the graph, which has it at the same place every time. All other memory was there before; where it
//! is let go of, [`Kept`] keeps it until the last recording is gone.
#![allow(unsafe_code)]

use crate::{Cuda, device::Buffer, error::unsupported, primitives::layout::copy_all};
use cudarc::driver::{CudaGraph, CudaSlice};
use hecate_core::{Device, Error, Host, Recording, Result, Step, Tensor};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::{self, ThreadId},
};

/// Memory that recordings may point to, and who may queue work.
#[derive(Default)]
pub(crate) struct Kept {
    ledger: Mutex<Ledger>,
    /// Held to queue work; by a recording as a whole.
    turn: RwLock<()>,
}

#[derive(Default)]
struct Ledger {
    /// Counts starts and ends of recordings: memory is known by the count at which it was asked for.
    clock: u64,
    /// Recordings that are there, from the start of each on.
    recordings: usize,
    /// The thread that records a step.
    recorder: Option<ThreadId>,
    /// Whether the step that is being recorded copied to or from the host.
    spoiled: bool,
    freed: Vec<CudaSlice<u8>>,
}

impl Kept {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while work is queued: a graph takes whatever is queued on its stream, so that while one thread records a step,
    /// others wait. One turn at a time: who holds it takes no second.
    pub(crate) fn turn(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.records() { None } else { Some(self.turn.read().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Whether this thread records a step.
    fn records(&self) -> bool {
        self.ledger().recorder == Some(thread::current().id())
    }

    /// When memory is asked for.
    pub(crate) fn now(&self) -> u64 {
        self.ledger().clock
    }

    /// Takes memory asked for at `born` that nobody holds any more.
    pub(crate) fn free(&self, memory: CudaSlice<u8>, born: u64) {
        let mut ledger = self.ledger();
        if ledger.recordings > 0 && born < ledger.clock {
            ledger.freed.push(memory);
        }
    }

    /// Refuses what a graph cannot repeat.
    pub(crate) fn check(&self, what: &'static str) -> Result<()> {
        if !self.records() {
            return Ok(());
        }
        self.ledger().spoiled = true;
        Err(unsupported(what, "a step is being recorded, which has to do without the host"))
    }

    /// From here on, until the result is dropped, this thread records a step.
    fn begin(&self) -> Recorder<'_> {
        let whole = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = self.ledger();
        (ledger.clock, ledger.spoiled) = (ledger.clock + 1, false);
        ledger.recorder = Some(thread::current().id());
        Recorder { kept: self, _whole: whole }
    }

    /// A recording is gone.
    fn forget(&self) {
        let freed = {
            let mut ledger = self.ledger();
            ledger.recordings -= 1;
            if ledger.recordings == 0 { std::mem::take(&mut ledger.freed) } else { Vec::new() }
        };
        drop(freed);
    }
}

/// A step is being recorded.
struct Recorder<'a> {
    kept: &'a Kept,
    _whole: RwLockWriteGuard<'a, ()>,
}

impl Recorder<'_> {
    /// Whether the step copied to or from the host.
    fn spoiled(&self) -> bool {
        self.kept.ledger().spoiled
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        let mut ledger = self.kept.ledger();
        (ledger.clock, ledger.recorder) = (ledger.clock + 1, None);
    }
}

/// Counts as a recording from the start of it on.
struct Token(Arc<Kept>);

impl Token {
    fn new(kept: &Arc<Kept>) -> Self {
        kept.ledger().recordings += 1;
        Self(kept.clone())
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// A graph that reads `input` and `state`, and leaves the next state and the result in `state` and `result`.
struct Recorded {
    device: Cuda,
    // Dropped in this order: what the graph points to is let go of behind it.
    graph: CudaGraph,
    _token: Token,
    input: Tensor<Cuda>,
    result: Tensor<Cuda>,
    _state: Vec<Tensor<Cuda>>,
}

// SAFETY: the driver takes handles of graphs from any thread, one at a time, and only `&mut self` reaches this one's; all
// else may be sent by its type.
unsafe impl Send for Recorded {}

impl Drop for Recorded {
    fn drop(&mut self) {
        // The graph goes next, and this may be a thread that never used the GPU. Nobody can be told of a failure here.
        let _ = self.device.context().bind_to_thread();
    }
}

impl Recording for Recorded {
    fn step(&mut self, input: Host) -> Result<Host> {
        let known = &self.input;
        if input.len() != known.shape().count() {
            return Err(Error::Length { what: "step", shape: known.shape().clone(), found: input.len() });
        }
        if input.dtype() != known.dtype() {
            let expected = "the type of the recorded input";
            return Err(Error::DType { what: "step", slot: "input", expected, found: input.dtype() });
        }
        self.device.overwrite(known.buffer(), input)?;
        self.device.replay(&self.graph)?;
        self.result.download()
    }
}

/// Runs the step once, so that all kernels and tables are there, then records it; nothing where that cannot be done.
pub(crate) fn record(
    device: &Cuda,
    state: &[Tensor<Cuda>],
    input: &Tensor<Cuda>,
    step: &mut Step<'_, Cuda>,
) -> Result<Option<Box<dyn Recording>>> {
    // Without pools memory cannot belong to a graph.
    if !device.context().has_async_alloc() {
        return Ok(None);
    }
    let own = state.iter().map(|x| device.empty(x.shape().clone(), x.dtype())).collect::<Result<Vec<_>>>()?;
    copy_all(device, &state.iter().zip(&own).collect::<Vec<_>>())?;
    let state = own;
    let input = device.copied(input)?;
    let (next, found) = step(state.clone(), input.clone())?;
    check_state(&state, &next)?;
    let result = device.empty(found.shape().clone(), found.dtype())?;
    drop((next, found));
    device.synchronize()?;
    let token = Token::new(device.kept());
    let recorder = device.kept().begin();
    let graph = device.capture(|| {
        let (next, found) = step(state.clone(), input.clone())?;
        // The result may be an old state, which is written over next.
        device.copy(&found, &result)?;
        // What lies in an old place would be written over before it is read.
        let places: Vec<_> = state.iter().map(|x| x.buffer().pointer()).collect();
        let aside = |x: &Tensor<Cuda>| match places.contains(&x.buffer().pointer()) {
            true => device.copied(x),
            false => Ok(x.clone()),
        };
        let next = next.iter().map(aside).collect::<Result<Vec<_>>>()?;
        copy_all(device, &next.iter().zip(&state).collect::<Vec<_>>())
    });
    let spoiled = recorder.spoiled();
    drop(recorder);
    // It ran a moment ago: what fails now is the recording, and the step goes on call by call.
    let Ok(graph) = graph else { return Ok(None) };
    if spoiled {
        return Ok(None);
    }
    let (device, _state) = (device.clone(), state);
    Ok(Some(Box::new(Recorded { device, graph, _token: token, input, result, _state })))
}

/// Refuses a next state unlike the one before.
fn check_state(state: &[Tensor<Cuda>], next: &[Tensor<Cuda>]) -> Result<()> {
    let like = |x: &Tensor<Cuda>| (x.shape().clone(), x.dtype());
    if state.len() == next.len() && state.iter().map(like).eq(next.iter().map(like)) {
        return Ok(());
    }
    let found = format!("{next:?}");
    Err(Error::Config { what: "record", option: "state", found, expected: "arrays like those of the state before" })
}

/// A table that many calls need: the same on the device every time.
pub(crate) struct Table {
    pub(crate) pointer: u64,
    /// Its memory, unless the device keeps it.
    _own: Option<Buffer>,
}

impl Table {
    pub(crate) fn kept(pointer: u64) -> Self {
        Self { pointer, _own: None }
    }

    pub(crate) fn own(memory: Buffer) -> Self {
        Self { pointer: memory.pointer(), _own: Some(memory) }
    }
}
