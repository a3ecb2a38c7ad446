//! Compositions in time, token by token.

use super::*;
use hecate_models::{CmsConfig, ConductorConfig, HopeConfig, TntConfig, Wiring, layers::GatedRule};
use std::ops::Range;

fn zeros(like: &Var) -> Var {
    let (rows, columns) = like.shape();
    like.constant(rows, columns, vec![0.0; rows * columns])
}

/// What the token's query reads in a memory that does not change.
pub(crate) fn read<R: Gated>(rule: R, state: &Of<R::State, Var>, token: &Token<R>) -> Var {
    let still = |name, x: &Var| if R::MOMENTUM.contains(&name) { zeros(x) } else { x.clone() };
    let state = R::State::map(R::State::as_ref(state), still);
    let idle = |name, x: &Var| zeros(x).shift(f64::from(u8::from(name == "delta")));
    let gates = R::Gates::map(R::Gates::as_ref(&token.gates), idle);
    let reader = Token { q: token.q.clone(), k: zeros(&token.k), v: zeros(&token.v), gates, head: token.head };
    rule.still().step(&reader, &state, &state).0
}

/// The token with a step for a group of tokens.
pub(super) fn tempered<R: Gated>(rule: R, token: &Token<R>) -> Token<R> {
    let group = GatedRule::group(rule) as f64;
    let gate = |name, x: &Var| if name == "theta" { x.scale(1.0 / group) } else { x.clone() };
    let gates = R::Gates::map(R::Gates::as_ref(&token.gates), gate);
    Token { q: token.q.clone(), k: token.k.clone(), v: token.v.clone(), gates, head: token.head }
}

/// A memory that is constant for chunks.
fn chunked<R: Gated>(
    rule: R,
    chunk: usize,
    tokens: &[Token<R>],
    (mut state, anchor): (Of<R::State, Var>, &[Var]),
) -> Vec<Var> {
    let rule = rule.with_group(chunk);
    let mut out = Vec::new();
    for chunk in tokens.chunks(chunk) {
        out.extend(chunk.iter().map(|token| read(rule, &state, token)));
        let start = copy::<R>(&state);
        for token in chunk {
            let point = if GatedRule::group(rule) > 1 { copy::<R>(&start) } else { copy::<R>(&state) };
            state = step(rule, &tempered(rule, token), (&state, &point), anchor).1;
        }
    }
    out
}

/// A memory that is written by every so many tokens.
fn pulse<R: Gated>(
    rule: R,
    period: usize,
    tokens: &[Token<R>],
    (mut state, anchor): (Of<R::State, Var>, &[Var]),
) -> Vec<Var> {
    let mut out = Vec::new();
    for (t, token) in tokens.iter().enumerate() {
        if t % period == 0 {
            let (y, next) = step(rule, token, (&state, &copy::<R>(&state)), anchor);
            state = next;
            out.push(y);
        } else {
            out.push(read(rule, &state, token));
        }
    }
    out
}

/// A memory that starts again.
fn sharded<R: Gated>(
    rule: R,
    (chunk, shard): (usize, usize),
    tokens: &[Token<R>],
    (initial, anchor): (&Of<R::State, Var>, &[Var]),
) -> Vec<Var> {
    let rule = rule.with_group(chunk);
    let (mut state, mut point, mut out) = (copy::<R>(initial), copy::<R>(initial), Vec::new());
    for (t, token) in tokens.iter().enumerate() {
        if t % shard == 0 {
            state = copy::<R>(initial);
        }
        if t % GatedRule::group(rule) == 0 {
            point = copy::<R>(&state);
        }
        let (y, next) = step(rule, &tempered(rule, token), (&state, &point), anchor);
        state = next;
        out.push(y);
    }
    out
}

/// Levels put together; `level` says what one makes of its input.
fn wired(
    wiring: Wiring,
    levels: usize,
    weights: &Weights,
    x: &[Var],
    eps: f64,
    level: impl Fn(usize, &[Var]) -> Vec<Var>,
) -> Vec<Var> {
    let mut sum: Option<Vec<Var>> = None;
    for l in 0..levels {
        let weights = weights.within(&format!("levels.{l}"));
        let input: Vec<Var> = match (&sum, wiring) {
            (Some(said), Wiring::Chained) => {
                x.iter().zip(said).map(|(x, y)| rms_norm(&weights, "norm", &(x + y), eps)).collect()
            }
            _ => x.to_vec(),
        };
        let mut y = level(l, &input);
        if wiring == Wiring::Independent {
            y = y.iter().map(|y| y * weights.matrix("weight")).collect();
        }
        sum = Some(match sum {
            Some(said) => said.iter().zip(&y).map(|(a, b)| a + b).collect(),
            None => y,
        });
    }
    sum.expect("at least one level")
}

pub(super) fn cms(config: &CmsConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    wired(config.wiring, config.periods.len(), weights, x, eps, |l, x| {
        let weights = &weights.within(&format!("levels.{l}"));
        for_each_rule!(over, config.memory.rule, rule, {
            level(rule, &config.memory, weights, x, rows, eps, &|tokens, state| {
                chunked(rule, config.periods[l], tokens, state)
            })
        },)
    })
}

pub(super) fn conductor(config: &ConductorConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    wired(config.wiring, config.periods.len(), weights, x, eps, |l, x| {
        let weights = &weights.within(&format!("levels.{l}"));
        for_each_rule!(over, config.memory.rule, rule, {
            level(rule, &config.memory, weights, x, rows, eps, &|tokens, state| {
                pulse(rule, config.periods[l], tokens, state)
            })
        },)
    })
}

type Head<'a, R> = &'a dyn Fn(&[Token<R>], (Of<<R as Rule>::State, Var>, &[Var])) -> Vec<Var>;

fn level<R: Gated>(
    rule: R,
    config: &MemoryConfig,
    weights: &Weights,
    x: &[Var],
    rows: Rows,
    eps: f64,
    head_of: Head<'_, R>,
) -> Vec<Var> {
    let qkv = qkv(config, weights, x, rows);
    let read = over_heads(config.heads, rows, |text, head| {
        let tokens = tokens_of(rule, config, weights, (x, &qkv), (text, head));
        let sizes = sizes(config, &x[0]);
        let anchor = anchor(rule, config, weights, sizes, head);
        head_of(&tokens, (fresh(rule, weights, sizes, head), &anchor))
    });
    back(config, weights, x, read, eps)
}

pub(super) fn tnt(config: &TntConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    for_each_rule!(over, config.memory.rule, rule, tnt_of(rule, config, weights, x, rows, eps),)
}

fn tnt_of<R: Gated>(rule: R, config: &TntConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let (memory, sizes) = (&config.memory, sizes(&config.memory, &x[0]));
    let qkv = qkv(memory, weights, x, rows);
    let read = over_heads(memory.heads, rows, |text: Range<usize>, head| {
        let tokens = tokens_of(rule, memory, weights, (x, &qkv), (text.clone(), head));
        let global = anchor(rule, memory, weights, sizes, head);
        let mut o = chunked(rule, config.chunk, &tokens, (fresh(rule, weights, sizes, head), &global));
        for (i, &chunk) in config.locals.iter().enumerate() {
            let weights = &weights.within(&format!("locals.{i}"));
            let mut tokens = tokens_of(rule, memory, weights, (x, &qkv), (text.clone(), head));
            for shard in tokens.chunks_mut(config.shard) {
                let mut p: Option<Var> = None;
                for token in shard {
                    let more = token.k.t().dot(&token.k);
                    let seen = p.map_or(more.clone(), |p| p + more);
                    token.q = token.q.dot(&seen);
                    p = Some(seen);
                }
            }
            let local = anchor(rule, memory, weights, sizes, head);
            let y = sharded(rule, (chunk, config.shard), &tokens, (&fresh(rule, weights, sizes, head), &local));
            o = o.iter().zip(&y).map(|(a, b)| a + b).collect();
        }
        o
    });
    back(memory, weights, x, read, eps)
}

pub(super) fn hope(config: &HopeConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let (heads, width) = (config.heads, config.width(x[0].shape().1));
    let [q, u] = ['q', 'u'].map(|letter| project(weights, letter, x, rows, heads, true));
    let all = 3 * width + 2;
    let read = over_heads(heads, rows, |text, head| {
        let initial = columns(weights.matrix("initial.m"), head * width * all, width * all).reshape(width, all);
        // mem, k, v, eta, alpha.
        let held = [(0, width), (width, width), (2 * width, width), (3 * width, 1), (3 * width + 1, 1)];
        let starts = held.map(|(start, count)| columns(&initial, start, count));
        let mut memories = starts.clone();
        let [step, retention] = ["eta_bias", "alpha_bias"].map(|name| columns(weights.matrix(name), head, 1));
        let (mut point, mut out) = (memories.clone(), Vec::new());
        for (t, i) in text.enumerate() {
            if t % config.chunk == 0 {
                point = memories.clone();
            }
            let u = l2_norm(&u[i][head]);
            let (k, v) = (l2_norm(&u.dot(&point[1])), u.dot(&point[2]));
            let eta = gates::softplus(&(u.dot(&point[3]) + &step)).scale(1.0 / config.chunk as f64);
            let a = sigmoid(&(u.dot(&point[4]) + &retention));
            out.push(l2_norm(&q[i][head]).dot(&memories[0]));
            let written = memories.iter().zip(&point).zip(&starts).map(|((m, c), b)| {
                let erase = k.t().dot(&(k.dot(m) * &eta));
                let error = k.t().dot(&((k.dot(c) - v.dot(c)) * &eta));
                let found = if config.retain == Retain::Initial { b + (m - b) * &a } else { m * &a };
                found - erase - error
            });
            let written: Vec<Var> = written.collect();
            memories = written.try_into().unwrap_or_else(|_| unreachable!("five memories"));
        }
        out
    });
    back(&MemoryConfig { gate: config.gate, ..MemoryConfig::default() }, weights, x, read, eps)
}
