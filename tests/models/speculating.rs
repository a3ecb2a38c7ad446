//! Texts that a draft goes ahead of are the texts that a model writes alone.

use crate::column::{Column, device, is_missing, sample};
use crate::{
    configs,
    own::{Own, Scores},
};
use hecate_core::{Tensor, quantized::BlockFormat};
use hecate_models::{
    Architecture, Config, Error, LanguageModel, MixerConfig, RuleConfig,
    generate::{Session, Speculation, generate},
    quantize::quantize,
    sampling::{Penalties, Sampler, Sampling},
};
use std::{fs, ptr};

/// Tokens of the prompt, and tokens that are drawn: more than fit into a window of attention, and into two groups of a frozen rule.
const PROMPT: usize = 6;
const DRAWN: usize = 23;

fn model<A: Architecture<Column>>(config: &A, seed: u64) -> LanguageModel<Column> {
    LanguageModel::new(&device(), config, seed).expect("a model")
}

/// Every kind of mixer, exact and in groups.
fn configs() -> Vec<(&'static str, Config)> {
    sample(configs::exact(), 6).into_iter().chain(sample(configs::frozen(4), 2)).collect()
}

fn sampler(temperature: f32, seed: u64) -> Sampler {
    Sampler::new(Sampling { temperature, top_p: 0.95, seed, ..Sampling::default() }).expect("a sampler")
}

/// Greedy, drawn by several seeds, and with penalties on what was read and drawn before.
fn samplers() -> Vec<Sampler> {
    let penalties = Penalties { presence: 0.5, frequency: 0.25 };
    let penalized = sampler(1.0, 4).penalized(penalties).expect("penalties");
    let repeated = Sampling { temperature: 0.7, min_p: 0.05, repetition_penalty: 1.3, seed: 2, ..Sampling::default() };
    vec![sampler(0.0, 0), sampler(1.0, 1), Sampler::new(repeated).expect("a sampler"), penalized]
}

fn prompt() -> Vec<u32> {
    configs::tokens(PROMPT, 9)
}

/// A session that read the prompt.
fn session(model: &LanguageModel<Column>, sampler: &Sampler) -> Session<Column> {
    let mut session = Session::new(model, sampler.clone()).expect("a session");
    session.feed(model, &prompt()).expect("a text");
    session
}

/// The text of a model alone.
fn alone(model: &LanguageModel<Column>, sampler: &Sampler) -> (Vec<u32>, Session<Column>) {
    let mut session = session(model, sampler);
    ((0..DRAWN).map(|_| session.next(model).expect("a token")).collect(), session)
}

/// A text that is about to go on, its prompt read by both.
fn started<'a>(
    model: &'a LanguageModel<Column>,
    draft: &'a LanguageModel<Column>,
    sampler: &Sampler,
    ahead: usize,
) -> Speculation<'a, Column> {
    let session = Session::new(model, sampler.clone()).expect("a session");
    let mut text = Speculation::new(model, session, draft, ahead).expect("a draft");
    text.feed(&prompt()).expect("a text");
    text
}

fn drawn(text: &mut Speculation<'_, Column>, count: usize) -> Vec<u32> {
    (0..count).map(|_| text.next_token().expect("a token")).collect()
}

/// Bits of the scores of the next token once one more was read.
fn bits(model: &LanguageModel<Column>, session: &Session<Column>) -> Vec<u32> {
    let mut session = session.fork();
    session.feed(model, &[1]).expect("a token");
    session.scores().unwrap().expect("scores").iter().map(|score| score.to_bits()).collect()
}

/// Of every model, with drafts that know all and next to nothing: the same tokens, and what is remembered has the same bits.
#[test]
fn a_draft_changes_no_text() {
    if is_missing() {
        return;
    }
    for (i, (name, config)) in configs().into_iter().enumerate() {
        let (large, other) = (model(&config, 11), model(&config, 12));
        // Each model has one of the ways to draw.
        let sampler = samplers().swap_remove(i % 4);
        let (expected, text) = alone(&large, &sampler);
        let by_generate = generate(&large, &prompt(), sampler.clone()).expect(name).take(DRAWN);
        assert_eq!(by_generate.collect::<Result<Vec<_>, _>>().expect(name), expected, "{name}");
        for (draft, ahead) in [(&large, 1 + i % 5), (&other, 1 + (i + 2) % 5)] {
            let mut ahead = started(&large, draft, &sampler, ahead);
            assert_eq!(drawn(&mut ahead, DRAWN), expected, "{name}, {ahead:?}");
            assert_eq!(ahead.session().position(), text.position(), "{name}");
            assert_eq!(bits(&large, ahead.session()), bits(&large, &text), "{name}, {ahead:?}");
        }
    }
}

/// What the draft is made of, and how far it goes ahead, is of no matter to the text.
#[test]
fn any_draft_will_do() {
    if is_missing() {
        return;
    }
    let named = |name| configs::config([MixerConfig::Memory(configs::memory(RuleConfig::named(name).expect(name)))]);
    let window = configs::config([MixerConfig::Attention(configs::attention())]);
    let all = [named("delta"), named("titans"), named("titans_mlp"), window, configs::mixed()];
    let all: Vec<_> = all.iter().zip(20..).map(|(config, seed)| model(config, seed)).collect();
    // One whose head has rows that no token needs, as released models have.
    let padded = model(&Config { vocabulary_size: 16, ..configs::mixed() }, 30);
    let sampler = sampler(1.0, 3).among(11);
    let drafts: Vec<_> = all.iter().chain([&padded]).zip([1, 2, 3, 4, 7, 64]).collect();
    for (i, large) in sample(all.iter().enumerate().collect(), 1) {
        let (expected, _) = alone(large, &sampler);
        for (draft, ahead) in sample(drafts.clone(), 2) {
            let mut text = started(large, draft, &sampler, ahead);
            assert_eq!(drawn(&mut text, DRAWN), expected, "model {i}, {text:?}");
        }
    }
}

/// A model that drafts for itself drafts nothing in vain; another one's tokens are mostly in vain.
#[test]
fn tokens_are_accepted_where_both_draw_the_same() {
    if is_missing() {
        return;
    }
    let (large, other) = (model(&configs::mixed(), 11), model(&configs::mixed(), 12));
    for ahead in [1, 2, 4, 9] {
        for sampler in samplers() {
            let mut text = started(&large, &large, &sampler, ahead);
            // The first is drawn from the prompt's scores, then as many as were drafted and one more at a time.
            drawn(&mut text, 1 + 3 * (ahead + 1));
            assert_eq!((text.drafted(), text.accepted()), (3 * ahead, 3 * ahead), "{text:?}");
        }
        // Of 11 tokens with scores that differ, a few are the same by chance.
        let mut text = started(&large, &other, &sampler(1.0, 5), ahead);
        drawn(&mut text, 60);
        assert!(text.accepted() * 2 < text.drafted(), "{text:?}");
        // A draft that is refused at once still gives a token a round.
        assert!(text.drafted() <= 60 * ahead, "{text:?}");
    }
}

/// Text that is read in between, where tokens had been drawn ahead of it.
#[test]
fn what_was_drawn_ahead_is_dropped_when_more_is_read() {
    if is_missing() {
        return;
    }
    for (name, config) in sample(configs(), 9) {
        let (large, other) = (model(&config, 11), model(&config, 12));
        for draft in [&large, &other] {
            let sampler = sampler(1.0, 6);
            let (mut text, mut expected) = (started(&large, draft, &sampler, 5), session(&large, &sampler));
            for count in [0, 3, 1, 8] {
                let found = drawn(&mut text, count);
                let alone: Vec<u32> = (0..count).map(|_| expected.next(&large).expect("a token")).collect();
                assert_eq!(found, alone, "{name}");
                text.feed(&[2, 7]).expect("a text");
                expected.feed(&large, &[2, 7]).expect("a text");
            }
            assert_eq!(bits(&large, text.session()), bits(&large, &expected), "{name}");
        }
    }
}

/// The file of a text that was drafted is that of one that was not; with its draft anew, and where it stands, it goes on.
#[test]
fn a_file_has_nothing_of_the_draft() {
    if is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for (name, config) in sample(configs(), 9) {
        let (large, other) = (model(&config, 11), model(&config, 12));
        let sampler = sampler(1.0, 7);
        let (tokens, text) = alone(&large, &sampler);
        text.save(&large, path("alone")).expect("a file");
        let mut ahead = started(&large, &other, &sampler, 4);
        // In the middle of what was drawn ahead, and with a token that was not read.
        assert_eq!(drawn(&mut ahead, 10), tokens[..10], "{name}");
        ahead.session().save(&large, path("half")).expect("a file");
        let half = Session::restore(&large, path("half"), sampler.clone()).expect(name);
        let mut ahead = Speculation::new(&large, half, &other, 4).expect("a draft");
        assert_eq!(drawn(&mut ahead, DRAWN - 10), tokens[10..], "{name}");
        ahead.session().save(&large, path("ahead")).expect("a file");
        assert!(fs::read(path("alone")).expect("a file") == fs::read(path("ahead")).expect("a file"), "{name}");
    }
}

/// Matrices of fewer bits have kernels of their own, for one row and for several.
#[test]
fn models_of_fewer_bits_take_a_draft() {
    if is_missing() {
        return;
    }
    let config = Config { intermediate_size: Some(256), tie_word_embeddings: false, ..config_of(256) };
    let (whole, other) = (model(&config, 11), model(&config_of(8), 12));
    let of_bits = [
        quantize(&whole, BlockFormat::Q4K).expect("a quantized model"),
        quantize(&whole, BlockFormat::Q8_0).expect("a quantized model"),
        model(&config, 11).stored_in_16_bits().expect("a model of 16 bits"),
    ];
    for (large, sampler) in sample(of_bits.iter().zip(samplers()).collect(), 1) {
        let (expected, text) = alone(large, &sampler);
        // The model before its bits were taken drafts well, and another one badly.
        for draft in sample(vec![&whole, large, &other], 1) {
            let mut ahead = started(large, draft, &sampler, 4);
            assert_eq!(drawn(&mut ahead, DRAWN), expected, "{ahead:?}");
            assert_eq!(bits(large, ahead.session()), bits(large, &text), "{ahead:?}");
        }
    }
}

/// A memory beside attention, of bytes.
fn config_of(width: usize) -> Config {
    Config::uniform("mag", 1, width, 2).expect("a configuration")
}

/// Where a text ends with an error, the tokens before are those without a draft, and so is the error.
#[test]
fn errors_come_where_they_come_alone() {
    if is_missing() {
        return;
    }
    let (large, other) = (model(&configs::mixed(), 11), model(&configs::mixed(), 12));
    // Twice the largest number is infinite: each of three tokens is drawn twice, and then none is left.
    let none_left = Penalties { presence: 0.0, frequency: f32::MAX };
    let sampler = sampler(1.0, 1).among(3).penalized(none_left).expect("penalties");
    let mut expected = session(&large, &sampler);
    let tokens: Vec<u32> = (0..6).map(|_| expected.next(&large).expect("a token")).collect();
    let error = expected.next(&large).expect_err("nothing to draw").to_string();
    for (draft, ahead) in [(&large, 1), (&large, 3), (&large, 64), (&other, 2), (&other, 5)] {
        let mut text = started(&large, draft, &sampler, ahead);
        assert_eq!(drawn(&mut text, 6), tokens, "{text:?}");
        for _ in 0..2 {
            assert_eq!(text.next_token().expect_err("nothing to draw").to_string(), error);
        }
        assert!(!ptr::eq(draft, &large) || text.accepted() == text.drafted(), "{text:?}");
    }
    // A draft that is damaged is told of, by its name.
    let mut damaged = model(&configs::mixed(), 12);
    let norm = damaged.parameters_mut().iter_mut().find(|parameter| parameter.name == "model.norm.weight");
    let norm = norm.expect("the norm before the head");
    norm.value = Tensor::from_f32(&device(), norm.value.shape().clone(), vec![f32::NAN; 8]).expect("an array");
    let mut text = started(&large, &damaged, &sampler, 2);
    assert_eq!(text.next_token().expect("a token"), tokens[0]);
    let told = text.next_token().expect_err("a damaged draft").to_string();
    assert!(told.contains("draft") && told.contains("NaN"), "{told}");
}

/// A model of one's own is read call by call.
#[test]
fn models_of_ones_own_take_a_draft() {
    if is_missing() {
        return;
    }
    for scores in [Scores::Head, Scores::BiasedForward] {
        let of = |seed| model(&Own { blocks: configs::mixed(), scores }, seed);
        let (large, other) = (of(11), of(12));
        let sampler = sampler(1.0, 8);
        for draft in [&large, &other] {
            let mut text = started(&large, draft, &sampler, 3);
            assert_eq!(drawn(&mut text, DRAWN), alone(&large, &sampler).0, "{text:?}");
        }
    }
}

#[test]
fn drafts_that_do_not_fit_are_refused() {
    if is_missing() {
        return;
    }
    let (large, small) = (model(&configs::mixed(), 11), model(&Config { vocabulary_size: 9, ..configs::mixed() }, 12));
    let refused = |draft, ahead, words: &[&str]| {
        let session = Session::new(&large, sampler(1.0, 0)).expect("a session");
        let error = Speculation::new(&large, session, draft, ahead).expect_err("a draft that does not fit");
        assert!(matches!(error, Error::Config { .. }), "{error}");
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "`{word}` is not in: {error}"));
    };
    refused(&large, 0, &["drafted at a time", "0", "at least 1"]);
    refused(&large, 65, &["drafted at a time", "65", "at most 64"]);
    refused(&small, 4, &["vocabulary_size of the draft", "9", "11"]);
    // Nothing was read, and a token that there is not: errors as without a draft, after which the text goes on.
    let session = Session::new(&large, sampler(1.0, 0)).expect("a session");
    let mut text = Speculation::new(&large, session, &large, 4).expect("a draft");
    assert!(matches!(text.next_token(), Err(Error::Config { .. })));
    text.feed(&prompt()).expect("a text");
    let before = text.session().position();
    assert!(matches!(text.feed(&[1, 11]), Err(Error::Config { .. })));
    assert_eq!(text.session().position(), before);
    assert_eq!(drawn(&mut text, DRAWN), alone(&large, &sampler(1.0, 0)).0);
}
