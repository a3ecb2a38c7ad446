//! Linear maps whose products take factors of 8 bits.
//!
//! Source: Micikevicius and others, "FP8 Formats for Deep Learning". Activations and weights are rounded to e4m3, gradients to
//! e5m2. Each pass notes the largest magnitude of every factor, of which whoever trains makes the scales of later passes.

use super::{Tape, Var};
use crate::{ParameterId, Result};
use hecate_core::{
    Backend, DType, Tensor,
    primitives::{self as p, FP8_ALIGNED, Fp8, Fp8Factor, Transpose},
};
use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

/// What is rounded where a linear map is gone through, forward and backward: its kinds, in the order of [`Fp8Found`]'s arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// What goes into the map.
    Input,
    /// Its weight.
    Weight,
    /// The gradient of what comes out.
    Gradient,
}

impl FactorKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Input, Self::Weight, Self::Gradient];

    /// What they are rounded to.
    pub fn format(self) -> Fp8 {
        match self {
            Self::Input | Self::Weight => Fp8::E4M3,
            Self::Gradient => Fp8::E5M2,
        }
    }

    /// The place of this factor of the map with the weight at `parameter`, in arrays `[parameters · 3]`.
    pub fn index(self, parameter: usize) -> usize {
        parameter * Self::ALL.len() + self as usize
    }
}

/// Products of a pass that have factors of 8 bits.
#[derive(Debug)]
pub(crate) struct Fp8Pass<B: Backend> {
    /// Scales of the factors, `[parameters · 3]`. Without them every factor is rounded by its own maximum.
    scales: Option<Tensor<B>>,
    /// The largest magnitudes of the factors so far, `[parameters · 3]`; 0 where there is no product.
    maxima: Tensor<B>,
    /// Places of weights whose products stay at 16 bits.
    unaligned: RefCell<BTreeSet<usize>>,
}

/// What a pass with factors of 8 bits found.
#[derive(Debug)]
pub struct Fp8Found<B: Backend> {
    /// The largest magnitudes of the factors, `[parameters · 3]`.
    pub maxima: Tensor<B>,
    /// Places of weights whose products stayed at 16 bits, since 16 does not divide all of their sizes.
    pub unaligned: Vec<usize>,
}

impl<B: Backend> Fp8Pass<B> {
    /// A pass over so many parameters that is about to begin.
    pub(crate) fn new(device: &B, parameters: usize, scales: Option<Tensor<B>>) -> Result<Rc<Self>> {
        let maxima = Tensor::zeros(device, [parameters * FactorKind::ALL.len()], DType::F32)?;
        Ok(Rc::new(Self { scales, maxima, unaligned: RefCell::default() }))
    }

    /// What it found.
    pub(crate) fn found(&self) -> Fp8Found<B> {
        Fp8Found { maxima: self.maxima.clone(), unaligned: self.unaligned.borrow().iter().copied().collect() }
    }

    /// A factor of the map with this weight.
    fn factor<'a>(&'a self, x: &'a Tensor<B>, kind: FactorKind, id: ParameterId) -> Fp8Factor<'a, B> {
        let index = kind.index(id.index());
        let scale = self.scales.as_ref().map(|scales| (scales, index));
        Fp8Factor { x, format: kind.format(), scale, maximum: Some((&self.maxima, index)) }
    }
}

/// The same factor, met before in this pass: its maximum is noted already.
fn again<B: Backend>(factor: Fp8Factor<'_, B>) -> Fp8Factor<'_, B> {
    Fp8Factor { maximum: None, ..factor }
}

impl<B: Backend> Tape<'_, B> {
    /// The same tape, whose linear maps take part in this pass.
    pub(crate) fn with_fp8(self, pass: Option<Rc<Fp8Pass<B>>>) -> Self {
        Self { fp8: pass, ..self }
    }

    /// The pass that linear maps take part in.
    pub(crate) fn fp8(&self) -> Option<&Rc<Fp8Pass<B>>> {
        self.fp8.as_ref()
    }

    /// `x Wᵀ` with `x [.., K]` and the weight `W [N, K]` at `id`: of 8-bit factors where the tape says so and 16 divides all
    /// sizes, else as [`Tape::matmul`].
    ///
    /// # Errors
    /// As the primitives.
    pub(crate) fn linear(&self, x: &Var<B>, weight: &Var<B>, id: ParameterId) -> Result<Var<B>> {
        let Some(pass) = self.fp8.as_ref().filter(|_| self.follows(&[x, weight])) else {
            return self.matmul(x, weight, Transpose { a: false, b: true });
        };
        let (shape, [outputs, inputs]) = (x.value.shape(), [0, 1].map(|axis| weight.axes()[axis]));
        let rows = shape.count() / inputs.max(1);
        if [rows, outputs, inputs].iter().any(|size| !size.is_multiple_of(FP8_ALIGNED)) {
            pass.unaligned.borrow_mut().insert(id.index());
            return self.matmul(x, weight, Transpose { a: false, b: true });
        }
        self.check()?;
        let flat = x.value.reshape([rows, inputs])?;
        let factors = (pass.factor(&flat, FactorKind::Input, id), pass.factor(&weight.value, FactorKind::Weight, id));
        let y = p::fp8_matmul(factors.0, factors.1, Transpose { a: false, b: true })?;
        let y = y.reshape([&shape.axes()[..shape.rank() - 1], &[outputs]].concat())?;
        let (pass, x, weight) = (Rc::clone(pass), x.clone(), weight.clone());
        Ok(self.push_one(y, move |dy, slots| {
            let dy = dy.reshape([rows, outputs])?;
            let gradient = pass.factor(&dy, FactorKind::Gradient, id);
            if x.slot.is_some() {
                let weight = again(pass.factor(&weight.value, FactorKind::Weight, id));
                let dx = p::fp8_matmul(gradient, weight, Transpose::default())?;
                slots.add(x.slot, dx.reshape(x.value.shape().clone())?)?;
            }
            let input = again(pass.factor(&flat, FactorKind::Input, id));
            // The gradient is noted a second time where `x` wants one: the same number.
            let dweight = p::fp8_matmul(gradient, input, Transpose { a: true, b: false })?;
            slots.add(weight.slot, dweight)
        }))
    }
}
