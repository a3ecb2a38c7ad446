//! Steps captured as a graph of kernels and replayed with one launch.
//!
//! A graph repeats the launches of one step at the addresses that they had. Inputs are copied to where the step found
//! them, and its next state is copied over the state that it started from. [`GraphLedger`](crate::ledger::GraphLedger)
//! keeps memory alive for it.
#![allow(unsafe_code)]

use crate::{Cuda, error::failed, ledger::GraphToken, primitives::layout::copy_all};
use cudarc::driver::{CudaGraph, sys};
use hecate_core::{CapturedStep, Device, Error, Host, Result, Step, Tensor};
use std::panic;

/// A graph that reads `input` and `state`, and leaves the next state and the result in `state` and `result`.
struct CapturedGraph {
    device: Cuda,
    // Dropped in this order: what the graph points to is let go of after it.
    graph: CudaGraph,
    _token: GraphToken,
    /// The array that the step reads, of the shape and type of every input.
    input: Tensor<Cuda>,
    /// The array that the step writes.
    result: Tensor<Cuda>,
    _state: Vec<Tensor<Cuda>>,
}

// SAFETY: the driver takes handles of graphs from any thread, one at a time, and only `&mut self` reaches this one's; all
// else may be sent by its type.
unsafe impl Send for CapturedGraph {}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // The graph goes next, and this may be a thread that never used the GPU. Nobody can be told of a failure here.
        let _ = self.device.context().bind_to_thread();
    }
}

impl CapturedStep for CapturedGraph {
    /// Copies the input to where the graph reads it, launches the graph, and waits for its result.
    fn step(&mut self, input: Host) -> Result<Host> {
        let known = &self.input;
        if input.len() != known.shape().count() {
            return Err(Error::Length { what: "step", shape: known.shape().clone(), found: input.len() });
        }
        if input.dtype() != known.dtype() {
            let expected = "the type of the captured input";
            return Err(Error::DType { what: "step", slot: "input", expected, found: input.dtype() });
        }
        self.device.overwrite(known.buffer(), input)?;
        self.device.replay(&self.graph)?;
        self.result.download()
    }
}

/// Runs the step once, so that all kernels and tables are there, then captures it; nothing where that cannot be done.
pub(crate) fn capture(
    device: &Cuda,
    state: &[Tensor<Cuda>],
    input: &Tensor<Cuda>,
    step: &mut Step<'_, Cuda>,
) -> Result<Option<Box<dyn CapturedStep>>> {
    // Without pools memory cannot belong to a graph.
    if !device.context().has_async_alloc() {
        return Ok(None);
    }
    // State and input in places of their own, which the graph reads and writes.
    let own = state.iter().map(|x| device.empty(x.shape().clone(), x.dtype())).collect::<Result<Vec<_>>>()?;
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
    // From here on memory that is let go of may be what the graph points to.
    let token = GraphToken::new(device.ledger());
    let capturing = device.ledger().begin_capture();
    // The step once more, queued and not run.
    let graph = device.capture_graph(|| {
        let (next, found) = step(state.clone(), input.clone())?;
        // The result may be an old state, which is written over next.
        device.copy(&found, &result)?;
        let next = moved_aside(device, &state, next)?;
        copy_all(device, &next.iter().zip(&state).collect::<Vec<_>>())
    });
    let refused = capturing.refused();
    drop(capturing);
    // It ran a moment ago: what fails now is the capture, and the step goes on call by call.
    let Ok(graph) = graph else { return Ok(None) };
    if refused {
        return Ok(None);
    }
    let (device, _state) = (device.clone(), state);
    Ok(Some(Box::new(CapturedGraph { device, graph, _token: token, input, result, _state })))
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
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream().begin_capture(mode).map_err(capturing)?;
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(queue));
        let graph = self.stream().end_capture(sys::CUgraphInstantiate_flags(0));
        outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked))?;
        graph.map_err(capturing)?.ok_or_else(|| failed("capturing a step", "there was nothing to capture"))
    }

    /// Queues the work of a graph.
    fn replay(&self, graph: &CudaGraph) -> Result<()> {
        let _turn = self.ledger().turn();
        graph.launch().map_err(|error| failed("starting a captured step", error))
    }
}
