//! Texts that go on alone, in company, after a fork and from a file.

use crate::column::{Column, device, is_missing, sample};
use crate::configs;
use hecate_conformance::error;
use hecate_core::Device;
use hecate_models::{
    Config, Error, LanguageModel,
    generate::{Session, Speculation, generate, next_of_all},
    sampling::{Sampler, Sampling},
};
use std::fs;

/// Sums of a pass over several texts may come in another order than those of one.
const LIMIT: f64 = 1e-4;
/// Tokens of the texts that meet.
const LENGTHS: [usize; 4] = [3, 14, 1, 8];

fn model(config: &Config, seed: u64) -> LanguageModel<Column> {
    LanguageModel::new(&device(), config, seed).expect("a model")
}

/// Every kind of mixer, exact and in groups.
fn configs() -> Vec<(&'static str, Config)> {
    sample(configs::exact(), 6).into_iter().chain(sample(configs::frozen(4), 2)).collect()
}

fn sampler(seed: u64) -> Sampler {
    Sampler::new(Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::default() }).expect("a sampler")
}

/// A session that read a text of so many tokens.
fn session(model: &LanguageModel<Column>, length: usize) -> Session<Column> {
    let mut session = Session::new(model, sampler(length as u64)).expect("a session");
    session.feed(model, &configs::tokens(length, length as u64)).expect("a text");
    session
}

fn drawn(model: &LanguageModel<Column>, session: &mut Session<Column>, count: usize) -> Vec<u32> {
    (0..count).map(|_| session.next(model).expect("a token")).collect()
}

/// Bits of the scores of the next token.
fn bits(session: &Session<Column>) -> Vec<u32> {
    session.scores().unwrap().expect("scores").iter().map(|score| score.to_bits()).collect()
}

/// Of a session that goes on alone, of one in company, of their forks, and of one with a draft.
#[test]
fn the_next_token_is_one_that_is_allowed() {
    if is_missing() {
        return;
    }
    let model = model(&configs::exact().remove(0).1, 11);
    let [mut one, mut other] = [session(&model, 3), session(&model, 14)];
    drawn(&model, &mut one, 1);
    drawn(&model, &mut other, 1);
    for token in [5, 0, 7] {
        let allowed: Vec<bool> = (0..model.vocabulary_size()).map(|other| other == token as usize).collect();
        one.allow(allowed.clone());
        other.allow(allowed);
        let mut fork = one.fork();
        let mut drafted = Speculation::new(&model, one.fork(), &model, 3).expect("a draft");
        assert_eq!(drafted.next_token().expect("a token"), token);
        let found = next_of_all(&model, &mut [&mut one, &mut other]).into_iter().collect::<Result<Vec<_>, _>>();
        assert_eq!(found.expect("tokens"), [token; 2]);
        assert_eq!(fork.next(&model).expect("a token"), token);
    }
    // What was allowed is no longer asked for.
    assert!(drawn(&model, &mut one, 40).iter().any(|&token| token != 7));
}

#[test]
fn a_session_is_a_text_that_is_continued() {
    if is_missing() {
        return;
    }
    for (name, config) in configs() {
        let model = model(&config, 11);
        let expected: Vec<u32> = generate(&model, &configs::tokens(9, 9), sampler(9))
            .expect(name)
            .take(12)
            .collect::<Result<_, _>>()
            .expect(name);
        assert_eq!(drawn(&model, &mut session(&model, 9), 12), expected, "{name}");
        // In pieces, of which some end inside of a group.
        let mut pieces = Session::new(&model, sampler(9)).expect("a session");
        let text = configs::tokens(9, 9);
        for piece in [&text[..2], &text[2..2], &text[2..7], &text[7..]] {
            pieces.feed(&model, piece).expect(name);
        }
        assert_eq!((drawn(&model, &mut pieces, 12), pieces.position()), (expected, 9 + 12), "{name}");
    }
}

#[test]
fn a_fork_and_what_it_left_go_on_apart() {
    if is_missing() {
        return;
    }
    for (name, config) in configs() {
        let model = model(&config, 11);
        let (mut one, mut alone) = (session(&model, 8), session(&model, 8));
        assert_eq!(drawn(&model, &mut one, 3), drawn(&model, &mut alone, 3), "{name}");
        let mut other = one.fork();
        other.feed(&model, &[1, 2, 3]).expect(name);
        drawn(&model, &mut other, 5);
        assert_eq!(drawn(&model, &mut one, 6), drawn(&model, &mut alone, 6), "{name}");
        assert_eq!((other.position(), one.position()), (8 + 3 + 3 + 5, 8 + 9), "{name}");
    }
}

#[test]
fn a_file_goes_on_bit_for_bit() {
    if is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text.safetensors");
    for (name, config) in configs() {
        let model = model(&config, 11);
        // Nothing drawn yet, a token that was not read, and one of other lengths of an unfinished group.
        for before in [0, 1, 2, 5] {
            let mut here = session(&model, 6);
            drawn(&model, &mut here, before);
            here.save(&model, &path).expect(name);
            let mut there = Session::restore(&model, &path, sampler(6)).expect(name);
            assert_eq!((there.position(), there.bytes()), (here.position(), here.bytes()), "{name}");
            assert_eq!(drawn(&model, &mut there, 9), drawn(&model, &mut here, 9), "{name}, after {before}");
            for session in [&mut here, &mut there] {
                session.feed(&model, &[4]).expect(name);
            }
            assert_eq!(bits(&there), bits(&here), "{name}, after {before}");
        }
        // A text that did not begin.
        Session::new(&model, sampler(6)).expect(name).save(&model, &path).expect(name);
        let mut there = Session::restore(&model, &path, sampler(6)).expect(name);
        assert_eq!(there.position(), 0);
        assert!(matches!(there.next(&model), Err(Error::Config { .. })), "{name}");
    }
}

/// Texts of unlike lengths, joined by others and left by others, draw what each draws alone.
#[test]
fn company_changes_no_text() {
    if is_missing() {
        return;
    }
    for (name, config) in configs() {
        let model = model(&config, 11);
        let mut all: Vec<_> = LENGTHS.map(|length| session(&model, length)).into();
        let mut alone: Vec<_> = all.iter().map(Session::fork).collect();
        // Who goes on in each step: the same for a while, one more, one less, another order.
        let steps: [&[usize]; 10] = [
            &[0, 1],
            &[0, 1],
            &[1, 0],
            &[0, 1, 2, 3],
            &[0, 1, 2, 3],
            &[3, 1, 0, 2],
            &[3, 1, 0],
            &[3, 1, 0],
            &[2],
            &[2, 0, 1, 3],
        ];
        for who in steps {
            let expected: Vec<u32> = who.iter().map(|&i| alone[i].next(&model).expect(name)).collect();
            let mut places: Vec<Option<&mut Session<Column>>> = all.iter_mut().map(Some).collect();
            let mut going: Vec<_> = who.iter().map(|&i| places[i].take().expect("one of each")).collect();
            let found: Vec<u32> = next_of_all(&model, &mut going).into_iter().map(|x| x.expect(name)).collect();
            assert_eq!(found, expected, "{name}, {who:?}");
        }
        for (one, other) in all.iter_mut().zip(&mut alone) {
            assert_eq!(one.position(), other.position(), "{name}");
            let off = error(&scores_after(&model, other), &scores_after(&model, one));
            assert!(off <= LIMIT, "{name}: {off:.1e}");
        }
    }
}

/// What befalls texts that a device replays a graph of: each draws what it draws alone.
#[test]
fn company_that_stays_is_replayed() {
    if is_missing() {
        return;
    }
    let mut captured = 0;
    for (name, config) in configs() {
        let model = model(&config, 11);
        let mut all: Vec<_> = [3, 14, 1, 8, 5].map(|length| session(&model, length)).into();
        let mut alone: Vec<_> = all.iter().map(Session::fork).collect();
        let go = |all: &mut [Session<Column>], alone: &mut [Session<Column>], who: &[usize], steps: usize| {
            for step in 0..steps {
                let expected: Vec<u32> = who.iter().map(|&i| alone[i].next(&model).expect(name)).collect();
                let mut places: Vec<Option<&mut Session<Column>>> = all.iter_mut().map(Some).collect();
                let mut going: Vec<_> = who.iter().map(|&i| places[i].take().expect("one of each")).collect();
                let found: Vec<u32> = next_of_all(&model, &mut going).into_iter().map(|x| x.expect(name)).collect();
                assert_eq!(found, expected, "{name}, {who:?}, step {step}");
            }
        };
        go(&mut all, &mut alone, &[0, 1, 2], 9);
        captured += usize::from(all[0].is_captured());
        // One comes, two leave, the order changes, one comes back.
        go(&mut all, &mut alone, &[0, 1, 2, 3], 3);
        go(&mut all, &mut alone, &[2, 0], 2);
        go(&mut all, &mut alone, &[4, 2, 1, 0], 2);
        // Forks stand where they were left, and go on beside the others.
        let forks = [all[0].fork(), all[2].fork()];
        go(&mut all, &mut alone, &[0, 1, 2, 4], 2);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text.safetensors");
        forks[1].save(&model, &path).expect(name);
        let mut forks = [forks[0].fork(), Session::restore(&model, &path, sampler(1)).expect(name)];
        let mut expected = [all[0].fork(), all[2].fork()];
        forks.iter_mut().for_each(|fork| drawn(&model, fork, 2).into_iter().for_each(drop));
        for (fork, expected) in forks.iter_mut().zip(&mut expected) {
            assert_eq!(fork.position(), expected.position(), "{name}");
            let off = error(&scores_after(&model, expected), &scores_after(&model, fork));
            assert!(off <= LIMIT, "{name}: {off:.1e}");
        }
        // Other seeds, a text that was read on, and a token that the host draws.
        for session in [&mut all[1], &mut alone[1]] {
            session.set_sampler(sampler(77));
            session.feed(&model, &[3]).expect(name);
        }
        all[4].set_sampler(sampler(78));
        alone[4].set_sampler(sampler(78));
        go(&mut all, &mut alone, &[0, 1, 2, 4], 3);
        let allowed: Vec<bool> = (0..model.vocabulary_size()).map(|token| token % 2 == 0).collect();
        [&mut all[2], &mut alone[2]].into_iter().for_each(|session| session.allow(allowed.clone()));
        go(&mut all, &mut alone, &[0, 1, 2, 4], 7);
        for (one, other) in all.iter_mut().zip(&mut alone) {
            assert_eq!(one.position(), other.position(), "{name}");
            let off = error(&scores_after(&model, other), &scores_after(&model, one));
            assert!(off <= LIMIT, "{name}: {off:.1e}");
        }
    }
    assert_eq!(captured > 0, device().captures_work(), "{captured} of them are replayed");
}

/// Scores of a text's next token after one more.
fn scores_after(model: &LanguageModel<Column>, session: &mut Session<Column>) -> Vec<f64> {
    session.feed(model, &[1]).expect("a token");
    session.scores().unwrap().expect("scores").iter().map(|&x| x.into()).collect()
}

/// Texts whose samplers differ go on in one pass: a device draws for several of one kind at once, and the host for what only it does.
#[test]
fn samplers_of_all_kinds_go_on_together() {
    if is_missing() {
        return;
    }
    let model = model(&configs::exact().remove(0).1, 11);
    let of = |sampling: Sampling| Sampler::new(sampling).expect("a sampler");
    let plain = |seed| Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::default() };
    let samplers = || {
        [
            sampler(1),
            of(Sampling { temperature: 0.0, ..plain(2) }),
            sampler(3),
            of(Sampling { top_k: 3, ..plain(4) }),
            of(Sampling { min_p: 0.2, ..plain(5) }),
            of(plain(6)).biased(&[(2, 4.0)]).expect("a bias"),
            of(Sampling { top_k: 3, ..plain(7) }),
            of(Sampling { temperature: 0.5, top_p: 0.8, ..plain(8) }).among(9),
        ]
    };
    let begun = |sampler: Sampler| {
        let mut session = Session::new(&model, sampler).expect("a session");
        session.feed(&model, &configs::tokens(5, 5)).expect("a text");
        session
    };
    let [mut all, mut alone] = [samplers().map(begun), samplers().map(begun)];
    for step in 0..8 {
        let expected: Vec<u32> = alone.iter_mut().map(|session| session.next(&model).expect("a token")).collect();
        let mut going: Vec<_> = all.iter_mut().collect();
        let found: Vec<u32> = next_of_all(&model, &mut going).into_iter().map(|x| x.expect("a token")).collect();
        assert_eq!(found, expected, "step {step}");
        for (one, other) in all.iter().zip(&alone) {
            let [one, other] = [one, other].map(|session| session.drawn(2).expect("scores").expect("a likelihood"));
            assert!((one.log_probability - other.log_probability).abs() < LIMIT, "{one:?} is not {other:?}");
        }
        // What has a memory of its own again goes on as the others do.
        if step == 4 {
            all[3] = all[3].fork();
            all[3].feed(&model, &[1]).expect("a token");
            alone[3].feed(&model, &[1]).expect("a token");
        }
    }
}

/// One whose model is another one, or that read nothing, does not stop the others.
#[test]
fn errors_are_of_the_session_that_has_them() {
    if is_missing() {
        return;
    }
    let [(_, config), (_, other)] = [0, 1].map(|i| configs().swap_remove(i));
    let (model, other) = (model(&config, 11), model(&other, 11));
    let mut good = [session(&model, 3), session(&model, 5)];
    let mut foreign = session(&other, 3);
    let mut fresh = Session::new(&model, sampler(0)).expect("a session");
    let [first, second] = &mut good;
    for session in [&mut *first, &mut *second] {
        session.next(&model).expect("a token");
    }
    foreign.next(&other).expect("a token");
    let found = next_of_all(&model, &mut [first, &mut foreign, second, &mut fresh]);
    let failed: Vec<bool> = found.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false, true], "{found:?}");
    assert_eq!(foreign.position(), 4);
    foreign.next(&other).expect("it stands where it stood");
    // Tokens that there are not change nothing either.
    let before = first.position();
    assert!(matches!(first.feed(&model, &[1, 11]), Err(Error::Config { .. })));
    assert_eq!(first.position(), before);
}

#[test]
fn files_of_others_are_refused() {
    if is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text.safetensors");
    let (_, config) = configs().swap_remove(0);
    let (model, weights) = (model(&config, 11), model(&config, 12));
    session(&model, 6).save(&model, &path).expect("a file");
    let refused = |model: &LanguageModel<Column>, why: &str| {
        let error = Session::restore(model, &path, sampler(6)).expect_err(why);
        assert!(matches!(error, Error::Checkpoint { .. }) && error.to_string().contains(why), "{error}");
    };
    // The same configuration with other weights, and the same model once it learned something.
    refused(&weights, "another model");
    let mut learned = LanguageModel::new(&device(), &config, 11).expect("a model");
    Session::restore(&learned, &path, sampler(6)).expect("the same model");
    let first = learned.parameters_mut().iter_mut().next().expect("a parameter");
    let changed: Vec<f32> = first.value.to_f32().expect("values").iter().map(|x| x + 1.0).collect();
    first.value = hecate_core::Tensor::from_f32(&device(), first.value.shape().clone(), changed).expect("values");
    refused(&learned, "another model");
    // A cache alone is no session.
    model.cache(1).expect("a cache").save(&path).expect("a file");
    refused(&model, "another model");
    fs::write(&path, b"{}").expect("a file");
    refused(&model, "damaged");
}
