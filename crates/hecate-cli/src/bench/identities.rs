//! What must come out by the equations alone, without learning anything.
//!
//! Three kinds: a delta rule with orthonormal keys recalls exactly; rules that do not erase are linear attention; a text
//! read in several calls is the text read in one. A wrong kernel breaks at least one of them.
//!
//! Limits are those of the suite, so that an identity fails where a cell would.

use crate::error::Result;
use hecate::{
    Backend, DType, Inputs, Kernel, Of, Outputs, Rule, Slots, Tensor, for_each_rule, infer,
    rules::{self, Delta, Dgd, DgdGates, Hebbian, Matrix, Objective, WriteGates},
};
use hecate_conformance::{Array, Case, FORWARD, Random, Sizes, case::compare_outputs, error, oracle::Oracle};

/// Tokens, heads and widths of random calls.
/// Two chunks of 64, heads and widths that differ.
const SIZES: Sizes = Sizes::new(2, 128, 2, 16, 12);
/// Lengths of the calls into which a text is cut.
///
/// Token by token, in parts of a chunk, and in chunks.
const CALLS: [usize; 3] = [1, 16, 64];
/// Orthonormal keys: rows of a Hadamard matrix, over its root.
const KEYS: usize = 16;

/// An equation and how far the device is from it: root mean square of the difference over that of the truth.
pub(super) struct Identity {
    /// The equation in words.
    pub(super) name: String,
    /// What was measured.
    pub(super) error: f64,
    /// The largest error with which it holds: what 32 bits allow.
    pub(super) limit: f64,
}

impl Identity {
    /// Whether the error is within its limit; an error of NaN is not.
    pub(super) fn holds(&self) -> bool {
        self.error <= self.limit
    }
}

/// An identity for each rule of the list, with the rule's default options.
macro_rules! cut {
    ($device:ident, $($rule:ident),*) => { [$(cut::<rules::$rule, B>($device)?),*] };
}

/// All of them on a device: two of recall, two of linear attention, one a rule of texts in calls.
pub(super) fn check<B: Backend>(device: &B) -> Result<Vec<Identity>> {
    let mut all = vec![exact_recall(device, 1)?, exact_recall(device, 2)?];
    all.extend(linear_attention(device)?);
    all.extend(for_each_rule!(cut, device,));
    Ok(all)
}

/// Sixteen orthonormal keys are written, each `times` with other values, then asked for: the last value comes back.
fn exact_recall<B: Backend>(device: &B, times: usize) -> Result<Identity> {
    // With `a = 1` nothing is forgotten, and at `θ = 1` a write replaces what its key held.
    // Keys repeat in every round; the queries are the keys once more, with θ = 0.
    let (width, written) = (8, times * KEYS);
    let tokens = written + KEYS;
    let values = Random::new(3).normals([1, tokens, 1, width]);
    // Rows of a Hadamard matrix are orthogonal: its entry is −1 to the number of bits that row and column share.
    let sign = |row: usize, column: usize| if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let entry = |i: usize| sign(i / KEYS % KEYS, i % KEYS) / (KEYS as f64).sqrt();
    let keys = Array::new([1, tokens, 1, KEYS], (0..tokens * KEYS).map(entry).collect());
    let theta = (0..tokens).map(|t| if t < written { 1.0 } else { 0.0 }).collect();
    let gates = WriteGates { log_a: Array::full([1, tokens, 1], 0.0), theta: Array::new([1, tokens, 1], theta) };
    let state = Matrix { m: Array::full([1, 1, KEYS, width], 0.0) };
    // Values of the last round, in the order of the keys.
    let truth = values.cut(1, written - KEYS..written);
    let out =
        read(device, Delta::default(), Inputs { q: keys.clone(), k: keys, v: values, gates, state, anchor: None })?;
    let again = if times > 1 { ", each written over once" } else { "" };
    let name = format!("delta, θ = 1, {KEYS} orthonormal keys{again}: every value is recalled exactly");
    Ok(Identity { name, error: error(&truth.values, &out.cut(1, written..tokens).values), limit: FORWARD })
}

/// Rules that do not erase are sums over all tokens before.
fn linear_attention<B: Backend>(device: &B) -> Result<[Identity; 2]> {
    let hebbian = Hebbian::default();
    let case = Case::new(hebbian, SIZES, 5).with(|slot, array| match slot {
        "log_a" | "m" => Array::full(array.shape, 0.0),
        "theta" => Array::full(array.shape, 1.0),
        _ => array,
    });
    let Inputs { q, k, v, gates, state, .. } = case.inputs;
    let truth = attend(&q, &k, &v);
    // A dot-product objective without erase is a plain sum too.
    let beta = Array::full(gates.theta.shape.clone(), 0.0);
    let still = DgdGates { log_a: gates.log_a.clone(), theta: gates.theta.clone(), beta };
    let dgd = Dgd { objective: Objective::Dot, ..Dgd::default() };
    let state_of = |state: &Matrix<Array>| Matrix { m: state.m.clone() };
    let inputs =
        Inputs { q: q.clone(), k: k.clone(), v: v.clone(), gates: still, state: state_of(&state), anchor: None };
    let without_erase = read(device, dgd, inputs)?;
    let additive = read(device, hebbian, Inputs { q, k, v, gates, state, anchor: None })?;
    let identity = |name: &str, found: &Array| Identity {
        name: format!("{name}: linear attention, summed directly"),
        error: error(&truth, &found.values),
        limit: FORWARD,
    };
    let without_erase = identity("delta without its erase (dgd, dot objective, β = 0)", &without_erase);
    Ok([identity("hebbian, θ = a = 1", &additive), without_erase])
}

/// `y_t = Σ_{j ≤ t} (q_t·k_j) v_j`, in 64 bits.
fn attend(q: &Array, k: &Array, v: &Array) -> Vec<f64> {
    let Sizes { batch, tokens, heads, key, value } = SIZES;
    let at = |b: usize, t: usize, h: usize, width: usize| ((b * tokens + t) * heads + h) * width;
    let mut y = vec![0.0; v.values.len()];
    // Every query against all keys up to its own token.
    for (b, t, h) in (0..batch * tokens * heads).map(|i| (i / (tokens * heads), i / heads % tokens, i % heads)) {
        let q = &q.values[at(b, t, h, key)..][..key];
        for j in 0..=t {
            let weight: f64 = q.iter().zip(&k.values[at(b, j, h, key)..]).map(|(q, k)| q * k).sum();
            let y = &mut y[at(b, t, h, value)..][..value];
            y.iter_mut().zip(&v.values[at(b, j, h, value)..]).for_each(|(y, v)| *y += weight * v);
        }
    }
    y
}

/// A text in one call, which may go chunk by chunk, is the text in calls of 1 token (token by token), 16 and 64.
fn cut<R: Oracle, B: Kernel<R>>(device: &B) -> Result<Identity> {
    // The rule's first variant stands for its options: the suite has them all.
    let case = Case::new(R::all()[0], SIZES, 7);
    let whole = case.infer(device, DType::F32)?;
    // The worst slot of all lengths of calls.
    let mut error: f64 = 0.0;
    for tokens in CALLS {
        for compared in compare_outputs(case.rule, &whole, &in_calls(device, &case, tokens)?) {
            // `max` would drop a NaN.
            error = if compared.error <= error { error } else { compared.error };
        }
    }
    let name = format!("{}: in calls of 1, 16 and 64 tokens as in one", R::NAME);
    // Both are that close to the truth.
    Ok(Identity { name, error, limit: 2.0 * FORWARD })
}

/// The case's text in calls of `tokens` tokens, each starting from the state that the one before left.
fn in_calls<R: Rule, B: Kernel<R>>(device: &B, case: &Case<R>, tokens: usize) -> Result<Outputs<R, Array>> {
    let copy = |state: &Of<R::State, Array>| R::State::map(R::State::as_ref(state), |_, x: &Array| x.clone());
    let (mut state, mut outs) = (copy(&case.inputs.state), Vec::new());
    for first in (0..case.dims.tokens).step_by(tokens) {
        // The last call is shorter where `tokens` does not divide the text.
        let end = case.dims.tokens.min(first + tokens);
        let outputs = case.cut(first..end, &state, &case.grads.state).infer(device, DType::F32)?;
        state = outputs.state;
        outs.push(outputs.out);
    }
    Ok(Outputs { out: Array::join(&outs, 1), state })
}

/// What a rule reads, `[B,T,H,V]`.
fn read<R: Rule, B: Kernel<R>>(device: &B, rule: R, inputs: Inputs<R, Array>) -> Result<Array> {
    let inputs: Inputs<R, Tensor<B>> = inputs.try_map(|_, array| array.upload(device, DType::F32))?;
    Ok(Array::download(&infer(device, rule, &inputs)?.out)?)
}
