//! Evaluation and generation carry the state, so that cutting a text changes nothing.

use super::fixtures::*;
use approx::assert_relative_eq;
use hecate_core::rules::Delta;
use hecate_cpu::Cpu;
use hecate_models::{
    Config, Error, LanguageModel, LayerConfig, MemoryConfig, MixerConfig, RuleConfig, Vocabulary,
    generate::generate,
    sampling::{Sampler, Sampling},
    text::{Stream, Windows},
};
use hecate_train::{
    Settings,
    evaluate::{Budget, SEGMENT, Score, evaluate, evaluate_afresh, evaluate_and_monitor, evaluate_by_position},
};
use std::{ops::ControlFlow, path::Path, time::Duration};

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

/// Words of five bytes, then letters of two: a part's figure counts the bytes of its own tokens.
fn long_then_short() -> (Vocabulary, Stream) {
    let vocab: serde_json::Map<String, serde_json::Value> = (0..26_u8)
        .map(|i| (char::from(b'a' + i).to_string(), i.into()))
        .chain([("word".to_owned(), 26.into())])
        .collect();
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "unk_token": "a", "vocab": vocab }
    });
    let vocabulary = Vocabulary::from_json(Path::new("tokenizer.json"), file.to_string().as_bytes()).unwrap();
    let text = "word ".repeat(300) + &"b ".repeat(300);
    let stream = Stream::encode(&vocabulary, &text).unwrap();
    assert_eq!((stream.tokens.len(), stream.bytes), (600, 2100));
    (vocabulary, stream)
}

#[test]
fn bits_a_byte_are_of_the_bytes_of_the_tokens_measured() {
    let ((_, stream), model) = (long_then_short(), model("delta"));
    let go_on = |_| ControlFlow::Continue(());
    let bits = |score: &Score, bytes: f64| {
        assert_relative_eq!(score.bits_per_byte(), score.nats / 2_f64.ln() / bytes, max_relative = 1e-12);
    };
    let ranges = evaluate_by_position(&model, &stream, 100, go_on).unwrap();
    assert_eq!(ranges.map(|score| score.tokens), [256, 343, 0, 0, 0, 0]);
    // The space before a word is its own; the first word, of 4 bytes, is not predicted. The last letter has the last space.
    bits(&ranges[0], 256.0 * 5.0);
    bits(&ranges[1], 43.0 * 5.0 + 300.0 * 2.0 + 1.0);
    bits(&evaluate(&model, &stream, 100, go_on).unwrap(), 2096.0);
    // Cut by time, of a part, and with fresh memories.
    bits(&evaluate(&model, &stream, 50, |_| ControlFlow::Break(())).unwrap(), 250.0);
    assert_eq!(stream.head(9).bytes, 4 + 8 * 5);
    bits(&evaluate_afresh(&model, &stream.head(9), (4, 4), go_on).unwrap(), 40.0);
    bits(&evaluate_and_monitor(&model, &stream.head(9), 4, go_on).unwrap().0, 40.0);
}

/// Each step counts the bytes of its own windows, with memories carried and without.
#[test]
fn bits_a_byte_of_a_step_are_of_its_own_bytes() {
    let (_, stream) = long_then_short();
    for carry in [1, 2] {
        let settings = Settings { batch: 1, accumulate: 2, carry, ..settings() };
        let mut trainer = trainer("delta", settings);
        let reports: Vec<_> = (0..8).map(|_| trainer.step(&stream.tokens).unwrap()).collect();
        let mut windows = Windows::new(settings.seed);
        let mut starts = Vec::new();
        for report in reports {
            // Two passes a step: windows drawn anew, or two of the same text one after another.
            let expected: u64 = (0..2)
                .map(|pass| {
                    if pass % carry == 0 {
                        starts = windows.starts(&stream.tokens, 1, 16 * carry).unwrap();
                    }
                    let start = starts[0] + 16 * (pass % carry);
                    stream.tokens.bytes_of(start + 1..start + 17).unwrap()
                })
                .sum();
            assert_eq!((report.bytes, report.tokens), (Some(expected), 32), "carry {carry}");
            let bits = report.loss / 2_f64.ln() * 32.0 / expected as f64;
            assert_relative_eq!(report.bits_per_byte().unwrap(), bits, max_relative = 1e-12);
        }
        // A slice of tokens knows of no text.
        assert_eq!(trainer.step(&stream.tokens.to_vec().unwrap()[..]).unwrap().bits_per_byte(), None);
    }
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
