//! Frozen parameters, and adapters: what is added to a frozen matrix.

use super::{ParameterId, Parameters};
use crate::{Error, Parameter, Result};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self, Transpose},
};

/// `s B A`, which is added to a frozen `W [outputs, inputs]`: `A [r, inputs]` and `B [outputs, r]` learn in its place. Several
/// matrices may share one `A`. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adapter {
    /// `A`, from the inputs to the rank.
    pub(crate) a: ParameterId,
    /// `B`, from the rank to the outputs.
    pub(crate) b: ParameterId,
    /// `s`.
    pub(crate) scale: f32,
}

impl<B: Backend> Parameters<B> {
    /// From here on, what there is learns no more. Its places stay as they are.
    pub(crate) fn freeze(&mut self) {
        self.frozen.append(&mut self.all);
    }

    /// Frozen arrays, in order.
    pub(crate) fn frozen(&self) -> &[Parameter<B>] {
        &self.frozen
    }

    /// Adds `s B A` to products with this matrix from here on.
    pub(crate) fn adapt(&mut self, matrix: ParameterId, adapter: Adapter) {
        self.adapters.insert(matrix.index, adapter);
    }

    /// What is added to this matrix.
    pub(crate) fn adapter(&self, matrix: ParameterId) -> Option<Adapter> {
        self.adapters.get(&matrix.index).copied()
    }

    /// Adds every adapter to its matrix. Adapters are gone then, and what was frozen learns again.
    ///
    /// # Errors
    /// [`Error::Config`] for a matrix that was rounded; the device's own failures. All is then as it was.
    pub(crate) fn merge(&mut self) -> Result<()> {
        let mut merged = Vec::new();
        for (&index, &Adapter { a, b, scale }) in &self.adapters {
            let Parameter { name, value, .. } = &self.frozen[index];
            if value.dtype() != DType::F32 {
                let expected = "f32: what was rounded to learn beside is read once more to be merged";
                return Err(Error::config(name, value.dtype(), expected));
            }
            let [a, b] = [self.get(a)?, self.get(b)?].map(|parameter| &parameter.value);
            let product = primitives::matmul(b, a, Transpose::default())?;
            merged.push((index, primitives::add(value, &primitives::scale(scale, &product)?)?));
        }
        merged.into_iter().for_each(|(index, value): (usize, Tensor<B>)| self.frozen[index].value = value);
        self.adapters.clear();
        self.all = std::mem::take(&mut self.frozen);
        Ok(())
    }
}
