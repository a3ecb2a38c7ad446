//! Turns of a conversation, of which a model reads what is new; and how its folder says that it answers.

use crate::{copy, folder};
use hecate_cpu::Cpu;
use hecate_models::{
    Config, LanguageModel, Opened, Reading, Result,
    generate::generate,
    sampling::{Sampler, Sampling},
};
use std::fs;

fn sampler() -> Sampler {
    Sampler::new(Sampling { temperature: 0.0, repetition_penalty: 1.3, ..Sampling::default() }).expect("a sampler")
}

/// An answer of so many tokens.
fn answer(drawn: impl Iterator<Item = Result<u32>>) -> Vec<u32> {
    drawn.take(5).collect::<Result<_>>().expect("tokens")
}

/// Answers to three turns are those of a model that reads each turn from its start, and `known` tokens are not read again.
fn check(model: &LanguageModel<Cpu>, known: [usize; 4]) {
    let fresh = |turn: &[u32]| answer(generate(model, turn, sampler()).expect("a text"));
    let mut reading = Reading::new(model);
    let mut turn = |turn: &[u32], lasting: usize, known: usize| {
        assert_eq!(reading.known(turn), known, "{turn:?}");
        let mut generation = reading.read(turn, lasting, sampler()).expect("a turn");
        let tokens = answer(&mut generation);
        assert_eq!(tokens, fresh(turn), "{turn:?}");
        reading.keep(generation, &tokens).expect("a memory");
        tokens
    };
    // Seven tokens that come again, and two that open the answer.
    let first = [1, 4, 9, 16, 25, 36, 12, 3, 5];
    let said = turn(&first, 7, known[0]);
    // The answer comes again: all is remembered.
    let second = [&first[..], &said, &[7, 8, 3, 5]].concat();
    turn(&second, second.len() - 2, known[1]);
    // The second answer and what opened it are written otherwise.
    let third = [&second[..second.len() - 2], &[30, 31, 6, 3, 5]].concat();
    turn(&third, third.len() - 2, known[2]);
    // All is another text from the fourth token on.
    let other = [&first[..3], &[2, 2, 2]].concat();
    turn(&other, other.len(), known[3]);
    // A turn that was there before is read from its end at least.
    turn(&other, 5, 0);
}

#[test]
fn a_turn_is_read_from_where_it_is_new() {
    for name in ["llama", "qwen3_5", "delta_net"] {
        let opened = Opened::open(&Cpu::new(), &folder(name)).expect("a model");
        check(&opened.model().expect("a model"), [0, 14, 16, 0]);
    }
}

/// A rule that is frozen in groups is remembered after whole ones.
#[test]
fn a_frozen_rule_is_read_from_the_last_group() {
    let config = r#"{"hidden_size": 16, "vocabulary_size": 37, "layers":
        [{"mixer": {"kind": "memory", "heads": 2, "rule": {"name": "delta", "frozen": 4}}}]}"#;
    let config: Config = serde_json::from_str(config).expect("a configuration");
    let model = LanguageModel::new(&Cpu::new(), &config, 3).expect("a model");
    check(&model, [0, 12, 16, 0]);
}

#[test]
fn a_folder_says_how_its_tokens_are_drawn() {
    let sampling = |text: &str| {
        let copy = copy("llama");
        fs::write(copy.path().join("generation_config.json"), text).expect("room");
        let found = Opened::open(&Cpu::new(), copy.path()).and_then(|opened| opened.sampling());
        found.map_err(|error| error.to_string())
    };
    let plain = Sampling { temperature: 1.0, top_k: 50, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 };
    assert_eq!(sampling(r#"{ "eos_token_id": 2, "temperature": null }"#), Ok(None));
    assert_eq!(sampling(r#"{ "do_sample": true }"#), Ok(Some(plain)));
    let all = r#"{ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1 }"#;
    let expected = Sampling { temperature: 0.6, top_k: 20, top_p: 0.9, min_p: 0.05, repetition_penalty: 1.1, ..plain };
    assert_eq!(sampling(all), Ok(Some(expected)));
    let greedy = all.replace("true", "false");
    assert_eq!(sampling(&greedy), Ok(Some(Sampling { temperature: 0.0, ..expected })));
    for (text, told) in [
        (r#"{ "temperature": -1 }"#, "temperature"),
        (r#"{ "temperature": "hot" }"#, "`temperature` is \"hot\", expected a number"),
        (r#"{ "top_k": -1 }"#, "`top_k` is -1"),
        (r#"{ "top_k": 1.5 }"#, "top_k"),
        (r#"{ "do_sample": 1 }"#, "do_sample"),
        (r#"{ "min_p": 2 }"#, "min-p"),
        (r#"{ "repetition_penalty": 0 }"#, "repetition penalty"),
        ("{", "EOF"),
    ] {
        let found = sampling(text).expect_err(text);
        assert!(found.contains("generation_config.json") && found.contains(told), "{text}: {found}");
    }
}
