//! A rule over a text, in 64 bits.

use hecate_conformance::oracle::{Oracle, Token, Var};
use hecate_core::{Of, Slots};

/// One head of one text, token by token: what was read, and the last state.
pub(crate) fn recurrence<R: Oracle>(
    rule: R,
    tokens: &[Token<R>],
    state: Of<R::State, Var>,
) -> (Vec<Var>, Of<R::State, Var>) {
    let copy = |state: &Of<R::State, Var>| R::State::map(R::State::as_ref(state), |_, x| x.clone());
    let (mut point, mut state, mut out) = (copy(&state), state, Vec::new());
    for (t, token) in tokens.iter().enumerate() {
        if Oracle::group(rule).is_none_or(|group| t % group == 0) {
            point = copy(&state);
        }
        let (read, next) = rule.step(token, &state, &point);
        out.push(read);
        state = next;
    }
    (out, state)
}
