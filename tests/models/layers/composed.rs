//! Compositions in 64 bits, from their definitions.

use super::reference::{
    Gated, Rows, Weights, attention, back, l2_norm, linear, memory, project, read_of, rms_norm, sigmoid,
};
use hecate_core::Slots;
use hecate_models::{AttentionConfig, ComposedConfig, MacConfig, RuleConfig};
use hecate_tests::oracle::Var;

/// The persistent rows.
fn persistent(weights: &Weights) -> Vec<Var> {
    let Some(all) = weights.find("persistent") else { return Vec::new() };
    let count = all.shape().0;
    let row = |i| all.constant(1, count, (0..count).map(|j| f64::from(u8::from(i == j))).collect()).dot(all);
    (0..count).map(row).collect()
}

/// What a memory makes of the persistent rows, and of the texts behind them.
fn memory_behind(config: &ComposedConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> (Vec<Var>, Vec<Var>) {
    let first = persistent(weights);
    let all: Vec<Var> = rows.texts(x).flat_map(|text| [&first, text].concat()).collect();
    let tokens = first.len() + rows.tokens;
    let y = memory(&config.memory, &weights.within("memory"), &all, Rows { tokens, ..rows }, eps);
    let texts = y.chunks(tokens).flat_map(|text| &text[first.len()..]).cloned().collect();
    (y[..first.len()].to_vec(), texts)
}

fn merge(weights: &Weights, y: &[Var], m: &[Var], eps: f64) -> Vec<Var> {
    let one =
        |(y, m): (&Var, &Var)| linear(weights, "o_proj", &(y * sigmoid(&rms_norm(weights, "memory_norm", m, eps))));
    y.iter().zip(m).map(one).collect()
}

fn norms(weights: &Weights, name: &str, x: &[Var], eps: f64) -> Vec<Var> {
    x.iter().map(|x| rms_norm(weights, name, x, eps)).collect()
}

pub(super) fn mag(config: &ComposedConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let seen = attention(&config.attention, &weights.within("attention"), x, rows, &persistent(weights));
    let (_, m) = memory_behind(config, weights, x, rows, eps);
    merge(weights, &norms(weights, "attention_norm", &seen, eps), &m, eps)
}

pub(super) fn mal(config: &ComposedConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let (first, texts) = memory_behind(config, weights, x, rows, eps);
    let [first, texts] = [first, texts].map(|z| norms(weights, "memory_norm", &z, eps));
    attention(&config.attention, &weights.within("attention"), &texts, rows, &first)
}

/// Rules with one matrix in front of their state: `q` reads `q M`.
pub(super) fn mac(config: &MacConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let text = |x: &[Var]| match config.memory.rule {
        RuleConfig::Hebbian(rule) => mac_of(rule, config, weights, x, eps),
        RuleConfig::Delta(rule) => mac_of(rule, config, weights, x, eps),
        RuleConfig::Titans(rule) => mac_of(rule, config, weights, x, eps),
        RuleConfig::Dgd(rule) => mac_of(rule, config, weights, x, eps),
        // The other memories are functions.
        RuleConfig::Atlas(rule) => mac_of(rule, config, weights, x, eps),
        rule => panic!("{} has no matrix", rule.name()),
    };
    rows.texts(x).flat_map(text).collect()
}

/// One text.
fn mac_of<R: Gated>(rule: R, config: &MacConfig, weights: &Weights, x: &[Var], eps: f64) -> Vec<Var> {
    let one = |tokens| Rows { batch: 1, tokens };
    let inner = weights.within("memory");
    let q = project(&inner, 'q', x, one(x.len()), config.memory.heads, true);
    // A token and what was read for it are two rows.
    let window = 2 * config.attention.window.min(config.segment);
    let doubled = AttentionConfig { window, ..config.attention.clone() };
    let mut y: Vec<Var> = Vec::new();
    for (x, q) in x.chunks(config.segment).zip(q.chunks(config.segment)) {
        let states = match &y[..] {
            [] => Vec::new(),
            y => read_of(rule, &config.memory, &inner, y, one(y.len())).1.remove(0),
        };
        let look_up = |q: &Var, head: usize| match states.get(head) {
            Some(state) => l2_norm(q).dot(R::State::list(state)[0].1),
            None => q.constant(1, value_width(config, &inner), vec![0.0; value_width(config, &inner)]),
        };
        let read = q.iter().map(|q| q.iter().enumerate().map(|(head, q)| look_up(q, head)).collect()).collect();
        let h = norms(weights, "read_norm", &back(&config.memory, &inner, x, read, eps), eps);
        let both: Vec<Var> = h.iter().zip(x).flat_map(|(h, x)| [h.clone(), x.clone()]).collect();
        let seen = attention(&doubled, &weights.within("attention"), &both, one(both.len()), &persistent(weights));
        let seen: Vec<Var> = seen.into_iter().skip(1).step_by(2).collect();
        y.extend(norms(weights, "attention_norm", &seen, eps));
    }
    let read = read_of(rule, &config.memory, &inner, &y, one(y.len())).0;
    let m = back(&config.memory, &inner, &y, read, eps);
    merge(weights, &y, &m, eps)
}

fn value_width(config: &MacConfig, inner: &Weights) -> usize {
    inner.matrix("v_proj.weight").shape().0 / config.memory.heads
}
