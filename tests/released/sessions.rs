//! Models whose attention sees the whole text go on in company, and from a file.

use crate::folder;
use hecate_conformance::error;
use hecate_core::Backend;
use hecate_models::{
    Config, LanguageModel, Opened,
    generate::{Session, Speculation, next_of_all},
    sampling::{Sampler, Sampling},
};

/// 32 bits round each of some dozens of sums after one another.
const SCORES: f64 = 1e-5;
/// Room for keys grows 64 tokens at a time: texts before, at and behind such a place, and ones that pass it while they go on.
const LENGTHS: [usize; 5] = [1, 60, 64, 65, 126];

fn sampler() -> Sampler {
    Sampler::new(Sampling { temperature: 1.0, top_p: 1.0, ..Sampling::default() }).expect("a sampler")
}

/// A session that read a text of so many tokens.
fn session<B: Backend>(model: &LanguageModel<B>, length: usize) -> Session<B> {
    let text: Vec<u32> = (0..length).map(|i| (i * i * 7 + 3 * i + length) as u32 % 37).collect();
    let mut session = Session::new(model, sampler()).expect("a session");
    session.feed(model, &text).expect("a text");
    session
}

/// Each text draws in company what it draws alone, and leaves as if it had been alone.
pub(crate) fn are_the_same_in_company<B: Backend>(device: &B, models: &[&'static str]) {
    for name in models {
        let model = Opened::open(device, &folder(name)).and_then(|opened| opened.model()).expect(name);
        let mut alone = LENGTHS.map(|length| session(&model, length));
        let mut all = alone.each_ref().map(Session::fork);
        for _ in 0..9 {
            let expected = alone.each_mut().map(|session| session.next(&model).expect(name));
            let mut going: Vec<_> = all.iter_mut().collect();
            let found: Vec<_> = next_of_all(&model, &mut going).into_iter().map(|x| x.expect(name)).collect();
            assert_eq!(found, expected, "{name}");
        }
        for (one, other) in alone.iter_mut().zip(&mut all) {
            let scores = [one, other].map(|session| {
                session.feed(&model, &[5]).expect(name);
                (
                    session.bytes(),
                    session.scores().unwrap().expect(name).iter().map(|&x| x.into()).collect::<Vec<f64>>(),
                )
            });
            assert_eq!(scores[0].0, scores[1].0, "{name}: room for other texts stayed");
            let off = error(&scores[0].1, &scores[1].1);
            assert!(off <= SCORES, "{name}: {off:.1e}");
        }
    }
}

/// With a draft, which knows everything or next to nothing, each text draws what it draws alone, to the bit.
pub(crate) fn are_the_same_with_a_draft<B: Backend>(device: &B, models: &[&'static str]) {
    let small = Config { vocabulary_size: 64, ..Config::uniform("delta", 1, 8, 1).expect("a configuration") };
    let small = LanguageModel::new(device, &small, 1).expect("a model");
    for name in models {
        let model = Opened::open(device, &folder(name)).and_then(|opened| opened.model()).expect(name);
        for length in LENGTHS {
            let mut alone = session(&model, length);
            let expected: Vec<u32> = (0..9).map(|_| alone.next(&model).expect(name)).collect();
            for draft in [&model, &small] {
                let mut text = Speculation::new(&model, session(&model, length), draft, 4).expect(name);
                let found: Vec<u32> = (0..9).map(|_| text.next_token().expect(name)).collect();
                assert_eq!(found, expected, "{name}, {length} tokens");
                let bits = [&alone, text.session()].map(|session| {
                    let mut session = session.fork();
                    session.feed(&model, &[7]).expect(name);
                    session.scores().unwrap().expect(name).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                });
                assert_eq!(bits[0], bits[1], "{name}, {length} tokens");
            }
        }
    }
}

/// A file holds keys and values of all tokens, whatever room they need.
pub(crate) fn go_on_from_files<B: Backend>(device: &B, models: &[&'static str]) {
    let folders = tempfile::tempdir().expect("a folder");
    let path = folders.path().join("text.safetensors");
    for name in models {
        let model = Opened::open(device, &folder(name)).and_then(|opened| opened.model()).expect(name);
        for length in LENGTHS {
            let mut here = session(&model, length);
            here.next(&model).expect(name);
            here.save(&model, &path).expect(name);
            let mut there = Session::restore(&model, &path, sampler()).expect(name);
            let drawn = [&mut here, &mut there].map(|session| {
                let tokens: Vec<u32> = (0..5).map(|_| session.next(&model).expect(name)).collect();
                session.feed(&model, &[7]).expect(name);
                let bits: Vec<u32> = session.scores().unwrap().expect(name).iter().map(|x| x.to_bits()).collect();
                (tokens, bits, session.bytes(), session.position())
            });
            assert_eq!(drawn[0], drawn[1], "{name}, {length} tokens");
        }
    }
}
