//! A call cut into several.

use crate::{Array, Case, Results};
use hecate_core::{Inputs, Of, Outputs, Rule, Slots};

/// What comes of a batch that is cut at the tokens `cuts`, from 0 to the last: states are handed on from piece to piece,
/// and their gradients from the last piece back to the first. `forward` says what a piece leaves, `both` also what its
/// gradients are.
pub(crate) fn piecewise<R: Rule>(
    case: &Case<R>,
    cuts: &[usize],
    forward: impl Fn(&Case<R>) -> Outputs<R, Array>,
    both: impl Fn(&Case<R>) -> Results<R>,
) -> Results<R> {
    let zeros = R::State::map(R::State::as_ref(&case.inputs.state), |_, x: &Array| Array::full(x.shape.clone(), 0.0));
    let mut state = copy::<R::State>(&case.inputs.state);
    let (mut pieces, mut outs) = (Vec::new(), Vec::new());
    for cut in cuts.windows(2) {
        let piece = case.cut(cut[0]..cut[1], &state, &zeros);
        let outputs = forward(&piece);
        state = outputs.state;
        outs.push(outputs.out);
        pieces.push(piece);
    }
    let mut behind = copy::<R::State>(&case.grads.state);
    let mut grads: Vec<Inputs<R, Array>> = Vec::new();
    for mut piece in pieces.into_iter().rev() {
        piece.grads.state = behind;
        let found = both(&piece).grads;
        behind = copy::<R::State>(&found.state);
        grads.insert(0, found);
    }
    Results { outputs: Outputs { out: Array::join(&outs, 1), state }, grads: join_tokens(&grads, behind) }
}

fn join_tokens<R: Rule>(parts: &[Inputs<R, Array>], state: Of<R::State, Array>) -> Inputs<R, Array> {
    let join = |slot: usize| {
        let parts: Vec<Array> = parts.iter().map(|part| part.list()[slot].1.clone()).collect();
        Array::join(&parts, 1)
    };
    let mut slot = 2;
    let gates = R::Gates::build(|_| {
        slot += 1;
        join(slot)
    });
    Inputs { q: join(0), k: join(1), v: join(2), gates, state }
}

pub(crate) fn copy<S: Slots>(slots: &Of<S, Array>) -> Of<S, Array> {
    S::map(S::as_ref(slots), |_, x| x.clone())
}
