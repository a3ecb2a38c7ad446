//! Evaluation and generation carry the state, so that cutting a text changes nothing.

use super::fixtures::*;
use approx::assert_relative_eq;
use hecate_core::rules::Delta;
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Error, LanguageModel, LayerConfig, MemoryConfig, MixerConfig, RuleConfig,
    evaluate::{Budget, SEGMENT, evaluate, evaluate_afresh, evaluate_by_position},
    generate::generate,
    sampling::{Sampler, Sampling},
    text::Stream,
};
use std::{ops::ControlFlow, time::Duration};

fn frozen() -> LanguageModel<Cpu> {
    let rule = RuleConfig::Delta(Delta { frozen: Some(4), ..Delta::default() });
    let mixer = MixerConfig::Memory(MemoryConfig { rule, heads: 2, ..MemoryConfig::default() });
    let config = Config { hidden_size: 16, layers: vec![LayerConfig { mixer }; 2], ..Config::default() };
    LanguageModel::new(&Cpu::new(), &config, 3).unwrap()
}

fn models() -> Vec<LanguageModel<Cpu>> {
    let names = ["delta", "titans", "dgd", "attention", "mag", "mal", "mac"];
    names.into_iter().map(model).chain([frozen()]).collect()
}

#[test]
fn segments_do_not_change_the_loss() {
    let stream = corpus().held_out.head(70);
    for model in models() {
        let tokens = stream.tokens.to_vec().unwrap();
        let whole = model.loss(&tokens[..69], &tokens[1..], 1).unwrap();
        for segment in [1, 7, 32, 69, 500] {
            let score = evaluate(&model, &stream, segment, |_| ControlFlow::Continue(())).unwrap();
            assert_relative_eq!(score.loss(), whole, max_relative = 1e-5);
            assert_eq!(score.tokens, 69);
            assert_relative_eq!(score.bits_per_byte(), whole / 2_f64.ln(), max_relative = 1e-5);
            assert_relative_eq!(score.perplexity(), whole.exp(), max_relative = 1e-4);
        }
    }
}

#[test]
fn too_little_to_measure_is_refused() {
    let empty = Stream { tokens: vec![1].into(), bytes: 1 };
    assert!(matches!(evaluate(&model("delta"), &empty, 8, |_| ControlFlow::Continue(())), Err(Error::Config { .. })));
    assert!(matches!(
        evaluate(&model("delta"), &corpus().held_out, 0, |_| ControlFlow::Continue(())),
        Err(Error::Config { .. })
    ));
}

#[test]
fn greedy_generation_follows_the_whole_forward() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    for model in models() {
        let mut text = vec![72, 101, 99];
        let continuation = generate(&model, &text, Sampler::new(greedy).unwrap()).unwrap();
        for token in continuation.take(12) {
            let logits = model.infer(&text, 1, &mut model.cache(1).unwrap()).unwrap().to_f32().unwrap();
            let last = &logits[logits.len() - 256..];
            let found = token.unwrap();
            let best = last.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_relative_eq!(last[found as usize], best, max_relative = 1e-4);
            text.push(found);
        }
    }
}

#[test]
fn breaking_off_scores_what_was_read() {
    let (model, stream) = (model("delta"), corpus().held_out.head(70));
    let stop_at = |tokens| move |done| if done >= tokens { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let part = evaluate(&model, &stream, 8, stop_at(20)).unwrap();
    let alone = evaluate(&model, &stream.head(25), 8, stop_at(usize::MAX)).unwrap();
    assert_eq!((part.tokens, part.bytes), (24, 24.0));
    assert_relative_eq!(part.loss(), alone.loss(), max_relative = 1e-6);
}

#[test]
fn fresh_memories_know_their_own_text_alone() {
    let go_on = |_| ControlFlow::Continue(());
    for model in models() {
        // Two texts of 28 tokens and one of 13; the last token of a text is predicted, and read by the next.
        let stream = corpus().held_out.head(70);
        let alone = [0, 28, 56].map(|from| {
            let tokens = stream.tokens.read(from..70.min(from + 29)).unwrap();
            evaluate(&model, &Stream { bytes: tokens.len(), tokens: tokens.into() }, 8, go_on).unwrap()
        });
        // In parts of a window, one window after another, and both whole windows at once.
        for segment in [8, 28, 64, usize::MAX] {
            let score = evaluate_afresh(&model, &stream, (segment, 28), go_on).unwrap();
            assert_eq!(score.tokens, 69);
            assert_relative_eq!(score.nats, alone.iter().map(|score| score.nats).sum::<f64>(), max_relative = 1e-6);
        }
    }
    let nothing = evaluate_afresh(&model("delta"), &corpus().held_out, (8, 0), go_on);
    assert!(matches!(nothing, Err(Error::Config { .. })));
}

#[test]
fn positions_are_those_of_one_pass() {
    // A text of two ranges and the start of a third.
    let (model, stream) = (model("delta"), corpus().held_out.head(300));
    let go_on = |_| ControlFlow::Continue(());
    let whole = evaluate(&model, &stream, SEGMENT, go_on).unwrap();
    // Calls of 100 tokens reach over the end of the first range.
    let ranges = evaluate_by_position(&model, &stream, 100, go_on).unwrap();
    assert_eq!(ranges.map(|score| score.tokens), [256, 43, 0, 0, 0, 0]);
    assert_relative_eq!(ranges.iter().map(|score| score.nats).sum::<f64>(), whole.nats, max_relative = 1e-6);
    let first = evaluate(&model, &stream.head(257), SEGMENT, go_on).unwrap();
    assert_relative_eq!(ranges[0].nats, first.nats, max_relative = 1e-6);
    assert_relative_eq!(ranges[0].bits_per_byte(), first.bits_per_byte(), max_relative = 1e-6);
}

#[test]
fn a_budget_ends_a_measurement() {
    let (model, stream) = (model("delta"), corpus().held_out.head(70));
    let spent = Budget::new(Some(Duration::ZERO));
    assert_eq!(evaluate(&model, &stream, 8, |_| spent.check()).unwrap().tokens, 8);
    let all = Budget::new(None);
    assert_eq!(evaluate(&model, &stream, 8, |_| all.check()).unwrap().tokens, 69);
    let most = Duration::from_secs(3600);
    assert!(Budget::new(Some(most)).left().unwrap() <= most && all.left().is_none());
}

#[test]
fn a_generation_reads_on() {
    let greedy = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }).unwrap();
    for model in models() {
        let mut carried = generate(&model, &[72, 101], greedy.clone()).unwrap();
        let mut text = vec![72, 101];
        text.extend(carried.by_ref().take(5).map(|token| token.unwrap()));
        // Before the device is asked to capture a step, and after.
        for more in [[99, 100], [9, 10]] {
            carried.read_on(&more).unwrap();
            text.extend(more);
            let mut whole = generate(&model, &text, greedy.clone()).unwrap();
            let found: Vec<u32> = carried.by_ref().take(3).map(|token| token.unwrap()).collect();
            assert_eq!(found, whole.by_ref().take(3).map(|token| token.unwrap()).collect::<Vec<_>>());
            text.extend(found);
        }
    }
}

#[test]
fn generation_ends_with_its_first_error() {
    let mut model = model("delta");
    let last = model.parameters_mut().iter_mut().last().unwrap();
    let shape = last.value.shape().clone();
    let poison = vec![f32::NAN; shape.count()];
    last.value = hecate_core::Tensor::from_f32(last.value.device(), shape, poison).unwrap();
    let mut continuation = generate(&model, &[1], Sampler::new(Sampling::default()).unwrap()).unwrap();
    assert!(matches!(continuation.next(), Some(Err(Error::NonFinite { .. }))));
    assert!(continuation.next().is_none() && continuation.next().is_none());
}

#[test]
fn an_empty_prompt_is_refused() {
    let sampler = Sampler::new(Sampling::default()).unwrap();
    assert!(matches!(generate(&model("delta"), &[], sampler), Err(Error::Config { .. })));
}
