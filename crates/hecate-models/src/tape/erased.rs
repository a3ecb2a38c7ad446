//! A rule behind a pointer, with its arrays by position.
//!
//! What a tape does with a memory is the same for every rule. Through a pointer it is compiled once a backend, and not once
//! for each of its rules. A call by pointer is nothing beside the kernels that it starts.

use hecate_core::{
    Backend, Forward, Inputs, Kernel, Outputs, Pass, Result, Rule, Slots, Tensor, forward, forward_packed, infer,
    infer_packed,
};

/// A rule with its options, whatever rule it is, on one backend. Inputs are in the order q, k, v, gates, state, and the
/// anchor where there is one; outputs in the order out, state.
pub(crate) trait ErasedRule<B: Backend> {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Names of the inputs, those of the anchor last.
    fn input_names(&self) -> Vec<&'static str>;

    /// Names of the state's slots.
    fn state_names(&self) -> &'static [&'static str];

    /// Names of the anchor's slots.
    fn anchor_names(&self) -> &'static [&'static str];

    /// [`forward`], or [`forward_packed`] where there are lengths.
    fn forward(&self, device: &B, lengths: Option<&[usize]>, inputs: Vec<Tensor<B>>) -> Result<ErasedForward<B>>;

    /// [`infer`], or [`infer_packed`] where there are lengths.
    fn infer(&self, device: &B, lengths: Option<&[usize]>, inputs: Vec<Tensor<B>>) -> Result<Vec<Tensor<B>>>;
}

/// What a forward gives.
pub(crate) struct ErasedForward<B: Backend> {
    pub(crate) outputs: Vec<Tensor<B>>,
    pub(crate) pass: Box<dyn ErasedPass<B>>,
}

/// A [`Pass`] of any rule.
pub(crate) trait ErasedPass<B: Backend> {
    /// Gradients of the inputs, from those of the outputs.
    fn backward(self: Box<Self>, grads: Vec<Tensor<B>>) -> Result<Vec<Tensor<B>>>;
}

impl<B: Backend + Kernel<R>, R: Rule> ErasedRule<B> for R {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn input_names(&self) -> Vec<&'static str> {
        [&["q", "k", "v"], R::Gates::NAMES, R::State::NAMES, R::Anchor::NAMES].concat()
    }

    fn state_names(&self) -> &'static [&'static str] {
        R::State::NAMES
    }

    fn anchor_names(&self) -> &'static [&'static str] {
        R::Anchor::NAMES
    }

    fn forward(&self, device: &B, lengths: Option<&[usize]>, inputs: Vec<Tensor<B>>) -> Result<ErasedForward<B>> {
        let inputs = inputs_of(inputs);
        let Forward { outputs, pass } = match lengths {
            Some(lengths) => forward_packed(device, *self, lengths, inputs)?,
            None => forward(device, *self, inputs)?,
        };
        Ok(ErasedForward { outputs: output_list(outputs), pass: Box::new(pass) })
    }

    fn infer(&self, device: &B, lengths: Option<&[usize]>, inputs: Vec<Tensor<B>>) -> Result<Vec<Tensor<B>>> {
        let inputs = inputs_of(inputs);
        let outputs = match lengths {
            Some(lengths) => infer_packed(device, *self, lengths, &inputs)?,
            None => infer(device, *self, &inputs)?,
        };
        Ok(output_list(outputs))
    }
}

impl<B: Backend + Kernel<R>, R: Rule> ErasedPass<B> for Pass<B, R> {
    fn backward(self: Box<Self>, grads: Vec<Tensor<B>>) -> Result<Vec<Tensor<B>>> {
        Ok(input_list(Pass::backward(*self, outputs_of(grads))?))
    }
}

/// Inputs by position.
pub(super) fn input_list<R: Rule, T>(Inputs { q, k, v, gates, state, anchor }: Inputs<R, T>) -> Vec<T> {
    let mut list = vec![q, k, v];
    list.extend(R::Gates::into_vec(gates));
    list.extend(R::State::into_vec(state));
    list.extend(anchor.into_iter().flat_map(R::Anchor::into_vec));
    list
}

/// Outputs by position.
fn output_list<R: Rule, T>(Outputs { out, state }: Outputs<R, T>) -> Vec<T> {
    let mut list = vec![out];
    list.extend(R::State::into_vec(state));
    list
}

/// The way back of [`input_list`].
fn inputs_of<R: Rule, T>(list: Vec<T>) -> Inputs<R, T> {
    let anchored = list.len() > 3 + R::Gates::NAMES.len() + R::State::NAMES.len();
    let mut list = list.into_iter();
    // As many as `input_names`, with the anchor or without: lists come from inputs of the same rule.
    let mut next = || list.next().expect("an array for every input");
    let [q, k, v] = std::array::from_fn(|_| next());
    let (gates, state) = (R::Gates::build(|_| next()), R::State::build(|_| next()));
    Inputs { q, k, v, gates, state, anchor: anchored.then(|| R::Anchor::build(|_| next())) }
}

/// The way back of [`output_list`].
pub(super) fn outputs_of<R: Rule, T>(list: Vec<T>) -> Outputs<R, T> {
    let mut list = list.into_iter();
    let mut next = || list.next().expect("an array for every output");
    Outputs { out: next(), state: R::State::build(|_| next()) }
}
