//! How tokens are drawn, and how likely they were: as reckoned here from the model's own scores.
//!
//! The server never gives scores away. Here the library reads the same text token by token, and the rules are written once more,
//! one after another, as documents have them. What is left to trust is the draw from scores, which the library's own tests check.

use super::harness::{Server, asked, expected, model, sampling, with};
use hecate_models::{
    Random, Vocabulary,
    generate::Session,
    sampling::{Sampler, Sampling},
};
use hecate_serve::Settings;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// How scores of tokens are changed before one is drawn, in this order.
///
/// The default changes nothing.
#[derive(Clone, Copy, Default)]
struct Rules {
    /// Added, by the numbers of tokens.
    bias: &'static [(usize, f32)],
    /// Of tokens in the prompt or drawn; 0 for none.
    repetition: f32,
    /// Subtracted from those of tokens that were drawn.
    presence: f32,
    /// Subtracted as often as they were.
    frequency: f32,
}

impl Rules {
    /// The scores that tokens are drawn by, after this prompt and these tokens.
    fn applied(&self, scores: &[f32], prompt: &[u32], drawn: &[u32]) -> Vec<f32> {
        let mut scores = scores.to_vec();
        self.bias.iter().for_each(|&(token, bias)| scores[token] += bias);
        // A token counts once here, however often it is in the text.
        let text: BTreeSet<u32> = prompt.iter().chain(drawn).copied().collect();
        for token in text.into_iter().filter(|_| self.repetition > 0.0) {
            let score = &mut scores[token as usize];
            *score = if *score < 0.0 { *score * self.repetition } else { *score / self.repetition };
        }
        // The prompt does not count for the other two.
        let mut counts = BTreeMap::new();
        drawn.iter().for_each(|&token| *counts.entry(token as usize).or_insert(0.0) += 1.0f32);
        counts.into_iter().for_each(|(token, count)| scores[token] -= self.presence + self.frequency * count);
        scores
    }
}

/// So many tokens of the tests' model, and its own scores before each.
fn reckoned(prompt: &str, count: usize, sampling: Sampling, rules: Rules) -> (Vec<u32>, Vec<Vec<f32>>) {
    let (model, prompt) = (model(0), Vocabulary::Bytes.encode(prompt).unwrap());
    let mut sampler = Sampler::new(sampling).unwrap().of(&Vocabulary::Bytes);
    let mut session = Session::new(&model, sampler.clone()).unwrap();
    session.feed(&model, &prompt).unwrap();
    let (mut drawn, mut all) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let scores = session.scores().unwrap().unwrap().to_vec();
        drawn.push(sampler.draw(&rules.applied(&scores, &prompt, &drawn)).unwrap());
        all.push(scores);
        // As it is where a text is written: one token at a time.
        session.feed(&model, &drawn[drawn.len() - 1..]).unwrap();
    }
    (drawn, all)
}

/// Their text.
fn text(tokens: &[u32]) -> String {
    Vocabulary::Bytes.decode(tokens).unwrap()
}

/// Sixty tokens of 256: some come again, so that each rule changes the text.
#[test]
fn penalties_and_a_bias_change_scores_as_they_say() {
    let server = Server::start(Settings::default());
    let plain = expected("to be ", 60, sampling(7));
    // The reckoning itself is right where nothing is changed.
    let rules = Rules::default();
    assert_eq!(plain, text(&reckoned("to be ", 60, sampling(7), rules).0));
    let of = |rules| text(&reckoned("to be ", 60, sampling(7), rules).0);
    for (fields, rules) in [
        (json!({"presence_penalty": 2}), Rules { presence: 2.0, ..rules }),
        (json!({"presence_penalty": -1.5}), Rules { presence: -1.5, ..rules }),
        (json!({"frequency_penalty": 2}), Rules { frequency: 2.0, ..rules }),
        (json!({"frequency_penalty": -0.75}), Rules { frequency: -0.75, ..rules }),
        (json!({"repetition_penalty": 50}), Rules { repetition: 50.0, ..rules }),
        (json!({"logit_bias": {"97": 4.5, "0": -100}}), Rules { bias: &[(97, 4.5), (0, -100.0)], ..rules }),
        (
            json!({"frequency_penalty": -0.5, "presence_penalty": 0.25, "repetition_penalty": 2, "logit_bias": {"97": 4.5}}),
            Rules { bias: &[(97, 4.5)], repetition: 2.0, presence: 0.25, frequency: -0.5 },
        ),
    ] {
        let found = server.complete(&with(asked("to be ", 60, 7), fields.clone()));
        assert_eq!(found, of(rules), "{fields}");
        // A field that is ignored would leave the text as it is.
        assert_ne!(found, plain, "{fields}");
    }
    // The likeliest are far from the others at this temperature.
    let (fields, limited) = (json!({"temperature": 0.2, "min_p": 0.5}), Sampling { temperature: 0.2, ..sampling(7) });
    let found = server.complete(&with(asked("to be ", 60, 7), fields));
    assert_eq!(found, expected("to be ", 60, Sampling { min_p: 0.5, ..limited }));
    assert_ne!(found, expected("to be ", 60, limited));
}

/// The prompt is in every text of a request, and what other texts drew is in none.
#[test]
fn penalties_count_each_continuation_by_itself() {
    let server = Server::start(Settings::default());
    let fields = json!({"n": 3, "repetition_penalty": 50, "frequency_penalty": 1});
    let answer = server.post("/v1/completions", &with(asked("to be ", 60, 5), fields)).succeeded();
    let rules = Rules { repetition: 50.0, frequency: 1.0, ..Rules::default() };
    for (i, seed) in [5, Random::stream(5, 1).bits(), Random::stream(5, 2).bits()].into_iter().enumerate() {
        let expected = text(&reckoned("to be ", 60, sampling(seed), rules).0);
        assert_eq!(answer["choices"][i]["text"], expected, "{i}");
    }
}

/// A token's text, as answers have it: of a byte that is no character its number.
fn name(token: u32) -> String {
    if token < 128 { char::from(token as u8).to_string() } else { format!("bytes:\\x{token:02x}") }
}

/// Tokens with the logarithms of their probabilities, likeliest first.
///
/// Scores of this model are small, so that their exponentials need no care.
fn ranked(scores: &[f32]) -> Vec<(u32, f64)> {
    let sum: f64 = scores.iter().map(|&x| f64::from(x).exp()).sum();
    let mut all: Vec<_> = (0..).zip(scores.iter().map(|&x| f64::from(x) - sum.ln())).collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all
}

/// The same number but for rounding in 64 bits.
fn same(found: &Value, expected: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
}

/// Characters that are written before each of the tokens.
fn offsets(tokens: &[u32]) -> Vec<usize> {
    let (mut decoder, mut written) = (Vocabulary::Bytes.decoder(), 0);
    let before = tokens.iter().map(|&token| {
        let before = written;
        written += decoder.push(token).unwrap().chars().count();
        before
    });
    before.collect()
}

/// All parts of a stream's only text: lists inside `logprobs`, joined.
///
/// Parts without any, such as the end, add nothing.
fn joined(server: &Server, path: &str, body: &Value, lists: &[&str]) -> BTreeMap<String, Vec<Value>> {
    let mut reply = server.post(path, &with(body.clone(), json!({"stream": true})));
    let mut all = BTreeMap::new();
    while let Some(data) = reply.event().filter(|data| data != "[DONE]") {
        let part: Value = serde_json::from_str(&data).unwrap();
        for name in lists {
            let list = part["choices"][0]["logprobs"][name].as_array().cloned().unwrap_or_default();
            all.entry((*name).to_owned()).or_insert_with(Vec::new).extend(list);
        }
    }
    all
}

/// They are the model's own: temperature, limits, bias and penalties change which token is drawn and nothing else.
#[test]
fn likelihoods_of_a_completion_are_those_of_the_model() {
    let server = Server::start(Settings::default());
    let drawn = Sampling { temperature: 0.7, ..sampling(3) };
    let rules = Rules { bias: &[(97, 3.0)], presence: 1.0, ..Rules::default() };
    let (tokens, scores) = reckoned("to be ", 50, drawn, rules);
    for count in [0, 1, 5] {
        let fields = json!({"temperature": 0.7, "presence_penalty": 1, "logit_bias": {"97": 3}, "logprobs": count});
        let body = with(asked("to be ", 50, 3), fields);
        let choice = server.post("/v1/completions", &body).succeeded()["choices"][0].clone();
        assert_eq!(choice["text"], text(&tokens));
        let found = &choice["logprobs"];
        assert_eq!(found["tokens"], json!(tokens.iter().copied().map(name).collect::<Vec<_>>()));
        assert_eq!(found["text_offset"], json!(offsets(&tokens)));
        for (i, (&token, scores)) in tokens.iter().zip(&scores).enumerate() {
            let ranked = ranked(scores);
            let own = *ranked.iter().find(|(other, _)| *other == token).unwrap();
            same(&found["token_logprobs"][i], own.1);
            let mut expected: BTreeMap<String, f64> =
                ranked[..count].iter().map(|&(token, x)| (name(token), x)).collect();
            // The token that was drawn is always there, so there may be one more.
            expected.insert(name(token), own.1);
            let found = found["top_logprobs"][i].as_object().unwrap();
            assert_eq!(found.keys().collect::<BTreeSet<_>>(), expected.keys().collect(), "{i}");
            expected.iter().for_each(|(name, expected)| same(&found[name], *expected));
        }
        let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
        for (list, streamed) in joined(&server, "/v1/completions", &body, &lists) {
            assert_eq!(found[&list], json!(streamed), "{list}");
        }
    }
    // Who asks for none gets none, as clients expect it: the field is there and empty.
    let unasked = server.post("/v1/completions", &asked("to be ", 3, 3)).succeeded();
    assert_eq!(unasked["choices"][0]["logprobs"], Value::Null);
}

/// In the form of conversations, with the bytes of each token.
///
/// Unlike completions, the token that was drawn is not put among the likeliest.
#[test]
fn likelihoods_of_an_answer_are_those_of_the_model() {
    let server = Server::start(Settings::default());
    let (tokens, scores) = reckoned("user: hi\nassistant:", 30, sampling(4), Rules::default());
    for count in [None, Some(20)] {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "seed": 4,
            "logprobs": true, "top_logprobs": count});
        let choice = server.post("/v1/chat/completions", &body).succeeded()["choices"][0].clone();
        assert_eq!(choice["message"]["content"], text(&tokens));
        let found = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(found.len(), 30);
        for ((found, &token), scores) in found.iter().zip(&tokens).zip(&scores) {
            let ranked = ranked(scores);
            let check = |found: &Value, (token, x): (u32, f64)| {
                assert_eq!((&found["token"], &found["bytes"]), (&json!(name(token)), &json!([token])));
                same(&found["logprob"], x);
            };
            check(found, *ranked.iter().find(|(other, _)| *other == token).unwrap());
            let top = found["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), count.unwrap_or(0));
            top.iter().zip(&ranked).for_each(|(found, &expected)| check(found, expected));
        }
        let streamed = joined(&server, "/v1/chat/completions", &body, &["content"]);
        assert_eq!(streamed["content"], *found);
    }
    // Who asks for none gets none.
    let unasked = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "logprobs": false});
    let unasked = server.post("/v1/chat/completions", &unasked).succeeded();
    assert_eq!(unasked["choices"][0]["logprobs"], Value::Null);
}

/// Tokens of a stop text are not shown, and neither are their likelihoods.
#[test]
fn no_token_of_a_stop_text_is_told() {
    let server = Server::start(Settings::default());
    let (tokens, _) = reckoned("ab", 120, sampling(2), Rules::default());
    let whole: Vec<char> = text(&tokens).chars().collect();
    for at in (3..80).step_by(7) {
        let stop: String = whole[at..at + 3].iter().collect();
        let body = with(asked("ab", 120, 2), json!({"stop": stop, "logprobs": 0}));
        let choice = server.post("/v1/completions", &body).succeeded()["choices"][0].clone();
        let shown = choice["text"].as_str().unwrap().chars().count();
        // Each token whose text begins among what is shown.
        let told = offsets(&tokens).into_iter().take_while(|&offset| offset < shown).count();
        let expected: Vec<_> = tokens[..told].iter().copied().map(name).collect();
        assert_eq!(choice["logprobs"]["tokens"], json!(expected), "{stop:?}");
        assert_eq!(joined(&server, "/v1/completions", &body, &["tokens"])["tokens"], expected, "{stop:?}");
    }
}
