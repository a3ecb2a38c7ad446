//! A call cut into several.

use crate::{Array, Case, Results};
use hecate_core::{Inputs, Of, Outputs, Rule, Slots};

/// What comes of a batch that is cut at the tokens `cuts`, from 0 to the last. States are handed on from segment to segment,
/// gradients of states from the last segment back to the first. `forward` says what a segment leaves, `both` also what its
/// gradients are.
pub(crate) fn in_segments<R: Rule>(
    case: &Case<R>,
    cuts: &[usize],
    forward: impl Fn(&Case<R>) -> Outputs<R, Array>,
    both: impl Fn(&Case<R>) -> Results<R>,
) -> Results<R> {
    // Gradients of the states between segments are not known yet; the second loop puts them in.
    let zeros = R::State::map(R::State::as_ref(&case.inputs.state), |_, x: &Array| Array::full(x.shape.clone(), 0.0));
    let mut state = copy::<R::State>(&case.inputs.state);
    let (mut segments, mut outs) = (Vec::new(), Vec::new());
    for cut in cuts.windows(2) {
        // The state in front of a segment is what `forward` left, not the truth: errors may add up.
        let segment = case.cut(cut[0]..cut[1], &state, &zeros);
        let outputs = forward(&segment);
        state = outputs.state;
        outs.push(outputs.out);
        segments.push(segment);
    }
    // Backward in reverse: the last segment's final state is that of the whole.
    let mut after = copy::<R::State>(&case.grads.state);
    let mut grads: Vec<Inputs<R, Array>> = Vec::new();
    for mut segment in segments.into_iter().rev() {
        segment.grads.state = after;
        let found = both(&segment).grads;
        // The gradient of a segment's initial state is that of the final state of the one before: the chain rule.
        after = copy::<R::State>(&found.state);
        grads.insert(0, found);
    }
    Results { outputs: Outputs { out: Array::join(&outs, 1), state }, grads: join_tokens(&grads, after) }
}

/// Gradients of all segments joined along the tokens, axis 1; `state` is the gradient of the first initial state.
fn join_tokens<R: Rule>(parts: &[Inputs<R, Array>], state: Of<R::State, Array>) -> Inputs<R, Array> {
    let join = |slot: usize| {
        let parts: Vec<Array> = parts.iter().map(|part| part.list()[slot].1.clone()).collect();
        Array::join(&parts, 1)
    };
    // `list` has q, k and v first, then the gates in the order of their names.
    let mut slot = 2;
    let gates = R::Gates::build(|_| {
        slot += 1;
        join(slot)
    });
    // An anchor is every segment's, so its gradients add up.
    let sums = |i: usize, first: &Array| {
        let mut sum = first.clone();
        let others = parts.iter().skip(1).filter_map(|part| part.anchor.as_ref());
        for other in others.map(|anchor| R::Anchor::list(anchor)[i].1) {
            sum.values.iter_mut().zip(&other.values).for_each(|(sum, x)| *sum += x);
        }
        sum
    };
    let anchor = parts.first().and_then(|part| part.anchor.as_ref()).map(|anchor| {
        let mut slots = 0..;
        R::Anchor::map(R::Anchor::as_ref(anchor), |_, first| sums(slots.next().unwrap_or_default(), first))
    });
    Inputs { q: join(0), k: join(1), v: join(2), gates, state, anchor }
}

/// The same arrays again; slots themselves cannot be cloned.
pub(crate) fn copy<S: Slots>(slots: &Of<S, Array>) -> Of<S, Array> {
    S::map(S::as_ref(slots), |_, x| x.clone())
}
