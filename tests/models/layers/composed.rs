//! Compositions in 64 bits, from their definitions.

use super::reference::{
    Gated, Rows, Weights, attention, back, fresh, levels::read, linear, memory, over, qkv, read_of, rms_norm, sigmoid,
    sizes, tokens_of,
};
use hecate_conformance::oracle::Var;
use hecate_core::for_each_rule;
use hecate_models::{AttentionConfig, ComposedConfig, MacConfig, RuleConfig};

/// The persistent rows.
fn persistent(weights: &Weights) -> Vec<Var> {
    let Some(all) = weights.find("persistent") else { return Vec::new() };
    let count = all.shape().0;
    let row = |i| all.constant(1, count, (0..count).map(|j| f64::from(u8::from(i == j))).collect()).dot(all);
    (0..count).map(row).collect()
}

/// What a memory makes of the persistent rows, and of the texts after them.
fn memory_after(config: &ComposedConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> (Vec<Var>, Vec<Var>) {
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
    let (_, m) = memory_after(config, weights, x, rows, eps);
    merge(weights, &norms(weights, "attention_norm", &seen, eps), &m, eps)
}

pub(super) fn mal(config: &ComposedConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let (first, texts) = memory_after(config, weights, x, rows, eps);
    let [first, texts] = [first, texts].map(|z| norms(weights, "memory_norm", &z, eps));
    attention(&config.attention, &weights.within("attention"), &texts, rows, &first)
}

pub(super) fn mac(config: &MacConfig, weights: &Weights, x: &[Var], rows: Rows, eps: f64) -> Vec<Var> {
    let text = |x: &[Var]| for_each_rule!(over, config.memory.rule, rule, mac_of(rule, config, weights, x, eps),);
    rows.texts(x).flat_map(text).collect()
}

/// One text.
fn mac_of<R: Gated>(rule: R, config: &MacConfig, weights: &Weights, x: &[Var], eps: f64) -> Vec<Var> {
    let one = |tokens| Rows { batch: 1, tokens };
    let (memory, inner, heads) = (&config.memory, weights.within("memory"), 0..config.memory.heads);
    let qkv = qkv(memory, &inner, x, one(x.len()));
    // A token and what was read for it are two rows.
    let window = 2 * config.attention.window.min(config.segment);
    let doubled = AttentionConfig { window, ..config.attention.clone() };
    let mut y: Vec<Var> = Vec::new();
    for start in (0..x.len()).step_by(config.segment) {
        let segment = start..x.len().min(start + config.segment);
        let states: Vec<_> = match &y[..] {
            [] => heads.clone().map(|head| fresh(rule, &inner, sizes(memory, &x[0]), head)).collect(),
            y => read_of(rule, memory, &inner, y, one(y.len())).1.remove(0),
        };
        let mut looked_up = vec![Vec::new(); segment.len()];
        for (head, state) in states.iter().enumerate() {
            let tokens = tokens_of(rule, memory, &inner, (x, &qkv), (segment.clone(), head));
            looked_up.iter_mut().zip(&tokens).for_each(|(row, token)| row.push(read(rule, state, token)));
        }
        let x = &x[segment];
        let h = norms(weights, "read_norm", &back(memory, &inner, x, looked_up, eps), eps);
        let both: Vec<Var> = h.iter().zip(x).flat_map(|(h, x)| [h.clone(), x.clone()]).collect();
        let seen = attention(&doubled, &weights.within("attention"), &both, one(both.len()), &persistent(weights));
        let seen: Vec<Var> = seen.into_iter().skip(1).step_by(2).collect();
        y.extend(norms(weights, "attention_norm", &seen, eps));
    }
    let read = read_of(rule, memory, &inner, &y, one(y.len())).0;
    let m = back(memory, &inner, &y, read, eps);
    merge(weights, &y, &m, eps)
}
