//! Steps and other work that a device captures as a graph and replays.

use crate::{Checked, Device, Host, Result, Tensor};
use std::fmt::Debug;

/// From a state and an input to the next state, arrays like those before, and a result.
pub type Step<'a, D> = dyn FnMut(Vec<Tensor<D>>, Tensor<D>) -> Result<(Vec<Tensor<D>>, Tensor<D>)> + 'a;

/// A [`Step`] that was run once and can be run again with less work than call by call. The state stays inside.
pub trait CapturedStep<D: Device>: Send {
    /// Runs the step on the state that the last one left, and on an input of the captured one's type and length.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) or [`Error::DType`](crate::Error::DType) for another input; the device's
    /// own failures.
    fn step(&mut self, input: Host) -> Result<Host>;

    /// Copies of the state that the last step went on from; before the first, arbitrary values.
    ///
    /// # Errors
    /// The device's own failures.
    fn before(&self) -> Result<Vec<Tensor<D>>>;

    /// Copies of the state that the next step goes on from.
    ///
    /// # Errors
    /// The device's own failures.
    fn after(&self) -> Result<Vec<Tensor<D>>>;

    /// Lets the next step go on from a copy of another state.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for arrays unlike those of the captured state;
    /// [`Error::OtherDevice`](crate::Error::OtherDevice) for one that lies elsewhere; the device's own failures.
    fn restart(&mut self, state: &[Tensor<D>]) -> Result<()>;
}

/// What became of a request to capture a [`Step`] or [`Work`]: `G` replays it.
#[derive(Debug)]
pub enum Capture<G> {
    /// A graph of it.
    Graph(G),
    /// None: it has to go call by call.
    Refused {
        /// In words.
        why: String,
    },
}

impl<G> Capture<G> {
    /// The graph, or why there is none.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn graph(self) -> std::result::Result<G, String> {
        match self {
            Self::Graph(graph) => Ok(graph),
            Self::Refused { why } => Err(why),
        }
    }
}

/// Captures a step as a graph for states and inputs shaped like these, where the device can ([`Device::capture`]).
///
/// # Errors
/// [`Error::OtherDevice`](crate::Error::OtherDevice) for a state, an input or a result of the step that does not lie on
/// `device`; the step's own; the device's own failures.
pub fn capture<D: Device>(
    device: &D,
    state: &[Tensor<D>],
    input: &Tensor<D>,
    step: &mut Step<'_, D>,
) -> Result<Capture<Box<dyn CapturedStep<D>>>> {
    let check_all = |state: &[Tensor<D>]| state.iter().try_for_each(|x| x.check_device(device, "capture", "state"));
    check_all(state)?;
    input.check_device(device, "capture", "input")?;
    device.capture(Checked::new(), state, input, &mut |state, input| {
        let (next, result) = step(state, input)?;
        check_all(&next)?;
        result.check_device(device, "capture", "result")?;
        Ok((next, result))
    })
}

/// Work on arrays that stay where they are: it reads inputs and whatever else it holds, and keeps its results itself.
pub type Work<'a, D> = dyn FnMut(&[Tensor<D>]) -> Result<()> + 'a;

/// [`Work`] that a device captured. A replay leaves its results in the arrays that the captured run left them in.
pub trait Replay<D: Device>: Debug + Send {
    /// Takes note of where the arrays lie that the work reads or writes beside its inputs, as it was captured.
    fn note(&mut self, arrays: &[&Tensor<D>]);

    /// Copies `inputs` to where the work reads them, and queues it once more; nothing waits for it. `arrays` are those that
    /// were noted: false, and nothing ran, where one of them lies elsewhere now.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) or [`Error::DType`](crate::Error::DType) for inputs unlike those of the
    /// capture; the device's own failures.
    fn replay(&mut self, inputs: Vec<Host>, arrays: &[&Tensor<D>]) -> Result<bool>;
}

/// Captures work as a graph, where the device can ([`Device::capture_work`]).
///
/// # Errors
/// [`Error::OtherDevice`](crate::Error::OtherDevice) for an array that does not lie on `device`; the work's own; the
/// device's own failures.
pub fn capture_work<D: Device>(
    device: &D,
    inputs: &[Tensor<D>],
    work: &mut Work<'_, D>,
) -> Result<Capture<Box<dyn Replay<D>>>> {
    inputs.iter().try_for_each(|x| x.check_device(device, "capture", "input"))?;
    device.capture_work(Checked::new(), inputs, work)
}
