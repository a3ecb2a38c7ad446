//! Steps captured as a graph of kernels and replayed with one launch.
//!
//! A graph repeats the launches of one step at the addresses that they had. Inputs are copied to where the step found
//! them, and its next state is copied over the state that it started from. [`GraphLedger`](crate::ledger::GraphLedger)
//! keeps memory alive for it.
//!
//! A step is captured by running it once on a stream that only notes what is launched. So nothing is computed then: the
//! first replay is the first time that the step runs. A replay costs the host one launch, however many kernels there are.
#![allow(unsafe_code)]

use crate::{Cuda, device::arena::Arena, error::failed, ledger::GraphToken, primitives::layout::copy_all};
use cudarc::driver::{
    CudaGraph,
    sys::{self, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED},
};
use hecate_core::{Capture, CapturedStep, Device, Error, Host, Replay, Result, Step, Tensor, Work};
use std::{fmt, panic, sync::Arc};

/// A graph that reads `input` and `state`, and leaves the next state and the result in `state` and `result`.
struct CapturedGraph {
    device: Cuda,
    // Dropped in this order: what the graph points to is let go of after it.
    graph: CudaGraph,
    _token: GraphToken,
    _arena: Arc<Arena>,
    /// The array that the step reads, of the shape and type of every input.
    input: Tensor<Cuda>,
    /// The array that the step writes.
    result: Tensor<Cuda>,
    /// Where every replay leaves the next state.
    state: Vec<Tensor<Cuda>>,
    /// Where every replay puts the state that it finds.
    before: Vec<Tensor<Cuda>>,
}

// SAFETY: the driver takes handles of graphs from any thread, one at a time, and only `&mut self` reaches this one's; all
// else may be sent by its type.
unsafe impl Send for CapturedGraph {}

impl Drop for CapturedGraph {
    /// Binds the thread to the GPU, which freeing a graph asks for.
    fn drop(&mut self) {
        // The graph goes next, and this may be a thread that never used the GPU. Nobody can be told of a failure here.
        let _ = self.device.context().bind_to_thread();
    }
}

impl CapturedStep<Cuda> for CapturedGraph {
    /// Copies the input to where the graph reads it, launches the graph, and waits for its result.
    fn step(&mut self, input: Host) -> Result<Host> {
        self.device.write_input(&self.input, input)?;
        self.device.replay(&self.graph)?;
        self.result.download()
    }

    /// Copies of the state that the last replay started from, for whoever reads on from there in another way.
    fn before(&self) -> Result<Vec<Tensor<Cuda>>> {
        copies(&self.device, &self.before)
    }

    /// Copies of the state that the next replay starts from.
    fn after(&self) -> Result<Vec<Tensor<Cuda>>> {
        copies(&self.device, &self.state)
    }

    /// Writes another state to where the graph reads it.
    fn restart(&mut self, state: &[Tensor<Cuda>]) -> Result<()> {
        state.iter().try_for_each(|x| x.check_device(&self.device, "capture", "state"))?;
        check_state(&self.state, state)?;
        copy_all(&self.device, &state.iter().zip(&self.state).collect::<Vec<_>>())
    }
}

/// The same elements elsewhere.
fn copies(device: &Cuda, arrays: &[Tensor<Cuda>]) -> Result<Vec<Tensor<Cuda>>> {
    let copies = empty_like(device, arrays)?;
    copy_all(device, &arrays.iter().zip(&copies).collect::<Vec<_>>())?;
    Ok(copies)
}

/// Arrays of these shapes and types, with nothing in them.
fn empty_like(device: &Cuda, arrays: &[Tensor<Cuda>]) -> Result<Vec<Tensor<Cuda>>> {
    arrays.iter().map(|x| device.empty(x.shape().clone(), x.dtype())).collect()
}

/// Runs the step once, so that all kernels and tables are there, then captures it; where that cannot be done it says why.
pub(crate) fn capture(
    device: &Cuda,
    state: &[Tensor<Cuda>],
    input: &Tensor<Cuda>,
    step: &mut Step<'_, Cuda>,
) -> Result<Capture<Box<dyn CapturedStep<Cuda>>>> {
    // Without pools memory cannot belong to a graph. What starts no kernels is none.
    if !device.context().has_async_alloc() {
        return refused("the GPU has no pools of memory".to_owned());
    }
    if device.modules().gathers() {
        return refused("kernels are only prepared now".to_owned());
    }
    // Opened now, as for other work.
    let _ = device.side_blas();
    // State and input in places of their own, which the graph reads and writes.
    let (own, before) = (empty_like(device, state)?, empty_like(device, state)?);
    copy_all(device, &state.iter().zip(&own).collect::<Vec<_>>())?;
    let state = own;
    let input = device.copied(input)?;
    // Kernels are compiled and tables uploaded here, which a graph cannot do.
    let (next, found) = step(state.clone(), input.clone())?;
    check_state(&state, &next)?;
    // The graph writes its result here every time.
    let result = device.empty(found.shape().clone(), found.dtype())?;
    drop((next, found));
    device.synchronize()?;
    // The step once more, queued and not run.
    let mut work = |inputs: &[Tensor<Cuda>]| {
        copy_all(device, &state.iter().zip(&before).collect::<Vec<_>>())?;
        let (next, found) = step(state.clone(), inputs[0].clone())?;
        // The result may be an old state, which is written over next.
        device.copy(&found, &result)?;
        let next = moved_aside(device, &state, next)?;
        copy_all(device, &next.iter().zip(&state).collect::<Vec<_>>())
    };
    // Why the last attempt failed.
    let mut broken = String::new();
    for _ in 0..ATTEMPTS {
        let attempt = Attempt::make(device, std::slice::from_ref(&input), &mut work)?;
        device.stream().join(device.uploads()).map_err(|error| failed("capturing a step", error))?;
        match attempt.outcome {
            Ok(graph) => {
                let (device, _token, _arena) = (device.clone(), attempt.token, attempt.arena);
                return Ok(Capture::Graph(Box::new(CapturedGraph {
                    device,
                    graph,
                    _token,
                    _arena,
                    input,
                    result,
                    state,
                    before,
                })));
            }
            // The same would happen again: the step goes call by call.
            Err(Failure::Refused(what)) => return refused_for(what),
            // It ran a moment ago: what fails now is the capture.
            Err(Failure::Broken(error)) => broken = error.to_string(),
        }
    }
    refused(broken)
}

/// There is no graph, for this reason.
fn refused<G>(why: String) -> Result<Capture<G>> {
    Ok(Capture::Refused { why })
}

/// There is no graph of what asks for this.
fn refused_for<G>(what: &str) -> Result<Capture<G>> {
    refused(format!("{what} is part of it"))
}

/// A graph of work that reads `inputs`, with all that it points to.
///
/// It reads and writes weights where they lie, and holds none of them: others may, and then they are written elsewhere.
struct CapturedWork {
    device: Cuda,
    // Dropped in this order, as above.
    graph: CudaGraph,
    _token: GraphToken,
    arena: Arc<Arena>,
    inputs: Vec<Tensor<Cuda>>,
    /// Addresses of what the work reads and writes beside them.
    noted: Vec<u64>,
}

// SAFETY: as above.
unsafe impl Send for CapturedWork {}

impl Drop for CapturedWork {
    fn drop(&mut self) {
        // As above; and what runs may still use the graph's memory, which the main stream frees in its turn.
        let _ = self.device.context().bind_to_thread();
    }
}

impl fmt::Debug for CapturedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedWork").field("inputs", &self.inputs).field("arena", &self.arena).finish_non_exhaustive()
    }
}

impl Replay<Cuda> for CapturedWork {
    fn note(&mut self, arrays: &[&Tensor<Cuda>]) {
        self.noted = addresses(arrays).collect();
    }

    fn replay(&mut self, inputs: Vec<Host>, arrays: &[&Tensor<Cuda>]) -> Result<bool> {
        // Somebody may hold what an update wrote over; then the new elements lie elsewhere.
        if !self.noted.iter().copied().eq(addresses(arrays)) {
            return Ok(false);
        }
        if inputs.len() != self.inputs.len() {
            let (found, expected) = (inputs.len().to_string(), "as many as were captured");
            return Err(Error::Config { what: "replay", option: "inputs", found, expected });
        }
        // In the order of the stream: the graph finds them written.
        self.inputs.iter().zip(inputs).try_for_each(|(known, input)| self.device.write_input(known, input))?;
        self.device.replay(&self.graph)?;
        Ok(true)
    }
}

/// Where arrays lie.
fn addresses<'a>(arrays: &'a [&Tensor<Cuda>]) -> impl Iterator<Item = u64> + 'a {
    arrays.iter().map(|x| x.buffer().pointer())
}

/// Captures work in memory of its own.
///
/// Nothing is computed, and what the work leaves is whole after the first replay only.
pub(crate) fn capture_work(
    device: &Cuda,
    inputs: &[Tensor<Cuda>],
    work: &mut Work<'_, Cuda>,
) -> Result<Capture<Box<dyn Replay<Cuda>>>> {
    if !device.captures_work() {
        return refused("it is turned off, or the GPU has no pools of memory".to_owned());
    }
    // Opened now: that takes memory, which must not be a graph's.
    let _ = device.side_blas();
    // In places of their own, which replays write.
    let inputs = inputs.iter().map(|x| device.copied(x)).collect::<Result<Vec<_>>>()?;
    // Why the last attempt failed.
    let mut broken = String::new();
    for _ in 0..ATTEMPTS {
        let attempt = Attempt::make(device, &inputs, work)?;
        // What was copied to its memory is there before a replay, and before the memory is let go where there is no graph.
        device.stream().join(device.uploads()).map_err(|error| failed("capturing work", error))?;
        match attempt.outcome {
            Ok(graph) => {
                tracing::info!(bytes = attempt.arena.bytes(), "captured a graph");
                let (device, arena) = (device.clone(), attempt.arena);
                let (_token, noted) = (attempt.token, Vec::new());
                let captured = CapturedWork { device, graph, _token, arena, inputs, noted };
                return Ok(Capture::Graph(Box::new(captured)));
            }
            // The same would happen again.
            Err(Failure::Refused(what)) => return refused_for(what),
            // The work ran before: what fails now is the capture.
            Err(Failure::Broken(error)) => broken = error.to_string(),
        }
    }
    refused(broken)
}

/// Captures of the same work before it is given up: what another thread asks of the driver may break one.
const ATTEMPTS: usize = 3;

/// One capture of some work, with all that its graph needs.
struct Attempt {
    outcome: std::result::Result<CudaGraph, Failure>,
    token: GraphToken,
    arena: Arc<Arena>,
}

/// Why there is no graph.
enum Failure {
    /// The work asked for what a graph cannot do.
    Refused(&'static str),
    Broken(Error),
}

impl Attempt {
    /// In memory of its own, at most half of what is free.
    fn make(device: &Cuda, inputs: &[Tensor<Cuda>], work: &mut Work<'_, Cuda>) -> Result<Self> {
        // The rest is for what goes on between steps: measurements, and what they read.
        let most = device.memory()?.map_or(0, |memory| memory.free / 2);
        let arena = Arena::new(usize::try_from(most).unwrap_or(usize::MAX), device.stream(), device.side());
        let token = GraphToken::new(device.ledger());
        let capturing = device.ledger().begin_capture(Some(arena.clone()));
        let graph = device.capture_graph(|| {
            // Queued and not run.
            work(inputs)?;
            // A graph ends where it began: on one stream.
            arena.meet();
            Ok(())
        });
        let refused = capturing.refused();
        drop(capturing);
        arena.forget_beside();
        let outcome = match refused {
            Some(what) => Err(Failure::Refused(what)),
            None => graph.map_err(Failure::Broken),
        };
        Ok(Self { outcome, token, arena })
    }
}

/// The next state in places that the copy over `state` does not write: what lies in an old place is copied first.
fn moved_aside(device: &Cuda, state: &[Tensor<Cuda>], next: Vec<Tensor<Cuda>>) -> Result<Vec<Tensor<Cuda>>> {
    let places: Vec<_> = state.iter().map(|x| x.buffer().pointer()).collect();
    let aside = |x: Tensor<Cuda>| match places.contains(&x.buffer().pointer()) {
        true => device.copied(&x),
        false => Ok(x),
    };
    next.into_iter().map(aside).collect()
}

/// Refuses a next state unlike the one before.
fn check_state(state: &[Tensor<Cuda>], next: &[Tensor<Cuda>]) -> Result<()> {
    let like = |x: &Tensor<Cuda>| (x.shape().clone(), x.dtype());
    if state.len() == next.len() && state.iter().map(like).eq(next.iter().map(like)) {
        return Ok(());
    }
    let found = format!("{next:?}");
    Err(Error::Config { what: "capture", option: "state", found, expected: "arrays like those of the state before" })
}

impl Cuda {
    /// The work that `queue` queues, as a graph; it is not done. Memory asked for on the way belongs to the graph and is let
    /// go of before the end.
    fn capture_graph(&self, queue: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        let capturing = |error| failed("capturing a step", error);
        // Relaxed: values that are copied from the host are made ready on another stream meanwhile.
        self.stream().begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).map_err(capturing)?;
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(queue));
        let graph = self.stream().end_capture(sys::CUgraphInstantiate_flags(0));
        outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked))?;
        graph.map_err(capturing)?.ok_or_else(|| failed("capturing a step", "there was nothing to capture"))
    }

    /// Host values into the input of a graph.
    fn write_input(&self, known: &Tensor<Self>, input: Host) -> Result<()> {
        if input.len() != known.shape().count() {
            return Err(Error::Length { what: "step", shape: known.shape().clone(), found: input.len() });
        }
        if input.dtype() != known.dtype() {
            let expected = "the type of the captured input";
            return Err(Error::DType { what: "step", slot: "input", expected, found: input.dtype() });
        }
        self.overwrite(known.buffer(), input)
    }

    /// Queues the work of a graph.
    fn replay(&self, graph: &CudaGraph) -> Result<()> {
        let _turn = self.ledger().turn();
        graph.launch().map_err(|error| failed("starting a captured step", error))
    }
}
