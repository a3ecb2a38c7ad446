//! Memories that keep a part of themselves at every token: the "safe gate" of Kimi delta attention.

use super::{
    HIDDEN, ROWS, check,
    reference::{back, columns, fresh, linear, over_heads, qkv, sigmoid, sizes, slopes, tokens_of},
};
use crate::{column::is_missing, configs};
use hecate_core::rules::{ChannelStepGates, Kda};
use hecate_models::{
    RuleConfig,
    layers::{Context, Memory, MemoryForm, Mixer as _},
};

/// The least that a channel's `log a` can be.
const BOUND: f32 = -5.0;

/// `log a = L σ(exp(A_log) (x W_a + dt_bias))`, with a logit a channel and an `A_log` a head, in a layer that is else as it was.
#[test]
fn a_bound_of_each_channel() {
    if is_missing() {
        return;
    }
    let config = configs::memory(RuleConfig::Kda(Kda::default()));
    let (rule, form) = (Kda::default(), MemoryForm { retention_bound: Some(BOUND), ..MemoryForm::default() });
    check(
        "kda with a safe gate",
        |build| Memory::in_form(build, &config.with_rule(rule), (HIDDEN, 1e-5), form),
        |layer, tape, x| layer.forward(tape, x, &mut Context::whole(ROWS.batch, ROWS.tokens)),
        |weights, x| {
            let (qkv, sizes) = (qkv(&config, weights, x, ROWS), sizes(&config, &x[0]));
            let channels = sizes.1;
            let read = over_heads(config.heads, ROWS, |text, head| {
                let mut tokens = tokens_of(rule, &config, weights, (x, &qkv), (text.clone(), head));
                for (token, i) in tokens.iter_mut().zip(text) {
                    let logits =
                        (linear(weights, "a_proj", &x[i]) + weights.matrix("dt_bias")) * slopes(weights, channels);
                    let log_a = sigmoid(&columns(&logits, head * channels, channels)).scale(f64::from(BOUND));
                    token.gates = ChannelStepGates { log_a, theta: token.gates.theta.clone() };
                }
                super::recurrence::recurrence(rule, &tokens, fresh(rule, weights, sizes, head), &[]).0
            });
            back(&config, weights, x, read, f64::from(1e-5f32))
        },
    );
}
