//! Steps that a device knows by heart.

use crate::{Host, Result, Tensor};

/// From a state and an input to the next state, arrays like those before, and a result.
pub type Step<'a, D> = dyn FnMut(Vec<Tensor<D>>, Tensor<D>) -> Result<(Vec<Tensor<D>>, Tensor<D>)> + 'a;

/// A [`Step`] that was run once and can be run again with less work than call by call. The state stays inside.
pub trait Recording: Send {
    /// Runs the step on the state that the last one left, and on an input of the recorded one's type and length.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) or [`Error::DType`](crate::Error::DType) for another input; the device's
    /// own failures.
    fn step(&mut self, input: Host) -> Result<Host>;
}
