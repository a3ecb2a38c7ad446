//! What a rule is.

use crate::{DType, Device, Error, GateSlots, Of, Result, Sequences, Shape, Slots, Tensor};
use std::fmt::{self, Debug};

/// How a memory is written and read.
///
/// The value carries the rule's constants and options; gates are data. Adding a row to the matrix is implementing
/// this trait, naming it in `rule_list!`, and one [`Kernel`](crate::Kernel) a backend.
pub trait Rule: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Name in messages, tables, configurations and test names.
    const NAME: &'static str;
    /// Which [family](crate::families) the rule is of, and so which engine of a backend runs it.
    type Family;
    /// What is told at every step beside q, k and v.
    type Gates: GateSlots;
    /// What is remembered between steps.
    type State: Slots;
    /// Where a memory can be told to go back to as it forgets ([`Inputs::anchor`]): a slot for each of the first slots of
    /// the state. [`NoSlots`](crate::NoSlots) where forgetting leads to zero, whatever a caller says.
    type Anchor: Slots;

    /// Shapes of the gates: one number a token and head each, where the rule says nothing else.
    fn gates(self, dims: &Dims) -> Of<Self::Gates, Shape> {
        Self::Gates::build(|_| dims.scalars())
    }

    /// Shapes of the state: one matrix a sequence and head each, where the rule says nothing else.
    fn state(self, dims: &Dims) -> Of<Self::State, Shape> {
        Self::State::build(|_| dims.matrices())
    }

    /// Shapes of the anchor: those of the state's first slots, without the axis of the sequences.
    fn anchor(self, dims: &Dims) -> Of<Self::Anchor, Shape> {
        let mut states = Self::State::into_vec(self.state(dims)).into_iter();
        Self::Anchor::build(|_| states.next().map_or_else(|| dims.matrices(), |state| state.axes()[1..].into()))
    }

    /// What a memory that has read nothing is filled with. Layers learn every slot that is not [`Initial::Zeros`].
    fn initial(self, _dims: &Dims) -> Of<Self::State, Initial> {
        Self::State::build(|_| Initial::Zeros)
    }

    /// Where the rule has the option [`Rule::frozen`].
    fn frozen_option(&mut self) -> Option<&mut Option<u32>> {
        None
    }

    /// Groups of this many tokens share one gradient point; none where the rule is exact.
    fn frozen(mut self) -> Option<u32> {
        self.frozen_option().and_then(|own| *own)
    }

    /// The rule with such groups, or exact; unchanged where its gradient does not see the memory.
    fn with_frozen(mut self, frozen: Option<u32>) -> Self {
        if let Some(own) = self.frozen_option() {
            *own = frozen;
        }
        self
    }

    /// Whether a call without an anchor is refused, since the rule reads more of it than where forgetting leads.
    fn needs_anchor(self) -> bool {
        false
    }

    /// Refuses options that make no sense, alone or with these dimensions.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    fn check(self, _dims: &Dims) -> Result<()> {
        Ok(())
    }
}

/// How a slot of a fresh memory is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Zeros.
    Zeros,
    /// One number everywhere.
    Constant(f32),
    /// Independent normal numbers of this standard deviation: memories that zeros would leave where they are.
    Normal(f32),
    /// Rows of random directions and unit norm.
    Unit,
}

/// When a token reads the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Read {
    /// After its own write: `y_t = q_t M_t` (Titans, MIRAS, Atlas, DeltaNet).
    #[default]
    After,
    /// Before its own write: `y_t = q_t M_{t−1}` (HOPE).
    Before,
}

/// Sizes of one call, the same for every rule and backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dims {
    /// `B`: first axis of the token arrays.
    pub batch: usize,
    /// `T`: second axis of the token arrays.
    pub tokens: usize,
    /// `H`.
    pub heads: usize,
    /// `K`: width of a query and of a key.
    pub key: usize,
    /// `V`: width of a value and of an output.
    pub value: usize,
    /// How the `B × T` rows split into sequences.
    pub sequences: Sequences,
    /// Whether there is an anchor that memories go back to as they forget.
    pub anchored: bool,
}

impl Dims {
    /// A batch of `batch` sequences of `tokens` tokens each.
    ///
    /// Products over `usize::MAX` stay there, and fit no array: [`forward`](crate::forward) refuses them.
    pub fn new(batch: usize, tokens: usize, heads: usize, key: usize, value: usize) -> Self {
        Self { batch, tokens, heads, key, value, sequences: Sequences::batch(batch, tokens), anchored: false }
    }

    /// Sequences of these lengths packed into one row of tokens: `B = 1`, `T` their sum, one state a sequence.
    pub fn packed(lengths: &[usize], heads: usize, key: usize, value: usize) -> Self {
        let sequences = Sequences::packed(lengths);
        Self { batch: 1, tokens: sequences.rows(), heads, key, value, sequences, anchored: false }
    }

    /// Shape of `q` and `k`: `[B,T,H,K]`.
    pub fn keys(&self) -> Shape {
        [self.batch, self.tokens, self.heads, self.key].into()
    }

    /// Shape of `v` and `out`: `[B,T,H,V]`.
    pub fn values(&self) -> Shape {
        [self.batch, self.tokens, self.heads, self.value].into()
    }

    /// Shape of a gate with one number per token and head: `[B,T,H]`.
    pub fn scalars(&self) -> Shape {
        [self.batch, self.tokens, self.heads].into()
    }

    /// Shape of a state with one matrix per sequence and head: `[N,H,K,V]`.
    pub fn matrices(&self) -> Shape {
        [self.sequences.count(), self.heads, self.key, self.value].into()
    }
}

/// Arguments of a rule, and, filled with gradients, what a backward returns.
pub struct Inputs<R: Rule, T> {
    /// Queries `[B,T,H,K]`.
    pub q: T,
    /// Keys `[B,T,H,K]`.
    pub k: T,
    /// Values `[B,T,H,V]`.
    pub v: T,
    /// Gates.
    pub gates: Of<R::Gates, T>,
    /// State before the first token of each sequence.
    pub state: Of<R::State, T>,
    /// What memories go back to as they forget, one a head for all sequences, whatever state they begin with; none where
    /// they forget to zero. With an anchor `B`, what a token finds of a state `X` is `B + a (X − B)` in place of `a X`.
    /// The gradient is taken at `X` all the same.
    pub anchor: Option<Of<R::Anchor, T>>,
}

/// Results of a rule, and, filled with gradients, what a backward takes.
pub struct Outputs<R: Rule, T> {
    /// What was read `[B,T,H,V]`.
    pub out: T,
    /// State after the last token of each sequence.
    pub state: Of<R::State, T>,
}

impl<R: Rule, T> Inputs<R, T> {
    /// Makes each from its shape and element type in a call of these sizes, in the order of [`Inputs::list`]. Queries, keys
    /// and values have elements of `dtype`.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_build<E, F>(rule: R, dims: &Dims, dtype: DType, mut make: F) -> Result<Self, E>
    where
        F: FnMut(Shape, DType) -> Result<T, E>,
    {
        Ok(Self {
            q: make(dims.keys(), dtype)?,
            k: make(dims.keys(), dtype)?,
            v: make(dims.values(), dtype)?,
            gates: R::Gates::try_map(rule.gates(dims), |_, shape| make(shape, DType::F32))?,
            state: R::State::try_map(rule.state(dims), |_, shape| make(shape, DType::F32))?,
            anchor: dims
                .anchored
                .then(|| R::Anchor::try_map(rule.anchor(dims), |_, shape| make(shape, DType::F32)))
                .transpose()?,
        })
    }

    /// Names and contents in the order q, k, v, gates, state.
    pub fn list(&self) -> Vec<(&'static str, &T)> {
        let mut all = vec![("q", &self.q), ("k", &self.k), ("v", &self.v)];
        all.extend(R::Gates::list(&self.gates));
        all.extend(R::State::list(&self.state));
        all.extend(self.anchor.iter().flat_map(R::Anchor::list));
        all
    }

    /// Applies `f` to each, in the order of [`Inputs::list`].
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<U, E>(self, mut f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Inputs<R, U>, E> {
        Ok(Inputs {
            q: f("q", self.q)?,
            k: f("k", self.k)?,
            v: f("v", self.v)?,
            gates: R::Gates::try_map(self.gates, &mut f)?,
            state: R::State::try_map(self.state, &mut f)?,
            anchor: self.anchor.map(|anchor| R::Anchor::try_map(anchor, &mut f)).transpose()?,
        })
    }

    /// As [`Inputs::try_map`], where nothing can fail.
    pub fn map<U>(self, mut f: impl FnMut(&'static str, T) -> U) -> Inputs<R, U> {
        Inputs {
            q: f("q", self.q),
            k: f("k", self.k),
            v: f("v", self.v),
            gates: R::Gates::map(self.gates, &mut f),
            state: R::State::map(self.state, &mut f),
            anchor: self.anchor.map(|anchor| R::Anchor::map(anchor, &mut f)),
        }
    }

    /// References to the contents: `inputs.as_ref().map(..)` leaves `inputs` as they are.
    pub fn as_ref(&self) -> Inputs<R, &T> {
        let (gates, state) = (R::Gates::as_ref(&self.gates), R::State::as_ref(&self.state));
        Inputs { q: &self.q, k: &self.k, v: &self.v, gates, state, anchor: self.anchor.as_ref().map(R::Anchor::as_ref) }
    }

    /// What both have in each slot, as pairs.
    pub fn zip<U>(self, other: Inputs<R, U>) -> Inputs<R, (T, U)> {
        Inputs {
            q: (self.q, other.q),
            k: (self.k, other.k),
            v: (self.v, other.v),
            gates: R::Gates::zip(self.gates, other.gates),
            state: R::State::zip(self.state, other.state),
            anchor: self.anchor.zip(other.anchor).map(|(one, other)| R::Anchor::zip(one, other)),
        }
    }
}

impl<R: Rule, T> Outputs<R, T> {
    /// As [`Inputs::try_build`]; what was read has elements of `dtype`.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn try_build<E, F>(rule: R, dims: &Dims, dtype: DType, mut make: F) -> Result<Self, E>
    where
        F: FnMut(Shape, DType) -> Result<T, E>,
    {
        let out = make(dims.values(), dtype)?;
        Ok(Self { out, state: R::State::try_map(rule.state(dims), |_, shape| make(shape, DType::F32))? })
    }

    /// Names and contents in the order out, state.
    pub fn list(&self) -> Vec<(&'static str, &T)> {
        let mut all = vec![("out", &self.out)];
        all.extend(R::State::list(&self.state));
        all
    }

    /// Applies `f` to each, in the order of [`Outputs::list`].
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<U, E>(self, mut f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Outputs<R, U>, E> {
        Ok(Outputs { out: f("out", self.out)?, state: R::State::try_map(self.state, &mut f)? })
    }

    /// As [`Outputs::try_map`], where nothing can fail.
    pub fn map<U>(self, mut f: impl FnMut(&'static str, T) -> U) -> Outputs<R, U> {
        Outputs { out: f("out", self.out), state: R::State::map(self.state, &mut f) }
    }

    /// As [`Inputs::as_ref`].
    pub fn as_ref(&self) -> Outputs<R, &T> {
        Outputs { out: &self.out, state: R::State::as_ref(&self.state) }
    }

    /// As [`Inputs::zip`].
    pub fn zip<U>(self, other: Outputs<R, U>) -> Outputs<R, (T, U)> {
        Outputs { out: (self.out, other.out), state: R::State::zip(self.state, other.state) }
    }
}

impl<R: Rule, T: Clone> Clone for Inputs<R, T> {
    fn clone(&self) -> Self {
        self.as_ref().map(|_, x| x.clone())
    }
}

impl<R: Rule, T: Clone> Clone for Outputs<R, T> {
    fn clone(&self) -> Self {
        self.as_ref().map(|_, x| x.clone())
    }
}

impl<R: Rule, T: Debug> Debug for Inputs<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.list()).finish()
    }
}

impl<R: Rule, T: Debug> Debug for Outputs<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.list()).finish()
    }
}

impl<R: Rule, D: Device> Inputs<R, Tensor<D>> {
    /// Sizes of this call; `lengths` packs several sequences into one row of tokens.
    ///
    /// # Errors
    /// Whatever does not fit: rank, shape, element type, empty axes, options; arrays of two devices.
    pub fn dims(&self, rule: R, lengths: Option<&[usize]>) -> Result<Dims> {
        let what = R::NAME;
        let rank = |slot, x: &Tensor<D>| match *x.shape().axes() {
            [b, t, h, d] if x.shape().count() > 0 => Ok((b, t, h, d)),
            [_, _, _, _] => Err(Error::Empty { what, slot, found: x.shape().clone() }),
            _ => Err(Error::Rank { what, slot, expected: "4 ([B,T,H,width])", found: x.shape().clone() }),
        };
        let (batch, tokens, heads, key) = rank("q", &self.q)?;
        let (.., value) = rank("v", &self.v)?;
        let sequences = match lengths {
            None => Sequences::batch(batch, tokens),
            Some(lengths) => Sequences::packed(lengths),
        };
        if lengths.is_some() && batch != 1 {
            let expected = [1, batch * tokens, heads, key].into();
            return Err(Error::Shape { what, slot: "q", expected, found: self.q.shape().clone() });
        }
        sequences.check(what, "q", self.q.shape())?;
        let dims = Dims { batch, tokens, heads, key, value, sequences, anchored: self.anchor.is_some() };
        if dims.anchored && R::Anchor::NAMES.is_empty() {
            let expected = "none: what this memory forgets goes to zero";
            return Err(Error::Config { what, option: "anchor", found: "an anchor".into(), expected });
        }
        rule.check(&dims)?;
        let expected = Inputs::<R, _>::try_build(rule, &dims, self.q.dtype(), |shape, _| Ok::<_, Error>(shape))?;
        check_slots(what, self.q.device(), &self.list(), &expected.list(), 3, self.q.dtype())?;
        Ok(dims)
    }
}

impl<R: Rule, D: Device> Outputs<R, Tensor<D>> {
    /// Refuses gradients that do not have the shapes of this call's results, or lie elsewhere than on `device`; `dtype` is
    /// that of `out`.
    pub(crate) fn check(&self, rule: R, device: &D, dims: &Dims, dtype: DType) -> Result<()> {
        let expected = Outputs::<R, _>::try_build(rule, dims, dtype, |shape, _| Ok::<_, Error>(shape))?;
        check_slots(R::NAME, device, &self.list(), &expected.list(), 1, dtype)
    }
}

/// All slots lie on `device`; the first `tokens` hold `dtype` (16 or 32 bits), the rest 32-bit floats.
pub(crate) fn check_slots<D: Device>(
    what: &'static str,
    device: &D,
    found: &[(&'static str, &Tensor<D>)],
    expected: &[(&'static str, &Shape)],
    tokens: usize,
    dtype: DType,
) -> Result<()> {
    for (i, (&(slot, tensor), &(_, shape))) in found.iter().zip(expected).enumerate() {
        tensor.check_device(device, what, slot)?;
        if tensor.shape() != shape {
            return Err(Error::Shape { what, slot, expected: shape.clone(), found: tensor.shape().clone() });
        }
        let (fits, expected) = if i < tokens {
            (tensor.dtype() == dtype && dtype.is_float(), "the same float type as `q`")
        } else {
            (tensor.dtype() == DType::F32, "f32")
        };
        if !fits {
            return Err(Error::DType { what, slot, expected, found: tensor.dtype() });
        }
    }
    Ok(())
}

/// Refuses to read before the write where memories go back to an anchor: what is read would be neither of the two.
pub(crate) fn check_read(what: &'static str, read: Read, dims: &Dims) -> Result<()> {
    if read == Read::After || !dims.anchored {
        return Ok(());
    }
    let expected = "`after`, since an anchor stands between the state before the write and the write";
    Err(Error::Config { what, option: "read", found: "`before`, with an anchor".into(), expected })
}

/// Refuses groups of no tokens.
pub(crate) fn check_frozen(what: &'static str, frozen: Option<u32>) -> Result<()> {
    if frozen != Some(0) {
        return Ok(());
    }
    Err(Error::Config { what, option: "frozen", found: "0".into(), expected: "groups of at least one token" })
}
