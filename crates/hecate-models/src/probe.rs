//! Finding the first element that is not finite.

use crate::{Gradients, Parameters, Place, Result};
use hecate_core::{Backend, Tensor};
use std::cell::{Cell, RefCell};

/// An element that is NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// The array that holds it.
    pub what: String,
    /// Where that is.
    pub place: Place,
    /// Its value.
    pub found: f64,
}

impl NonFinite {
    /// The first parameter whose gradient is not finite, in the order of the backward pass: head, blocks from the last to the
    /// first, embedding.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn in_gradients<B: Backend>(parameters: &Parameters<B>, gradients: &Gradients<B>) -> Result<Option<NonFinite>> {
        let mut pairs: Vec<_> = parameters.iter().zip(gradients.iter()).collect();
        pairs.reverse();
        // The head and the last norm come first on the way back, the embedding last.
        pairs.sort_by_key(|(parameter, _)| match layer_of(&parameter.name) {
            Some(layer) => (1, usize::MAX - layer),
            None => (if parameter.name.contains("embeddings") { 2 } else { 0 }, 0),
        });
        for (parameter, gradient) in pairs {
            let Some((_, found)) = gradient.as_ref().map(|gradient| first(gradient, false)).transpose()?.flatten()
            else {
                continue;
            };
            let place = Place { layer: layer_of(&parameter.name), head: None };
            return Ok(Some(NonFinite { what: format!("the gradient of `{}`", parameter.name), place, found }));
        }
        Ok(None)
    }
}

/// Looks at what passes on a tape ([`Tape::watched`](crate::Tape::watched)), in the order of the computation, and keeps
/// the first element that is not finite.
#[derive(Debug, Default)]
pub struct Probe {
    layer: Cell<Option<usize>>,
    found: RefCell<Option<NonFinite>>,
}

impl Probe {
    /// The block that runs now.
    pub(crate) fn layer(&self) -> Option<usize> {
        self.layer.get()
    }

    /// Block `layer` runs from here on.
    pub(crate) fn enter(&self, layer: Option<usize>) {
        self.layer.set(layer);
    }

    /// Looks at an array of block `layer`, with its heads along axis `heads` if it has any. A factor of zero has a
    /// logarithm of −∞, which passes for finite.
    pub(crate) fn look<B: Backend>(
        &self,
        ProbeSite { kind, slot, of, layer, heads }: ProbeSite<'_>,
        array: &Tensor<B>,
    ) -> Result<()> {
        if self.found.borrow().is_some() {
            return Ok(());
        }
        let logarithm = kind.is_empty() && slot.starts_with("log_");
        let Some((index, found)) = first(array, logarithm)? else { return Ok(()) };
        let head = heads.map(|axis| {
            let axes = array.shape().axes();
            index / axes[axis + 1..].iter().product::<usize>() % axes[axis]
        });
        let what = if of.is_empty() { slot.to_owned() } else { format!("{kind}`{slot}` of {of}") };
        *self.found.borrow_mut() = Some(NonFinite { what, place: Place { layer, head }, found });
        Ok(())
    }

    /// What was found.
    pub fn into_non_finite(self) -> Option<NonFinite> {
        self.found.into_inner()
    }
}

/// What is looked at.
#[derive(Clone, Copy)]
pub(crate) struct ProbeSite<'a> {
    /// What precedes the slot's name, such as `the gradient of `.
    pub(crate) kind: &'a str,
    /// The array's name.
    pub(crate) slot: &'a str,
    /// The operation it belongs to.
    pub(crate) of: &'a str,
    /// The block.
    pub(crate) layer: Option<usize>,
    /// The axis of heads.
    pub(crate) heads: Option<usize>,
}

/// Index in row-major order and value of the first element that is not finite; −∞ passes where the array holds
/// logarithms. Copies the array to the host.
pub(crate) fn first<B: Backend>(array: &Tensor<B>, logarithms: bool) -> Result<Option<(usize, f64)>> {
    let fine = |x: f32| x.is_finite() || (logarithms && x == f32::NEG_INFINITY);
    let found = array.to_f32()?.into_iter().enumerate().find(|&(_, x)| !fine(x));
    Ok(found.map(|(index, x)| (index, f64::from(x))))
}

/// The block of a parameter: 1 for `model.layers.1.attn.q_proj.weight`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}
