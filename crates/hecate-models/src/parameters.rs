//! What a model learns, and the gradients of it.

mod adapters;

pub(crate) use adapters::Adapter;

use crate::{Error, Result};
use hecate_core::{
    Backend, DType, Tensor, primitives,
    quantized::{BlockFormat, Quantized},
};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

/// Number of sets of parameters made so far. Each takes one as its identity, which its places carry.
static SETS: AtomicU64 = AtomicU64::new(0);

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

/// Place of a parameter in its [`Parameters`], and in no other ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParameterId {
    set: u64,
    index: usize,
}

impl ParameterId {
    /// Number of parameters added before.
    pub fn index(self) -> usize {
        self.index
    }
}

/// A matrix that was learned and is quantized now: it learns no more.
#[derive(Debug)]
pub struct QuantizedMatrix<B: Backend> {
    /// Name in checkpoints, that of the parameter which it was.
    pub name: String,
    /// Its blocks.
    pub matrix: Quantized<B>,
}

/// Place of a linear map's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixId {
    /// Among what the model learns.
    Learned(ParameterId),
    /// Among what is quantized.
    Quantized(ParameterId),
}

/// All parameters of a model in the order in which they were added, which is that of checkpoints and gradients. Where an adapter
/// learns in the place of a model, these are the adapter's: the model's own are frozen beside them.
///
/// ```
/// use hecate_core::Tensor;
/// use hecate_cpu::Cpu;
/// use hecate_models::{Builder, Init, Parameters, Random, layers::Linear};
///
/// # fn main() -> hecate_models::Result<()> {
/// let (cpu, mut parameters, mut random) = (Cpu::new(), Parameters::new(), Random::new(7));
/// // By hand, or by the builder that layers take, which draws first values.
/// let scale = parameters.add("scale", Tensor::from_f32(&cpu, [1], vec![2.0])?, false);
/// Linear::new(&mut Builder::new(&cpu, &mut parameters, &mut random, 0.02, 1), "head", 4, 3, Init::Normal)?;
/// assert_eq!(parameters.elements(), 1 + 3 * 4);
/// let names: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
/// assert_eq!(names, ["scale", "head.weight"]);
/// assert_eq!(parameters.get(scale)?.value.to_f32()?, [2.0]);
///
/// // A safetensors file, whole or not at all.
/// let file = std::env::temp_dir().join(format!("hecate-parameters-{}.safetensors", std::process::id()));
/// parameters.save(&file)?;
/// parameters.load(&file)?;
/// # std::fs::remove_file(&file).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Parameters<B: Backend> {
    /// Which set it is.
    id: u64,
    /// Arrays that learn no more. Their places come before those of all others.
    frozen: Vec<Parameter<B>>,
    all: Vec<Parameter<B>>,
    quantized: Vec<QuantizedMatrix<B>>,
    /// Places of matrices that products read, tables among them.
    matrices: Vec<usize>,
    /// What is added to frozen matrices, by their places.
    adapters: HashMap<usize, Adapter>,
}

impl<B: Backend> Parameters<B> {
    /// None yet.
    pub fn new() -> Self {
        Self {
            id: SETS.fetch_add(1, Ordering::Relaxed),
            frozen: Vec::new(),
            all: Vec::new(),
            quantized: Vec::new(),
            matrices: Vec::new(),
            adapters: HashMap::new(),
        }
    }

    /// Appends one.
    pub fn add(&mut self, name: impl Into<String>, value: Tensor<B>, decay: bool) -> ParameterId {
        let id = self.next_id();
        self.all.push(Parameter { name: name.into(), value, decay });
        id
    }

    /// Marks a matrix that products read.
    pub(crate) fn mark_matrix(&mut self, id: ParameterId) {
        self.matrices.push(id.index);
    }

    /// Rounds all matrices that products read to this type. What is left learns no more.
    pub(crate) fn round_matrices(&mut self, dtype: DType) -> Result<()> {
        for &index in &self.matrices {
            let Some(parameter) = self.frozen.iter_mut().chain(&mut self.all).nth(index) else { continue };
            parameter.value = primitives::cast(dtype, &parameter.value)?;
        }
        Ok(())
    }

    /// The place of what would be added next.
    pub(crate) fn next_id(&self) -> ParameterId {
        ParameterId { set: self.id, index: self.frozen.len() + self.all.len() }
    }

    /// Appends a quantized matrix.
    pub fn add_quantized(&mut self, name: impl Into<String>, matrix: Quantized<B>) -> MatrixId {
        let id = self.next_matrix();
        self.quantized.push(QuantizedMatrix { name: name.into(), matrix });
        id
    }

    /// The place of what would be quantized next.
    pub(crate) fn next_matrix(&self) -> MatrixId {
        MatrixId::Quantized(ParameterId { set: self.id, index: self.quantized.len() })
    }

    /// The quantized matrix of a [`MatrixId::Quantized`] that these parameters gave.
    pub(crate) fn get_quantized(&self, id: ParameterId) -> Result<&QuantizedMatrix<B>> {
        let own = if id.set == self.id { self.quantized.get(id.index) } else { None };
        let found = || format!("quantized matrix {} of other parameters", id.index);
        own.ok_or_else(|| Error::config("parameter", found(), "a place that these parameters gave"))
    }

    /// Matrices that are quantized, in the order in which they were added; none in a model that learns.
    pub fn quantized(&self) -> &[QuantizedMatrix<B>] {
        &self.quantized
    }

    /// Refuses to learn where matrices are quantized or rounded.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check_learning(&self) -> Result<()> {
        if let Some(quantized) = self.quantized.first() {
            return Err(refuse_learning(quantized.matrix.format()));
        }
        let rounded = self.all.iter().find(|parameter| parameter.value.dtype() != DType::F32);
        rounded.map_or(Ok(()), |Parameter { name, value, .. }| {
            let expected = "f32 where a model learns: rounded weights lose small steps; learn in 32 bits, then round";
            Err(Error::config(name, value.dtype(), expected))
        })
    }

    /// Refuses another number of arrays than there are parameters; `field` names what they are.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check_count(&self, field: &str, found: usize) -> Result<()> {
        check_count(field, found, self.all.len())
    }

    /// The same, to be changed. Names, formats and sizes stay as they are.
    pub(crate) fn quantized_mut(&mut self) -> &mut [QuantizedMatrix<B>] {
        &mut self.quantized
    }

    /// The parameter that [`Parameters::add`] gave this place.
    ///
    /// # Errors
    /// [`Error::Config`] for a place in other parameters.
    pub fn get(&self, id: ParameterId) -> Result<&Parameter<B>> {
        let own = match self.slot(id) {
            Some(slot) => self.all.get(slot),
            None => self.frozen.get(id.index),
        };
        let own = own.filter(|_| id.set == self.id);
        let found = || format!("number {} of other parameters", id.index);
        own.ok_or_else(|| Error::config("parameter", found(), "a place that these parameters gave"))
    }

    /// The number of a parameter among those that learn; none of a frozen one.
    pub(crate) fn slot(&self, id: ParameterId) -> Option<usize> {
        id.index.checked_sub(self.frozen.len())
    }

    /// The places of all, in order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ParameterId> + use<B> {
        let (set, first) = (self.id, self.frozen.len());
        (0..self.all.len()).map(move |slot| ParameterId { set, index: first + slot })
    }

    /// All, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Parameter<B>> {
        self.all.iter()
    }

    /// All, in order, to be changed. Names and shapes stay as they are.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Parameter<B>> {
        self.all.iter_mut()
    }

    /// Number of arrays.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Elements of all arrays together, quantized and frozen ones too.
    pub fn elements(&self) -> usize {
        let quantized: usize = self.quantized.iter().map(|x| x.matrix.rows() * x.matrix.columns()).sum();
        let all = self.frozen.iter().chain(&self.all);
        quantized + all.map(|parameter| parameter.value.shape().count()).sum::<usize>()
    }
}

impl<B: Backend> Default for Parameters<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// Gradients in the order of the [`Parameters`]; none for a parameter that the loss does not depend on.
#[derive(Debug)]
pub struct Gradients<B: Backend> {
    /// Which set the parameters are, and how many of it are frozen; none where a user put the gradients together.
    set: Option<(u64, usize)>,
    all: Vec<Option<Tensor<B>>>,
}

impl<B: Backend> Gradients<B> {
    /// One a parameter, in order.
    pub fn new(gradients: Vec<Option<Tensor<B>>>) -> Self {
        Self { set: None, all: gradients }
    }

    /// As [`Gradients::new`], by these parameters and no others.
    pub(crate) fn by(parameters: &Parameters<B>, gradients: Vec<Option<Tensor<B>>>) -> Self {
        Self { set: Some((parameters.id, parameters.frozen.len())), all: gradients }
    }

    /// The gradient of one parameter; none for a place in other parameters than a tape took them by.
    pub fn get(&self, id: ParameterId) -> Option<&Tensor<B>> {
        let (set, frozen) = self.set.unwrap_or((id.set, 0));
        self.all.get(id.index.checked_sub(frozen)?).filter(|_| set == id.set)?.as_ref()
    }

    /// All, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Option<Tensor<B>>> {
        self.all.iter()
    }

    /// All, in order, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Option<Tensor<B>>> {
        self.all.iter_mut()
    }

    /// Adds the gradients of another loss by the same parameters.
    ///
    /// # Errors
    /// [`Error::Config`] for another number of gradients; gradients of other shapes; the device's own failures.
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        check_count("gradients", other.all.len(), self.all.len())?;
        for (sum, term) in self.all.iter_mut().zip(other.all) {
            add_to(sum, term)?;
        }
        Ok(())
    }
}

/// Refuses another number of arrays than there are parameters.
pub(crate) fn check_count(field: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::config(field, format!("{found} arrays"), format!("{expected}, one a parameter")))
}

/// The error of learning with quantized weights.
pub(crate) fn refuse_learning(format: BlockFormat) -> Error {
    let expected = "none where a model learns: quantized weights have no gradient; learn in 32 bits, then quantize";
    Error::config("quantization", format, expected)
}

/// Adds a term to a sum; either may be none, which stands for zeros.
pub(crate) fn add_to<B: Backend>(sum: &mut Option<Tensor<B>>, term: Option<Tensor<B>>) -> hecate_core::Result<()> {
    *sum = match (sum.take(), term) {
        (Some(a), Some(b)) => Some(primitives::add(&a, &b)?),
        (a, b) => a.or(b),
    };
    Ok(())
}
