//! A rule over a text, in 64 bits.

use hecate_conformance::oracle::{Oracle, Token, Var, go_back};
use hecate_core::{Of, Slots};

/// One head of one text, token by token: what was read, and the last state. What is forgotten goes back to the anchor.
pub(crate) fn recurrence<R: Oracle>(
    rule: R,
    tokens: &[Token<R>],
    state: Of<R::State, Var>,
    anchor: &[Var],
) -> (Vec<Var>, Of<R::State, Var>) {
    let (mut point, mut state, mut out) = (copy::<R>(&state), state, Vec::new());
    for (t, token) in tokens.iter().enumerate() {
        if Oracle::group(rule).is_none_or(|group| t % group == 0) {
            point = copy::<R>(&state);
        }
        let (read, next) = step(rule, token, (&state, &point), anchor);
        out.push(read);
        state = next;
    }
    (out, state)
}

pub(crate) fn copy<R: Oracle>(state: &Of<R::State, Var>) -> Of<R::State, Var> {
    R::State::map(R::State::as_ref(state), |_, x| x.clone())
}

/// One token: what it reads, and the next state, from the state and the gradient point.
pub(crate) fn step<R: Oracle>(
    rule: R,
    token: &Token<R>,
    (state, point): (&Of<R::State, Var>, &Of<R::State, Var>),
    anchor: &[Var],
) -> (Var, Of<R::State, Var>) {
    if anchor.is_empty() {
        return rule.step(token, state, point);
    }
    let gates = R::Gates::map(R::Gates::as_ref(&token.gates), |_, x| x.clone());
    let token = Token { q: token.q.clone(), k: token.k.clone(), v: token.v.clone(), gates, head: token.head };
    let (token, found) = go_back(rule, token, copy::<R>(state), anchor.to_vec());
    rule.step(&token, &found, point)
}
