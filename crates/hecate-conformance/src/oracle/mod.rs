//! The equations in 64 bits, forward only, differentiated by dfdx.
//!
//! Every array is cut into small matrices, one a token and head or one a memory. A rule's [`step`](Oracle::step) is run
//! for each sequence, head and token in turn. Nothing is batched, chunked or lowered: time is no matter here, and what
//! is short to read is easy to compare with the paper.

mod atlas;
mod channel;
mod deep;
mod lattice;
mod lif;
mod linear;
#[cfg(test)]
mod tests;
mod trellis;
mod var;

pub use var::Var;

use crate::{Array, BACKWARD, Case, FORWARD, Results, Sizes, blockwise::in_segments};
use hecate_core::{Inputs, Of, Outputs, Read, Rule, Slots};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};
use var::Equations;

/// A rule's own equations.
pub trait Oracle: Rule {
    /// The rule with every combination of its options.
    fn all() -> Vec<Self>;

    /// Groups of tokens that share one gradient point.
    ///
    /// `None` where every token has its own. The first token of a sequence starts a group, and so does every
    /// `group`-th.
    fn group(self) -> Option<usize> {
        self.frozen().map(|group| group as usize)
    }

    /// The least that is kept of the memory in tests of this rule.
    fn forgetting(self) -> Forgetting {
        Forgetting::Always
    }

    /// Whether its momentum is multiplied by `a` as the memory is.
    fn momentum_forgets(self) -> bool {
        false
    }

    /// Whether its gradient is the derivative of its results. Where it is not, a surrogate stands for a step's derivative, and
    /// other vectors than central differences have to say that it is right.
    fn differentiable(self) -> bool {
        true
    }

    /// The least distance of a number from where the rule's results jump: infinite where they never do. A case whose distance
    /// is in the order of rounding has two right answers, and is drawn again.
    fn distance(_case: &Case<Self>) -> f64 {
        f64::INFINITY
    }

    /// A step size up to which the rule is stable alone with unit keys. Groups of tokens take their steps together.
    fn strength(self) -> f64 {
        if self.group().is_some() { 0.1 } else { 1.0 }
    }

    /// How much more than others a slot may be off, for a reason that is given where it is not 1.
    ///
    /// A factor on the rule's [`limits`](Self::limits), 1 or more.
    fn conditioning(self, _slot: &str) -> f64 {
        1.0
    }

    /// Largest errors of results and of gradients in 32 bits: the suite's, unless the rule's own conditioning allows no
    /// better, with the reason beside it.
    fn limits(self) -> (f64, f64) {
        (FORWARD, BACKWARD)
    }

    /// What of a memory is there when a group starts, in the slots that have an anchor: matrix by matrix, beside the same of the
    /// anchor.
    fn opened(self, x: Var, _anchor: &Var) -> Var {
        x
    }

    /// The sizes nearest to these that the rule takes.
    ///
    /// Where an input is added to an output, for one, keys are as wide as values.
    fn fit(self, sizes: Sizes) -> Sizes {
        sizes
    }

    /// One token: what is read, and the memory after it. `point` is the memory where the gradient is taken: `old`,
    /// or that at the start of the group.
    ///
    /// What is read is a row `[1,V]`; states are matrices, in the order of the rule's slots.
    fn step(
        self,
        token: &Token<Self>,
        old: &Of<Self::State, Var>,
        point: &Of<Self::State, Var>,
    ) -> (Var, Of<Self::State, Var>);
}

/// How much a rule can forget and still be compared in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forgetting {
    /// A little. The output has one size whatever the size of the weights (a layer norm), so gradients grow without
    /// bound as the weights vanish.
    Little,
    /// Everything now and then, not at every token. The gradient of each of two layers vanishes with the other's
    /// weights, so weights fall under the smallest number. Or only a token's input and the last one's are kept: as they
    /// come to be at right angles, the next step grows without bound.
    Sometimes,
    /// Everything at every token.
    Always,
}

/// One token of one head: rows `[1,K]`, `[1,K]`, `[1,V]`, gates one by one.
pub struct Token<R: Rule> {
    /// Query.
    pub q: Var,
    /// Key.
    pub k: Var,
    /// Value.
    pub v: Var,
    /// Gates: numbers, or rows `[1,width]`.
    pub gates: Of<R::Gates, Var>,
    /// Whose token it is.
    pub head: Head,
}

/// One of some heads.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Which, from 0.
    pub index: usize,
    /// Of how many.
    pub count: usize,
}

impl<R: Rule> fmt::Debug for Token<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { q, k, v, gates, head } = self;
        let gates = R::Gates::list(gates);
        f.debug_struct("Token")
            .field("q", q)
            .field("k", k)
            .field("v", v)
            .field("gates", &gates)
            .field("head", head)
            .finish()
    }
}

/// `q M` with the memory that `read` names.
/// Rows `[1,K]` by a memory `[K,V]`.
fn read(read: Read, q: &Var, old: &Var, new: &Var) -> Var {
    match read {
        Read::After => q.dot(new),
        Read::Before => q.dot(old),
    }
}

/// Both times of reading, without groups and with some shorter and longer than a chunk, dividing it or not.
fn reads_and_groups() -> Vec<(Read, Option<u32>)> {
    use Read::{After, Before};
    vec![(After, None), (After, Some(16)), (After, Some(70)), (Before, None), (Before, Some(5))]
}

/// An argument of a system of equations, cut into matrices of `tile` rows and columns, each a leaf.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Values.
    pub array: Array,
    /// Rows and columns.
    pub tile: (usize, usize),
}

/// Equations from leaves to results; each result is a list of matrices that lie one after another.
pub type Forward<'a> = dyn Fn(&[Vec<Var>]) -> Vec<Vec<Var>> + 'a;

/// Results of `forward`, and the gradients of all `leaves` for these gradients of the results.
///
/// # Panics
/// If the equations do not fit their arguments.
pub fn differentiate(leaves: &[Leaf], upstream: &[Array], forward: &Forward) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let equations = Equations::default();
    let (leaves, results) = evaluate(&equations, leaves, forward);
    let values = values(&results);
    let loss = loss(&results, upstream);
    drop(results);
    (values, equations.gradients(&loss, &leaves))
}

/// Largest error of [`differentiate`] against central differences, over `count` random elements of each leaf, relative
/// to the largest gradient of that leaf.
pub fn differences(leaves: &[Leaf], upstream: &[Array], forward: &Forward, count: usize) -> f64 {
    let (_, gradients) = differentiate(leaves, upstream, forward);
    let at = |leaves: &[Leaf]| {
        let equations = Equations::default();
        loss(&evaluate(&equations, leaves, forward).1, upstream).value()
    };
    let mut random = crate::Random::new(7);
    let mut worst = 0f64;
    for (slot, gradient) in gradients.iter().enumerate().filter(|(_, gradient)| !gradient.is_empty()) {
        // Not under 10⁻³, so that a slot whose gradient is all zeros is compared absolutely.
        let scale = gradient.iter().fold(1e-3, |a: f64, x| a.max(x.abs()));
        for _ in 0..count {
            let element = random.below(gradient.len());
            let step = 1e-5;
            let moved = |by: f64| {
                let mut leaves = leaves.to_vec();
                leaves[slot].array.values[element] += by;
                at(&leaves)
            };
            // Rounding costs some 10⁻¹¹ at this step.
            // Of fourth order: norms bend sharply.
            let [near, far] = [step, 2.0 * step].map(|by| (moved(by) - moved(-by)) / (2.0 * by));
            let difference = (4.0 * near - far) / 3.0;
            // `max` drops NaN, which must fail.
            let error = (difference - gradient[element]).abs() / scale;
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
        }
    }
    worst
}

/// Leaves as matrices, slot by slot, and what `forward` makes of them.
fn evaluate(equations: &Equations, leaves: &[Leaf], forward: &Forward) -> (Vec<Vec<Var>>, Vec<Vec<Var>>) {
    let cut = |Leaf { array, tile: (rows, columns) }: &Leaf| {
        // A window of one token has buffers without rows: as many empty tiles as there are memories.
        if rows * columns == 0 {
            let tiles: usize = array.shape.axes()[..array.shape.rank() - 2].iter().product();
            return (0..tiles).map(|_| equations.leaf(*rows, *columns, &[])).collect();
        }
        array.values.chunks(rows * columns).map(|tile| equations.leaf(*rows, *columns, tile)).collect()
    };
    let leaves: Vec<Vec<Var>> = leaves.iter().map(cut).collect();
    let results = forward(&leaves);
    (leaves, results)
}

/// Elements of each result, its matrices one after another.
fn values(results: &[Vec<Var>]) -> Vec<Vec<f64>> {
    results.iter().map(|result| result.iter().flat_map(Var::values).collect()).collect()
}

/// `Σ result · upstream`: the number whose gradients are the wanted ones.
fn loss(results: &[Vec<Var>], upstream: &[Array]) -> Var {
    let mut terms = Vec::new();
    for (result, upstream) in results.iter().zip(upstream) {
        // The gradient of a result is one array; its matrices take their parts in order.
        let mut rest = &upstream.values[..];
        for tile in result {
            let (rows, columns) = tile.shape();
            let (weights, after) = rest.split_at(rows * columns);
            rest = after;
            // A gradient of zeros adds nothing, and 0 times an infinity would add NaN.
            if weights.iter().any(|&w| w != 0.0) {
                terms.push((tile * &tile.constant(rows, columns, weights.to_vec())).sum());
            }
        }
        assert!(rest.is_empty(), "gradient of a result longer than the result");
    }
    Var::total(terms)
}

/// What a rule makes of a case.
pub fn solve<R: Oracle>(case: &Case<R>) -> Results<R> {
    let (results, gradients) = lists(case);
    Results::from_lists(case, results, gradients)
}

/// As [`solve`], of a batch of any length: the equations of `tokens` tokens are held at a time. Gradients of states are
/// handed back from segment to segment, as the chain rule says. The longer sequence takes a third more time so.
pub fn solve_in_segments<R: Oracle>(case: &Case<R>, tokens: usize) -> Results<R> {
    let cuts: Vec<usize> = (0..case.dims.tokens).step_by(tokens).chain([case.dims.tokens]).collect();
    in_segments(case, &cuts, |segment| outputs(segment), |segment| solve(segment))
}

/// Results alone.
fn outputs<R: Oracle>(case: &Case<R>) -> Outputs<R, Array> {
    let (leaves, _) = arguments(case);
    let (_, results) = evaluate(&Equations::default(), &leaves, &|leaves| run(case, leaves));
    filled(&case.grads, values(&results))
}

/// The same of a case that [`Case::new`] made with `seed`: once for all checks that ask, since the equations take longer
/// than most kernels.
pub fn solve_once<R: Oracle>(case: &Case<R>, seed: u64) -> Results<R> {
    type Known = Arc<OnceLock<(Vec<Vec<f64>>, Vec<Vec<f64>>)>>;
    // A lock per case, so that checks wait for the case that they share and not for one another.
    static KNOWN: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());
    // The same rule, sizes, lengths and seed make the same arguments.
    let name = format!("{case} seed {seed}");
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default().clone();
    let (results, gradients) = known.get_or_init(|| lists(case)).clone();
    Results::from_lists(case, results, gradients)
}

/// Results and gradients, slot by slot.
fn lists<R: Oracle>(case: &Case<R>) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let (leaves, upstream) = arguments(case);
    differentiate(&leaves, &upstream, &|leaves| run(case, leaves))
}

/// As [`differences`], of a rule's equations.
pub fn solve_differences<R: Oracle>(case: &Case<R>, count: usize) -> f64 {
    let (leaves, upstream) = arguments(case);
    differences(&leaves, &upstream, &|leaves| run(case, leaves), count)
}

/// Slots and gates cut into rows of a token and head, states into matrices.
fn arguments<R: Oracle>(case: &Case<R>) -> (Vec<Leaf>, Vec<Array>) {
    let gates = R::Gates::NAMES.len();
    let tile = |(i, (_, array)): (usize, (_, &Array))| {
        let axes = array.shape.axes();
        let tile = match i {
            // q, k and v come first, as `[B,T,H,K]` or `[B,T,H,V]`.
            0..3 => (1, array.shape.last()),
            // Gates come as [B,T,H] or as [B,T,H,width].
            i if i < 3 + gates => (1, axes.get(3).copied().unwrap_or(1)),
            // States are `[N,H,rows,columns]`.
            _ => (axes[axes.len() - 2], array.shape.last()),
        };
        Leaf { array: array.clone(), tile }
    };
    let leaves = case.inputs.list().into_iter().enumerate().map(tile).collect();
    (leaves, case.grads.list().into_iter().map(|(_, array)| array.clone()).collect())
}

/// All sequences and heads, token by token.
fn run<R: Oracle>(case: &Case<R>, leaves: &[Vec<Var>]) -> Vec<Vec<Var>> {
    let (rule, heads) = (case.rule, case.dims.heads);
    // In the order of `Inputs::list`, as `arguments` cut them.
    let mut leaves = leaves.iter();
    let mut next = || leaves.next().expect("a leaf for every slot");
    let inputs = Inputs::<R, &Vec<Var>> {
        q: next(),
        k: next(),
        v: next(),
        gates: R::Gates::build(|_| next()),
        state: R::State::build(|_| next()),
        anchor: case.dims.anchored.then(|| R::Anchor::build(|_| next())),
    };
    // Rows of `out` lie by token and then by head, states by sequence and then by head.
    let mut out = vec![None; case.dims.sequences.rows() * heads];
    let mut finals = vec![Vec::new(); R::State::NAMES.len()];
    for (n, rows) in case.dims.sequences.ranges().enumerate() {
        for head in 0..heads {
            let mut state = at::<R::State>(&inputs.state, n * heads + head);
            // Overwritten at the first token, which starts a group.
            let mut point = copy::<R::State>(&state);
            for (t, row) in rows.clone().enumerate() {
                if rule.group().is_none_or(|group| t % group == 0) {
                    if let Some(anchor) = &inputs.anchor {
                        let anchor = R::Anchor::into_vec(at::<R::Anchor>(anchor, head));
                        state = opened(rule, state, &anchor);
                    }
                    point = copy::<R::State>(&state);
                }
                let i = row * heads + head;
                let (q, k, v) = (inputs.q[i].clone(), inputs.k[i].clone(), inputs.v[i].clone());
                let gates = at::<R::Gates>(&inputs.gates, i);
                let mut token = Token { q, k, v, gates, head: Head { index: head, count: heads } };
                if let Some(anchor) = &inputs.anchor {
                    let anchor = R::Anchor::into_vec(at::<R::Anchor>(anchor, head));
                    (token, state) = go_back(rule, token, state, anchor);
                }
                let (read, new) = rule.step(&token, &state, &point);
                (out[i], state) = (Some(read), new);
            }
            finals.iter_mut().zip(R::State::into_vec(state)).for_each(|(list, last)| list.push(last));
        }
    }
    let out = out.into_iter().flatten().collect();
    std::iter::once(out).chain(finals).collect()
}

/// A memory as it is when a group starts, with an anchor.
pub fn opened<R: Oracle>(rule: R, state: Of<R::State, Var>, anchor: &[Var]) -> Of<R::State, Var> {
    let mut anchor = anchor.iter();
    // Slots that have no anchor follow those that have.
    R::State::map(state, |_, x| match anchor.next() {
        Some(b) => rule.opened(x, b),
        None => x,
    })
}

/// What a token finds of a memory that goes back to an anchor, `B + a (X − B)`, and the token with `a = 1`.
pub fn go_back<R: Oracle>(
    rule: R,
    token: Token<R>,
    state: Of<R::State, Var>,
    anchor: Vec<Var>,
) -> (Token<R>, Of<R::State, Var>) {
    let gates = R::Gates::list(&token.gates);
    let (_, log_a) = gates.iter().find(|(slot, _)| *slot == "log_a").expect("a rule that forgets");
    let a = log_a.exp();
    let mut anchor = anchor.into_iter();
    // Slots that have no anchor follow those that have.
    let other = |x: Var| if rule.momentum_forgets() { &a * x } else { x };
    let state = R::State::map(state, |_, x| match anchor.next() {
        Some(b) => &b + &a * (x - &b),
        None => other(x),
    });
    let zero = a.constant(1, 1, vec![0.0]);
    let gates = R::Gates::map(token.gates, |slot, gate| if slot == "log_a" { zero.clone() } else { gate });
    (Token { gates, ..token }, state)
}

/// Matrix `i` of every slot.
fn at<S: Slots>(slots: &Of<S, &Vec<Var>>, i: usize) -> Of<S, Var> {
    S::map(S::as_ref(slots), |_, list| list[i].clone())
}

/// The same matrices, of one identity and one tape.
fn copy<S: Slots>(slots: &Of<S, Var>) -> Of<S, Var> {
    S::map(S::as_ref(slots), |_, x| x.clone())
}

impl<R: Rule> Results<R> {
    /// Lists in the order of [`Outputs::list`] and [`Inputs::list`], under the shapes of the case.
    fn from_lists(case: &Case<R>, results: Vec<Vec<f64>>, gradients: Vec<Vec<f64>>) -> Self {
        let mut gradients = gradients.into_iter();
        let grads = case.inputs.as_ref().map(|_, like| fill(like, gradients.next()));
        Self { outputs: filled(&case.grads, results), grads }
    }
}

/// Results slot by slot, of these shapes.
fn filled<R: Rule>(like: &Outputs<R, Array>, results: Vec<Vec<f64>>) -> Outputs<R, Array> {
    let mut results = results.into_iter();
    like.as_ref().map(|_, like| fill(like, results.next()))
}

/// An array of the shape of `like`, whose values are not looked at.
fn fill(like: &Array, values: Option<Vec<f64>>) -> Array {
    Array::new(like.shape.clone(), values.expect("a list for every slot"))
}
