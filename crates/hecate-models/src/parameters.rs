//! What a model learns, and the gradients of it.

use crate::Result;
use hecate_core::{Backend, Tensor, primitives};

/// One learned array.
#[derive(Debug)]
pub struct Parameter<B: Backend> {
    /// Name in checkpoints, as Hugging Face models write it: `model.layers.0.attn.q_proj.weight`.
    pub name: String,
    /// Its value, 32-bit floats.
    pub value: Tensor<B>,
    /// Whether weight decay pulls at it: matrices of projections, convolutions included; not norms, biases, constants
    /// of gates and embeddings.
    pub decay: bool,
}

/// Place of a parameter in its [`Parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParameterId(usize);

impl ParameterId {
    /// Number of parameters added before.
    pub fn index(self) -> usize {
        self.0
    }
}

/// All parameters of a model in the order in which they were added, which is that of checkpoints and gradients.
#[derive(Debug)]
pub struct Parameters<B: Backend>(Vec<Parameter<B>>);

impl<B: Backend> Parameters<B> {
    /// None yet.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends one.
    pub fn add(&mut self, name: impl Into<String>, value: Tensor<B>, decay: bool) -> ParameterId {
        self.0.push(Parameter { name: name.into(), value, decay });
        ParameterId(self.0.len() - 1)
    }

    /// The parameter that [`Parameters::add`] gave this place.
    ///
    /// # Panics
    /// If the place is that of another, larger set of parameters.
    pub fn get(&self, id: ParameterId) -> &Parameter<B> {
        &self.0[id.0]
    }

    /// All, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Parameter<B>> {
        self.0.iter()
    }

    /// All, in order, to be changed. Names and shapes stay as they are.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Parameter<B>> {
        self.0.iter_mut()
    }

    /// Number of arrays.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Elements of all arrays together.
    pub fn elements(&self) -> usize {
        self.0.iter().map(|parameter| parameter.value.shape().count()).sum()
    }
}

impl<B: Backend> Default for Parameters<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// Gradients in the order of the [`Parameters`]; none for a parameter that the loss does not depend on.
#[derive(Debug)]
pub struct Gradients<B: Backend>(Vec<Option<Tensor<B>>>);

impl<B: Backend> Gradients<B> {
    /// One a parameter, in order.
    pub fn new(gradients: Vec<Option<Tensor<B>>>) -> Self {
        Self(gradients)
    }

    /// The gradient of one parameter.
    pub fn get(&self, id: ParameterId) -> Option<&Tensor<B>> {
        self.0.get(id.0)?.as_ref()
    }

    /// All, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Option<Tensor<B>>> {
        self.0.iter()
    }

    /// All, in order, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Option<Tensor<B>>> {
        self.0.iter_mut()
    }

    /// Adds the gradients of another loss by the same parameters.
    ///
    /// # Errors
    /// Gradients of other shapes; the device's own failures.
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        for (sum, term) in self.0.iter_mut().zip(other.0) {
            add_to(sum, term)?;
        }
        Ok(())
    }
}

/// Adds a term to a sum; either may be none, which stands for zeros.
pub(crate) fn add_to<B: Backend>(sum: &mut Option<Tensor<B>>, term: Option<Tensor<B>>) -> hecate_core::Result<()> {
    *sum = match (sum.take(), term) {
        (Some(a), Some(b)) => Some(primitives::add(&a, &b)?),
        (a, b) => a.or(b),
    };
    Ok(())
}
