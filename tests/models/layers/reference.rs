//! Layers and models in 64 bits, from their definitions, over the names in a checkpoint.
//!
//! Everything is a row of one token; rows stand in the order of `[B,T]`.

use super::{
    composed,
    recurrence::{copy, recurrence, step},
};
use hecate_conformance::oracle::{Head, Token, Var};
use hecate_core::{Dims, GateKind, GateSlots, Initial, Of, Rule, Sequences, Slots, for_each_rule, rules::*};
use hecate_models::{AttentionConfig, Config, Features, MemoryConfig, MixerConfig, Retain, RuleConfig};
use std::collections::BTreeMap;

/// An expression over the rule of a configuration.
macro_rules! over {
    ($config:expr, $bound:ident, $body:expr, $($rule:ident),*) => {
        match $config { $(RuleConfig::$rule($bound) => $body,)* }
    };
}
pub(super) use over;

mod gates;
pub(super) mod levels;
pub(super) use gates::Gated;

/// Parameters by name, as matrices; vectors are single rows, a convolution's weight is `[channels, taps]`.
#[derive(Clone)]
pub(super) struct Weights<'a> {
    all: &'a BTreeMap<String, Var>,
    scope: String,
}

impl<'a> Weights<'a> {
    pub(super) fn new(all: &'a BTreeMap<String, Var>) -> Self {
        Self { all, scope: String::new() }
    }

    pub(super) fn within(&self, name: &str) -> Self {
        Self { all: self.all, scope: format!("{}{name}.", self.scope) }
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a Var> {
        self.all.get(&format!("{}{name}", self.scope))
    }

    /// Some parameter, of this scope or another.
    fn any(&self) -> &'a Var {
        self.all.values().next().expect("a parameter")
    }

    /// A parameter by its name in this scope.
    pub(super) fn matrix(&self, name: &str) -> &'a Var {
        self.find(name).unwrap_or_else(|| panic!("no parameter {}{name}", self.scope))
    }
}

/// How rows stand: `[batch, tokens]`.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) batch: usize,
    pub(super) tokens: usize,
}

impl Rows {
    /// Rows of each text, in order.
    pub(super) fn texts(self, rows: &[Var]) -> impl Iterator<Item = &[Var]> {
        assert_eq!(rows.len(), self.batch * self.tokens);
        rows.chunks(self.tokens)
    }
}

pub(super) fn sigmoid(x: &Var) -> Var {
    x.scale(-1.0).exp().shift(1.0).recip()
}

pub(super) fn silu(x: &Var) -> Var {
    x * sigmoid(x)
}

/// Columns `start .. start + count` of a matrix.
pub(super) fn columns(x: &Var, start: usize, count: usize) -> Var {
    let (_, width) = x.shape();
    let picked = (0..width * count).map(|i| f64::from(u8::from(i / count == start + i % count)));
    x.dot(&x.constant(width, count, picked.collect()))
}

/// Rows side by side.
fn join(parts: &[Var]) -> Var {
    let width = parts.iter().map(|part| part.shape().1).sum();
    let mut start = 0;
    Var::total(parts.iter().map(|part| {
        let count = part.shape().1;
        let placed = (0..count * width).map(|i| f64::from(u8::from(i % width == start + i / width)));
        let placed = part.dot(&part.constant(count, width, placed.collect()));
        start += count;
        placed
    }))
}

pub(super) fn linear(weights: &Weights, name: &str, x: &Var) -> Var {
    let weights = weights.within(name);
    let y = x.dot(&weights.matrix("weight").t());
    weights.find("bias").map_or(y.clone(), |bias| &y + bias)
}

pub(super) fn rms_norm(weights: &Weights, name: &str, x: &Var, epsilon: f64) -> Var {
    let mean = x.square().sum().scale(1.0 / x.shape().1 as f64);
    x * mean.shift(epsilon).sqrt().recip() * weights.within(name).matrix("weight")
}

pub(super) fn l2_norm(x: &Var) -> Var {
    // The layer's constant is a 32-bit float.
    let epsilon = f64::from(1e-6f32);
    x * x.square().sum().shift(epsilon * epsilon).sqrt().recip()
}

/// Monomials of degree up to two, weighted so that unit rows stay unit rows.
fn poly2(x: &Var) -> Var {
    let (_, width) = x.shape();
    let [zeroth, first, second] = [0.4f32, 0.4, 0.2].map(|c| f64::from(c).sqrt());
    let mut parts = vec![x.constant(1, 1, vec![zeroth]), x.scale(first)];
    for i in 0..width {
        let row = columns(x, i, 1) * columns(x, i, width - i);
        let mut weights = vec![second * 2f64.sqrt(); width - i];
        weights[0] = second;
        parts.push(&row * row.constant(1, width - i, weights));
    }
    join(&parts)
}

pub(super) fn short_conv(weights: &Weights, name: &str, x: &[Var], rows: Rows) -> Vec<Var> {
    let weight = weights.within(name).matrix("weight");
    let (channels, taps) = weight.shape();
    let tap: Vec<Var> = (0..taps).map(|j| columns(weight, j, 1).t()).collect();
    let nothing = weight.constant(1, channels, vec![0.0; channels]);
    let text = |text: &[Var]| {
        let at = |t: usize, j: usize| if t + 1 + j < taps { &nothing } else { &text[t + 1 + j - taps] };
        let y = |t| silu(&Var::total((0..taps).map(|j| at(t, j) * &tap[j])));
        (0..text.len()).map(y).collect::<Vec<_>>()
    };
    rows.texts(x).flat_map(text).collect()
}

pub(super) fn mlp(weights: &Weights, x: &Var) -> Var {
    let inner = silu(&linear(weights, "gate_proj", x)) * linear(weights, "up_proj", x);
    linear(weights, "down_proj", &inner)
}

/// Rows of heads: `[row][head]`.
pub(super) fn project(
    weights: &Weights,
    letter: char,
    x: &[Var],
    rows: Rows,
    heads: usize,
    activate: bool,
) -> Vec<Vec<Var>> {
    let conv = format!("{letter}_conv1d");
    let mut y: Vec<Var> = x.iter().map(|x| linear(weights, &format!("{letter}_proj"), x)).collect();
    if weights.find(&format!("{conv}.weight")).is_some() {
        y = short_conv(weights, &conv, &y, rows);
    } else if activate {
        y = y.iter().map(silu).collect();
    }
    let width = y[0].shape().1 / heads;
    y.iter().map(|y| (0..heads).map(|head| columns(y, head * width, width)).collect()).collect()
}

/// `log a` of all heads, of so many channels each; 0 where the rule has no such gate.
fn log_a<R: Rule>(weights: &Weights, config: &MemoryConfig, x: &Var, channels: usize) -> Var {
    if !config.decay || !R::Gates::KINDS.contains(&GateKind::Retention) {
        let count = config.heads * channels;
        return x.constant(1, count, vec![0.0; count]);
    }
    let step = (linear(weights, "a_proj", x) + weights.matrix("dt_bias")).exp().shift(1.0).ln();
    step * slopes(weights, channels).scale(-f64::from(config.forgetting))
}

/// `exp(A_log)` of all heads, each for so many channels.
pub(super) fn slopes(weights: &Weights, channels: usize) -> Var {
    let slopes = weights.matrix("A_log").exp();
    let each =
        (0..slopes.shape().1).map(|head| columns(&slopes, head, 1) * slopes.constant(1, channels, vec![1.0; channels]));
    join(&each.collect::<Vec<_>>())
}

/// The memory of a head before any token: learned where there is a parameter, else zeros.
pub(super) fn fresh<R: Rule>(
    rule: R,
    weights: &Weights,
    (heads, key, value): (usize, usize, usize),
    head: usize,
) -> Of<R::State, Var> {
    let dims = Dims { batch: 1, tokens: 1, heads, key, value, sequences: Sequences::batch(1, 1), anchored: false };
    let mut initial = R::State::into_vec(rule.initial(&dims)).into_iter();
    R::State::map(rule.state(&dims), |name, shape| {
        let (rows, width, count) = (shape.axes()[2], shape.last(), shape.count() / heads);
        let unit = initial.next() == Some(Initial::Unit);
        let Some(all) = weights.find(&format!("initial.{name}")) else {
            return weights.any().constant(rows, width, vec![0.0; count]);
        };
        let learned = columns(all, head * count, count).reshape(rows, width);
        if unit { unit_rows(&learned) } else { learned }
    })
}

/// What the memory of a head goes back to; nothing where that is zero.
pub(super) fn anchor<R: Rule>(
    rule: R,
    config: &MemoryConfig,
    weights: &Weights,
    sizes: (usize, usize, usize),
    head: usize,
) -> Vec<Var> {
    if !config.decay || config.retention() == Retain::Zero {
        return Vec::new();
    }
    // Of linear rules the memory, which is the first slot of the state, and not its momentum.
    let slots = R::Anchor::NAMES.len().max(1);
    R::State::into_vec(fresh(rule, weights, sizes, head)).into_iter().take(slots).collect()
}

fn unit_rows(x: &Var) -> Var {
    let width = x.shape().1;
    let squares = x.square().dot(&x.constant(width, 1, vec![1.0; width]));
    let epsilon = f64::from(1e-6f32);
    x * squares.shift(epsilon * epsilon).sqrt().recip()
}

fn memory_of<R: Gated>(rule: R, config: &MemoryConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    back(config, weights, x, read_of(rule, config, weights, x, rows).0, eps)
}

/// What was read, `[row][head]`, and the last states, `[text][head]`.
pub(super) fn read_of<R: Gated>(
    rule: R,
    config: &MemoryConfig,
    weights: &Weights,
    x: &[Var],
    rows: Rows,
) -> (Vec<Vec<Var>>, Vec<Vec<Of<R::State, Var>>>) {
    let (qkv, mut states) = (qkv(config, weights, x, rows), Vec::new());
    let read = over_heads(config.heads, rows, |text, head| {
        let tokens = tokens_of(rule, config, weights, (x, &qkv), (text, head));
        let sizes = sizes(config, &x[0]);
        let anchor = anchor(rule, config, weights, sizes, head);
        let (out, state) = recurrence(rule, &tokens, fresh(rule, weights, sizes, head), &anchor);
        states.push(state);
        // A token reads after its last write.
        let writes = config.writes_per_token;
        out.into_iter().skip(writes - 1).step_by(writes).collect()
    });
    let mut states = states.into_iter();
    (read, (0..rows.batch).map(|_| states.by_ref().take(config.heads).collect()).collect())
}

/// Queries, keys and values of all heads.
pub(super) fn qkv(config: &MemoryConfig, weights: &Weights, x: &[Var], rows: Rows) -> [Vec<Vec<Var>>; 3] {
    let writes = config.heads * config.writes_per_token;
    let [q, k, mut v] = [('q', config.heads), ('k', writes), ('v', writes)]
        .map(|(letter, heads)| project(weights, letter, x, rows, heads, true));
    let unit = match config.rule {
        RuleConfig::Trellis(rule) => rule.phi != Phi::Identity,
        RuleConfig::Moneta(_) | RuleConfig::MonetaMatrix(_) => true,
        _ => false,
    };
    if let RuleConfig::Lif(rule) = config.rule {
        let width = config.widths(x[0].shape().1).1 as f64;
        v.iter_mut().flatten().for_each(|v| *v = l2_norm(v).scale(2.0 * f64::from(rule.threshold) * width));
    }
    if unit {
        v.iter_mut().flatten().for_each(|v| *v = l2_norm(v));
    }
    [q, k, v]
}

/// Heads, and widths of keys and values.
pub(super) fn sizes(config: &MemoryConfig, x: &Var) -> (usize, usize, usize) {
    let (key, value) = config.widths(x.shape().1);
    (config.heads, config.features.width(key), value)
}

/// What one head of one text is told, write by write, with gates from the parameters in `gates`.
pub(super) fn tokens_of<R: Gated>(
    rule: R,
    config: &MemoryConfig,
    gates: &Weights,
    (x, [q, k, v]): (&[Var], &[Vec<Vec<Var>>; 3]),
    (text, head): (std::ops::Range<usize>, usize),
) -> Vec<Token<R>> {
    let writes = config.writes_per_token;
    let token = |(i, write): (usize, usize)| {
        // Writes stand side by side, all heads of the first and then those of the next.
        let place = write * config.heads + head;
        let channels = rule.channels(sizes(config, &x[i]).1).unwrap_or(1);
        let log_a = columns(&log_a::<R>(gates, config, &x[i], channels), head * channels, channels);
        let log_a = if write == 0 { log_a } else { log_a.scale(0.0) };
        let signal = |name: &str| {
            let signals = linear(gates, name, &x[i]);
            let width = signals.shape().1 / (config.heads * writes);
            columns(&signals, place * width, width)
        };
        let unit = |x: &Var| match config.features {
            Features::Identity => l2_norm(x),
            Features::Poly2 => poly2(&l2_norm(x)),
        };
        let (q, k, v) = (unit(&q[i][head]), unit(&k[i][place]), v[i][place].clone());
        let gates = rule.gated(log_a, &signal, config);
        let token = Token { q, k, v, gates, head: Head { index: head, count: config.heads } };
        if config.mean { levels::tempered(rule, &token) } else { token }
    };
    text.flat_map(|i| (0..writes).map(move |write| (i, write))).map(token).collect()
}

/// What every head of every text reads, `[row][head]`.
pub(super) fn over_heads(
    heads: usize,
    rows: Rows,
    mut read: impl FnMut(std::ops::Range<usize>, usize) -> Vec<Var>,
) -> Vec<Vec<Var>> {
    let mut all = vec![Vec::new(); rows.batch * rows.tokens];
    for text in 0..rows.batch {
        let text = text * rows.tokens..(text + 1) * rows.tokens;
        for head in 0..heads {
            read(text.clone(), head).into_iter().zip(text.clone()).for_each(|(out, i)| all[i].push(out));
        }
    }
    all
}

/// What was read, `[row][head]`, to the residual stream.
pub(super) fn back(config: &MemoryConfig, weights: &Weights, x: &[Var], read: Vec<Vec<Var>>, eps: f64) -> Vec<Var> {
    let back = |(x, read): (&Var, Vec<Var>)| {
        let normed: Vec<Var> = read.iter().map(|y| rms_norm(weights, "o_norm", y, eps)).collect();
        let y = join(&normed);
        let y = if config.gate { y * silu(&linear(weights, "g_proj", x)) } else { y };
        linear(weights, "o_proj", &y)
    };
    x.iter().zip(read).map(back).collect()
}

fn rotate(x: &Var, position: usize, base: f64) -> Var {
    let width = x.shape().1;
    let half = width / 2;
    let mut turn = vec![0.0; width * width];
    for i in 0..half {
        let angle = position as f64 * base.powf(-2.0 * i as f64 / width as f64);
        turn[i * width + i] = angle.cos();
        turn[(i + half) * width + i + half] = angle.cos();
        turn[i * width + i + half] = angle.sin();
        turn[(i + half) * width + i] = -angle.sin();
    }
    x.dot(&x.constant(width, width, turn))
}

/// Attention in which every token sees the rows `prefix` as well; these have no position.
pub(super) fn attention(
    config: &AttentionConfig,
    weights: &Weights,
    x: &[Var],
    rows: Rows,
    prefix: &[Var],
) -> Vec<Var> {
    let kv_heads = config.kv_heads.unwrap_or(config.heads);
    let q = project(weights, 'q', x, rows, config.heads, false);
    let k = project(weights, 'k', x, rows, kv_heads, false);
    let v = project(weights, 'v', x, rows, kv_heads, false);
    let fixed = |letter| match prefix {
        [] => Vec::new(),
        _ => project(weights, letter, prefix, Rows { batch: 1, tokens: prefix.len() }, kv_heads, false),
    };
    let (fixed_k, fixed_v) = (fixed('k'), fixed('v'));
    let (group, base) = (config.heads / kv_heads, f64::from(config.rope_base));
    let scale = 1.0 / (q[0][0].shape().1 as f64).sqrt();
    let place = |i: usize| i % rows.tokens;
    let read = |i: usize, head: usize| {
        let (unturned, q) = (&q[i][head], rotate(&q[i][head], place(i), base));
        let first = i - place(i).min(config.window - 1);
        let weight = |j: usize| q.dot(&rotate(&k[j][head / group], place(j), base).t()).scale(scale).exp();
        let fixed = |k: &Vec<Var>| unturned.dot(&k[head / group].t()).scale(scale).exp();
        let seen: Vec<Var> = (first..=i).map(weight).chain(fixed_k.iter().map(fixed)).collect();
        let values = v[first..=i].iter().chain(&fixed_v);
        let total = Var::total(seen.iter().cloned());
        Var::total(seen.iter().zip(values).map(|(w, v)| w * &v[head / group])) * total.recip()
    };
    let back = |i| {
        let heads: Vec<Var> = (0..config.heads).map(|head| read(i, head)).collect();
        linear(weights, "o_proj", &join(&heads))
    };
    (0..x.len()).map(back).collect()
}

pub(super) fn mixer(config: &MixerConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    match config {
        MixerConfig::Attention(config) => attention(config, weights, x, rows, &[]),
        MixerConfig::Memory(config) => memory(config, weights, x, rows, eps),
        MixerConfig::Mag(config) => composed::mag(config, weights, x, rows, eps),
        MixerConfig::Mal(config) => composed::mal(config, weights, x, rows, eps),
        MixerConfig::Mac(config) => composed::mac(config, weights, x, rows, eps),
        MixerConfig::Cms(config) => levels::cms(config, weights, x, rows, eps),
        MixerConfig::Conductor(config) => levels::conductor(config, weights, x, rows, eps),
        MixerConfig::Tnt(config) => levels::tnt(config, weights, x, rows, eps),
        MixerConfig::Hope(config) => levels::hope(config, weights, x, rows, eps),
    }
}

pub(super) fn memory(config: &MemoryConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    for_each_rule!(over, config.rule, rule, memory_of(rule, config, weights, x, rows, eps),)
}

/// Mean loss of a model.
pub(super) fn loss(config: &Config, weights: &Weights, inputs: &[u32], targets: &[u32], rows: Rows) -> Var {
    let eps = f64::from(config.norm_eps);
    let model = weights.within("model");
    let table = model.within("embeddings").matrix("weight");
    let vocabulary = config.vocabulary_size;
    let one = |token: u32| {
        let row = (0..vocabulary).map(|v| f64::from(u8::from(v == token as usize)));
        table.constant(1, vocabulary, row.collect())
    };
    let mut x: Vec<Var> = inputs.iter().map(|&token| one(token).dot(table)).collect();
    for (i, layer) in config.layers.iter().enumerate() {
        let weights = model.within(&format!("layers.{i}"));
        let normed: Vec<Var> = x.iter().map(|x| rms_norm(&weights, "attn_norm", x, eps)).collect();
        let mixed = mixer(&layer.mixer, &weights.within("attn"), &normed, rows, eps);
        x = x.iter().zip(&mixed).map(|(x, y)| x + y).collect();
        let thought = |x: &Var| x + mlp(&weights.within("mlp"), &rms_norm(&weights, "mlp_norm", x, eps));
        x = x.iter().map(thought).collect();
    }
    let head = if config.tie_word_embeddings { table } else { weights.within("lm_head").matrix("weight") };
    let surprise = |(x, &target): (&Var, &u32)| {
        let logits = rms_norm(&model, "norm", x, eps).dot(&head.t());
        logits.exp().sum().ln() - (logits * one(target)).sum()
    };
    Var::total(x.iter().zip(targets).map(surprise)).scale(1.0 / inputs.len() as f64)
}
