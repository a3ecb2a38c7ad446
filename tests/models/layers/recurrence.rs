//! A rule over a text, in 64 bits.

use hecate_conformance::oracle::{Oracle, Token, Var, go_back, opened};
use hecate_core::{
    Of, Read, Rule, Slots,
    families::{LinearRule as _, LinearSpec},
    for_each_linear_rule,
    rules::*,
};
use std::any::Any;

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
            state = opened(rule, state, anchor);
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
    if let Some(spec) = spec(rule) {
        return linear_step(rule, spec, token, (state, point), &anchor[0]);
    }
    let gates = R::Gates::map(R::Gates::as_ref(&token.gates), |_, x| x.clone());
    let token = Token { q: token.q.clone(), k: token.k.clone(), v: token.v.clone(), gates, head: token.head };
    let (token, found) = go_back(rule, token, copy::<R>(state), anchor.to_vec());
    rule.step(&token, &found, point)
}

/// The options of a linear rule; nothing of another one.
fn spec<R: Rule>(rule: R) -> Option<LinearSpec> {
    macro_rules! find {
        ($($name:ident $rule:ident),*) => {
            [$((&rule as &dyn Any).downcast_ref::<$rule>().map(|rule| rule.spec())),*]
        };
    }
    for_each_linear_rule!(find).into_iter().flatten().next()
}

/// One token of a linear rule whose memory goes back to `b`. In place of `a M` stands `B + a (M − B)`, which is `(1 − a) B`
/// more. Errors are taken at `M`, or where the decayed memory is erased at all of what went back.
fn linear_step<R: Oracle>(
    rule: R,
    spec: LinearSpec,
    token: &Token<R>,
    (state, point): (&Of<R::State, Var>, &Of<R::State, Var>),
    b: &Var,
) -> (Var, Of<R::State, Var>) {
    let gates = R::Gates::list(&token.gates);
    let gate = |name| gates.iter().find(|(slot, _)| *slot == name).map(|(_, gate)| *gate);
    let a = match (&rule as &dyn Any).downcast_ref::<Lightning>() {
        Some(lightning) => {
            let log_a = lightning.head_log_a(token.head.index, token.head.count);
            b.constant(1, 1, vec![f64::from(log_a).exp()])
        }
        None => gate("log_a").expect("a rule that forgets").exp(),
    };
    let mut more = a.scale(-1.0).shift(1.0) * b;
    if (&rule as &dyn Any).downcast_ref::<Delta>().is_some_and(|delta| delta.erase == Erase::Decayed) {
        more = &more - gate("theta").expect("a step size") * token.k.t().dot(&token.k.dot(&more));
    }
    let (read, next) = rule.step(token, state, point);
    let read = if spec.read == Read::After { read + token.q.dot(&more) } else { read };
    (read, R::State::map(next, |name, x| if name == "m" { x + &more } else { x }))
}
