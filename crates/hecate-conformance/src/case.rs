//! Arguments of a rule on the host, and how a device is asked what it makes of them.

use crate::{
    Array, Comparison, Random, error,
    oracle::{Forgetting, Oracle},
};
use hecate_core::{
    DType, Device, Dims, Forward, Initial, Inputs, Kernel, Of, Outputs, Result, Rule, Sequences, Shape, Slots, Tensor,
    forward, forward_packed, infer, infer_packed,
};
use std::fmt;

/// Rounding moves a number of about 1 by less than this over the tokens of a case.
const JUMP: f64 = 1e-6;
/// Draws of a case, at most.
const DRAWS: u64 = 16;

/// Sizes of a batch.
///
/// Queries and keys are `[B,T,H,K]`, values and outputs `[B,T,H,V]`; every axis is at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// `B`.
    pub batch: usize,
    /// `T`.
    pub tokens: usize,
    /// `H`.
    pub heads: usize,
    /// `K`.
    pub key: usize,
    /// `V`.
    pub value: usize,
}

impl Sizes {
    /// `B, T, H, K, V`.
    pub const fn new(batch: usize, tokens: usize, heads: usize, key: usize, value: usize) -> Self {
        Self { batch, tokens, heads, key, value }
    }
}

/// One call of a rule: arguments, and gradients of its results. All values are 32-bit floats.
///
/// Gradients are drawn like any other argument: a backward is linear in them, so one draw tests it.
#[derive(Debug)]
pub struct Case<R: Rule> {
    /// The rule with its options.
    pub rule: R,
    /// Sizes.
    pub dims: Dims,
    /// Lengths, where sequences are packed.
    pub lengths: Option<Vec<usize>>,
    /// Arguments.
    pub inputs: Inputs<R, Array>,
    /// Gradients of the results.
    pub grads: Outputs<R, Array>,
}

/// What comes of a case: results, and gradients of its arguments.
#[derive(Debug)]
pub struct Results<R: Rule> {
    /// Results of the forward.
    pub outputs: Outputs<R, Array>,
    /// Gradients of the arguments.
    pub grads: Inputs<R, Array>,
}

impl<R: Rule> Clone for Case<R> {
    fn clone(&self) -> Self {
        let Self { rule, dims, lengths, inputs, grads } = self;
        Self { rule: *rule, dims: dims.clone(), lengths: lengths.clone(), inputs: inputs.clone(), grads: grads.clone() }
    }
}

/// In messages: all that is needed to make the case again beside its seed.
impl<R: Rule> fmt::Display for Case<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dims { batch, tokens, heads, key, value, .. } = self.dims;
        write!(f, "{:?} B{batch} T{tokens} H{heads} K{key} V{value}", self.rule)?;
        self.lengths.as_ref().map_or(Ok(()), |lengths| write!(f, " packed {lengths:?}"))
    }
}

impl<R: Oracle> Case<R> {
    /// Random arguments: unit queries and keys, gates in their usual ranges ([`gate`]), nonzero states and gradients.
    pub fn new(rule: R, sizes: Sizes, seed: u64) -> Self {
        let Sizes { batch, tokens, heads, key, value } = rule.fit(sizes);
        let sequences = Sequences::batch(batch, tokens);
        Self::drawn(rule, Dims { batch, tokens, heads, key, value, sequences, anchored: false }, None, seed)
    }

    /// As [`Case::new`], with sequences of these lengths packed into one row.
    pub fn packed(rule: R, lengths: &[usize], heads: usize, key: usize, value: usize, seed: u64) -> Self {
        // One row of the batch holds all tokens, and sequences are told apart by their starts.
        let sequences = Sequences::packed(lengths);
        let Sizes { batch, tokens, heads, key, value } =
            rule.fit(Sizes { batch: 1, tokens: sequences.rows(), heads, key, value });
        let dims = Dims { batch, tokens, heads, key, value, sequences, anchored: false };
        Self::drawn(rule, dims, Some(lengths.to_vec()), seed)
    }

    /// The first of some draws whose results rounding cannot make jump, or the last: a large case may have none.
    fn drawn(rule: R, dims: Dims, lengths: Option<Vec<usize>>, seed: u64) -> Self {
        let mut case = Self::random(rule, dims.clone(), lengths.clone(), seed);
        for draw in 1..DRAWS {
            if R::distance(&case) >= JUMP {
                break;
            }
            // Far from every other test's seed.
            case = Self::random(rule, dims.clone(), lengths.clone(), seed + (draw << 32));
        }
        case
    }

    fn random(rule: R, dims: Dims, lengths: Option<Vec<usize>>, seed: u64) -> Self {
        // Drawn in this order: another order would be another case under the same seed.
        let random = &mut Random::new(seed);
        let gradients = |random: &mut Random| R::State::map(rule.state(&dims), |_, shape| small(random, shape));
        let inputs = Inputs {
            q: random.units(dims.keys()),
            k: random.units(dims.keys()),
            v: random.normals(dims.values()),
            gates: gates(rule, &dims, random),
            state: states(rule, &dims, random),
            anchor: None,
        };
        let grads = Outputs { out: random.normals(dims.values()), state: gradients(random) };
        let case = Self { rule, dims, lengths, inputs, grads };
        if !rule.needs_anchor() {
            return case;
        }
        let anchor = Some(case.anchors(random));
        Self { dims: Dims { anchored: true, ..case.dims }, inputs: Inputs { anchor, ..case.inputs }, ..case }
    }
}

impl<R: Oracle> Case<R> {
    /// The same case with other values of a slot, each made of its number and of all that were drawn.
    pub fn changed(self, slot: &str, of: impl Fn(usize, &[f64]) -> f64) -> Self {
        self.with(|name, array| {
            let values = |array: &Array| (0..array.values.len()).map(|i| of(i, &array.values)).collect();
            if name == slot { Array { values: values(&array), ..array } } else { array }
        })
    }

    /// The same case with an anchor, which some tokens go all the way back to; none where the rule has no such thing, or
    /// not with these options.
    pub fn anchored(mut self, seed: u64) -> Option<Self> {
        self.dims.anchored = true;
        if R::Anchor::NAMES.is_empty() || self.rule.check(&self.dims).is_err() {
            return None;
        }
        self.inputs.anchor = Some(self.anchors(&mut Random::new(seed)));
        // Every eleventh: what a memory was before is then all forgotten.
        let forget = |slot, mut array: Array| {
            if slot == "log_a" {
                array.values.iter_mut().skip(5).step_by(11).for_each(|x| *x = f64::NEG_INFINITY);
            }
            array
        };
        Some(self.with(forget))
    }

    /// Random memories to go back to.
    fn anchors(&self, random: &mut Random) -> Of<R::Anchor, Array> {
        let mut initial = R::State::into_vec(self.rule.initial(&self.dims)).into_iter();
        R::Anchor::map(self.rule.anchor(&self.dims), |_, shape| memory(initial.next(), random, shape))
    }
}

impl<R: Rule> Case<R> {
    /// The same case with each slot replaced by what `f` makes of it.
    pub fn with(self, f: impl FnMut(&'static str, Array) -> Array) -> Self {
        Self { inputs: self.inputs.map(f), ..self }
    }

    /// Tokens `range` of every sequence of a batch, with the given state in front and gradient of the state after.
    pub fn cut(&self, range: std::ops::Range<usize>, state: &Of<R::State, Array>, after: &Of<R::State, Array>) -> Self {
        let clone = |state: &Of<R::State, Array>| R::State::map(R::State::as_ref(state), |_, x: &Array| x.clone());
        let part = |x: &Array| x.cut(1, range.clone());
        let (inputs, tokens) = (&self.inputs, range.len());
        let inputs = Inputs {
            q: part(&inputs.q),
            k: part(&inputs.k),
            v: part(&inputs.v),
            gates: R::Gates::map(R::Gates::as_ref(&inputs.gates), |_, x| part(x)),
            state: clone(state),
            anchor: inputs.anchor.as_ref().map(|anchor| R::Anchor::map(R::Anchor::as_ref(anchor), |_, x| x.clone())),
        };
        let grads = Outputs { out: part(&self.grads.out), state: clone(after) };
        // The part is a batch in its own right, `[B,range,…]`, whose sequences all start anew.
        let dims = Dims { tokens, sequences: Sequences::batch(self.dims.batch, tokens), ..self.dims.clone() };
        Self { rule: self.rule, dims, lengths: None, inputs, grads }
    }

    /// The arguments on a device, q, k and v in `dtype`.
    ///
    /// # Errors
    /// The device's own failures.
    ///
    /// Gates and states stay at 32 bits, as every rule has them.
    pub fn upload<D: Device>(&self, device: &D, dtype: DType) -> Result<Inputs<R, Tensor<D>>> {
        self.inputs.as_ref().try_map(|slot, array| {
            array.upload(device, if ["q", "k", "v"].contains(&slot) { dtype } else { DType::F32 })
        })
    }

    /// The gradients of the results on a device, that of `out` in `dtype`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn upload_grads<D: Device>(&self, device: &D, dtype: DType) -> Result<Outputs<R, Tensor<D>>> {
        let dtype = |slot| if slot == "out" { dtype } else { DType::F32 };
        self.grads.as_ref().try_map(|slot, array| array.upload(device, dtype(slot)))
    }

    /// Forward and backward on a device, q, k, v and out in `dtype`.
    ///
    /// # Errors
    /// Whatever the cell reports.
    pub fn run<D: Kernel<R>>(&self, device: &D, dtype: DType) -> Result<Results<R>> {
        let inputs = self.upload(device, dtype)?;
        let Forward { outputs, pass } = match &self.lengths {
            None => forward(device, self.rule, inputs)?,
            Some(lengths) => forward_packed(device, self.rule, lengths, inputs)?,
        };
        // The backward is asked for by itself, after the forward has given back what it keeps.
        let grads = pass.backward(self.upload_grads(device, dtype)?)?;
        Ok(Results {
            outputs: outputs.try_map(|_, x| Array::download(&x))?,
            grads: grads.try_map(|_, x| Array::download(&x))?,
        })
    }

    /// Results alone, nothing kept.
    ///
    /// # Errors
    /// Whatever the cell reports.
    pub fn infer<D: Kernel<R>>(&self, device: &D, dtype: DType) -> Result<Outputs<R, Array>> {
        let inputs = self.upload(device, dtype)?;
        let outputs = match &self.lengths {
            None => infer(device, self.rule, &inputs)?,
            Some(lengths) => infer_packed(device, self.rule, lengths, &inputs)?,
        };
        outputs.try_map(|_, x| Array::download(&x))
    }
}

impl<R: Rule> Results<R> {
    /// Names and contents: results, then gradients under the names of what they are gradients of.
    pub fn list(&self) -> Vec<(&'static str, &Array)> {
        let mut all = self.outputs.list();
        all.extend(self.grads.list());
        all
    }
}

/// Compares results slot by slot, at the rule's limits.
pub fn compare_outputs<R: Oracle>(rule: R, truth: &Outputs<R, Array>, found: &Outputs<R, Array>) -> Vec<Comparison> {
    compare(rule, truth.list(), found.list(), rule.limits().0)
}

/// Compares gradients slot by slot, at the rule's limits.
pub fn compare_grads<R: Oracle>(rule: R, truth: &Inputs<R, Array>, found: &Inputs<R, Array>) -> Vec<Comparison> {
    compare(rule, truth.list(), found.list(), rule.limits().1)
}

/// One comparison a slot; both lists come from the same rule, so slots meet their own kind.
fn compare<R: Oracle>(
    rule: R,
    truth: Vec<(&'static str, &Array)>,
    found: Vec<(&'static str, &Array)>,
    limit: f64,
) -> Vec<Comparison> {
    let one = |((slot, truth), (_, found)): ((&'static str, &Array), (&'static str, &Array))| {
        let limit = limit * rule.conditioning(slot);
        Comparison { slot, error: error(&truth.values, &found.values), limit }
    };
    truth.into_iter().zip(found).map(one).collect()
}

/// Random memories: unit rows where the rule starts from such, else normal numbers, the smaller the more rows.
fn states<R: Rule>(rule: R, dims: &Dims, random: &mut Random) -> Of<R::State, Array> {
    let mut initial = R::State::into_vec(rule.initial(dims)).into_iter();
    R::State::map(rule.state(dims), |_, shape| memory(initial.next(), random, shape))
}

/// One of them.
fn memory(initial: Option<Initial>, random: &mut Random, shape: Shape) -> Array {
    if initial == Some(Initial::Unit) { random.units(shape) } else { small(random, shape) }
}

/// Normal numbers over the root of the number of rows.
fn small(random: &mut Random, shape: Shape) -> Array {
    // Columns have lengths of about 1, whatever the number of rows.
    let spread = (shape.axes()[shape.rank() - 2] as f64).sqrt();
    let mut array = random.normals(shape);
    array.values.iter_mut().for_each(|x| *x /= spread);
    array.rounded(DType::F32)
}

/// Random gates of a rule, drawn so that the memory stays bounded. Steps shrink with the momentum, with a second
/// strength beside them, and with what the rule is stable for.
fn gates<R: Oracle>(rule: R, dims: &Dims, random: &mut Random) -> Of<R::Gates, Array> {
    let gates = R::Gates::map(rule.gates(dims), |slot, shape| gate(slot, shape, random));
    let names = R::Gates::NAMES;
    // Momentum sums steps up to `1/(1 − η)` times, so steps are `1 − η` of what they were.
    let momentum = names.iter().position(|name| *name == "log_eta");
    // `β` and `θ` move along the same key: together they are one step.
    let shared = if names.contains(&"beta") { 0.5 } else { 1.0 };
    let strength = rule.strength();
    let mut list = R::Gates::into_vec(gates);
    // A copy, since the loop below changes the list.
    let leta = momentum.map(|i| list[i].values.clone());
    for (name, array) in names.iter().zip(&mut list) {
        for (i, x) in array.values.iter_mut().enumerate() {
            *x *= match *name {
                // Retention in `[0.989, 1)` instead of `[0.8, 1)`.
                "log_a" if rule.forgetting() == Forgetting::Little => 0.05,
                "theta" => shared * strength * leta.as_ref().map_or(1.0, |leta| 1.0 - leta[i].exp()),
                "beta" => shared,
                // Of a direction that has no bound of its own.
                "rewrite" => strength,
                _ => 1.0,
            };
        }
        *array = array.rounded(DType::F32);
    }
    let mut list = list.into_iter();
    R::Gates::build(|_| list.next().expect("as many gates as names"))
}

/// Random values of one gate: retention in `[0.8, 1)`, momentum in `[0.05, 0.95)`, thresholds in `[0.2, 1.5)`. Codes
/// are normal, keys of lookups of length 1. A window's weights in `[0.02, 0.9)` are shared among its tokens. Strengths are in `[0.02, 0.9)`.
pub fn gate(slot: &'static str, shape: Shape, random: &mut Random) -> Array {
    let mut array = match slot {
        "log_a" => random.uniforms(shape, 0.8, 0.9999),
        "log_eta" => random.uniforms(shape, 0.05, 0.95),
        "delta" => return random.uniforms(shape, 0.2, 1.5),
        "code" => return random.normals(shape),
        // A direction, as unit keys are.
        "lookup" => return random.units(shape),
        "gamma" => {
            let window = shape.last() as f64;
            return random.uniforms(shape, 0.02 / window, 0.9 / window);
        }
        _ => return random.uniforms(shape, 0.02, 0.9),
    };
    // Gates of retention and momentum cross the interface as logarithms.
    array.values.iter_mut().for_each(|x| *x = x.ln());
    array.rounded(DType::F32)
}
