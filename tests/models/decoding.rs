//! Reading token by token is reading all at once, in constant memory.

use crate::column::{Column, device, is_missing};
use crate::configs;
use hecate_conformance::{Array, error};
use hecate_core::{DType, Device};
use hecate_models::{
    Cache, Config, Error, LanguageModel, RuleConfig,
    generate::generate_all,
    sampling::{Sampler, Sampling},
};

const LIMIT: f64 = 1e-4;

fn model(config: &Config) -> LanguageModel<Column> {
    LanguageModel::new(&device(), config, 11).expect("a model")
}

/// Rows `[batch, T]`, cut at `from .. to` in every row.
fn cut(tokens: &[u32], batch: usize, from: usize, to: usize) -> Vec<u32> {
    tokens.chunks(tokens.len() / batch).flat_map(|row| &row[from..to]).copied().collect()
}

/// Scores of all tokens, read in calls that end at `ends`.
fn read(model: &LanguageModel<Column>, tokens: &[u32], batch: usize, ends: &[usize]) -> (Array, Cache<Column>) {
    let mut cache = model.cache(batch).expect("a cache");
    let mut parts = Vec::new();
    let bytes = cache.bytes();
    assert!(bytes > 0);
    for &end in ends {
        let part = cut(tokens, batch, cache.position(), end);
        let logits = model.infer(&part, batch, &mut cache).expect("scores");
        assert_eq!(logits.dtype(), DType::F32);
        assert_eq!(cache.position(), end);
        assert_eq!(cache.bytes(), bytes, "the cache grew");
        parts.push(Array::download(&logits).expect("scores"));
    }
    (Array::join(&parts, 1), cache)
}

fn assert_same(what: &str, a: &(Array, Cache<Column>), b: &(Array, Cache<Column>)) {
    assert_eq!(a.0.shape, b.0.shape, "{what}");
    let off = error(&a.0.values, &b.0.values);
    assert!(off <= LIMIT, "{what}: scores differ by {off:.1e}");
    for (i, (a, b)) in a.1.layers().iter().zip(b.1.layers()).enumerate() {
        for ((name, a), (_, b)) in a.iter().zip(b.iter()) {
            let [a, b] = [a, b].map(|x| Array::download(x).expect("a state").values);
            let off = error(&a, &b);
            assert!(off <= LIMIT, "{what}: {name} of layer {i} differs by {off:.1e}");
        }
    }
}

#[test]
fn one_by_one_is_all_at_once() {
    if is_missing() {
        return;
    }
    let (batch, length) = (2, 37);
    let tokens = configs::tokens(batch * length, 3);
    for (name, config) in configs::exact() {
        let model = model(&config);
        let whole = read(&model, &tokens, batch, &[length]);
        assert_eq!(whole.0.shape.axes(), [batch, length, 11], "{name}");
        let one_by_one: Vec<usize> = (1..=length).collect();
        assert_same(name, &whole, &read(&model, &tokens, batch, &one_by_one));
        assert_same(name, &whole, &read(&model, &tokens, batch, &[1, 6, 7, 30, length]));
    }
}

#[test]
fn texts_of_a_batch_do_not_meet() {
    if is_missing() {
        return;
    }
    let length = 9;
    let tokens = configs::tokens(2 * length, 5);
    let model = model(&configs::mixed());
    let both = read(&model, &tokens, 2, &[4, length]).0;
    for text in 0..2 {
        let alone = read(&model, &tokens[text * length..(text + 1) * length], 1, &[4, length]).0;
        let off = error(&alone.values, &both.cut(0, text..text + 1).values);
        assert!(off <= 1e-5, "text {text}: {off:.1e}");
    }
}

#[test]
fn scores_are_those_of_the_loss() {
    if is_missing() {
        return;
    }
    let (batch, length) = (2, 12);
    let (inputs, targets) = (configs::tokens(batch * length, 7), configs::tokens(batch * length, 8));
    for (name, config) in configs::exact() {
        let model = model(&config);
        let logits = read(&model, &inputs, batch, &[length]).0;
        let surprise =
            |(row, &target): (&[f64], &u32)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[target as usize];
        let sum: f64 = logits.values.chunks(11).zip(&targets).map(surprise).sum();
        let mean = sum / inputs.len() as f64;
        let loss = model.loss(&inputs, &targets, batch).expect("a loss");
        assert!((loss - mean).abs() <= 1e-5 * mean, "{name}: loss {loss}, from scores {mean}");
    }
}

#[test]
fn later_tokens_do_not_reach_back() {
    if is_missing() {
        return;
    }
    let length = 20;
    let mut tokens = configs::tokens(length, 9);
    for (name, config) in [configs::exact(), configs::frozen(4)].concat() {
        let model = model(&config);
        let before = read(&model, &tokens, 1, &[length]).0;
        tokens[12] = (tokens[12] + 1) % 11;
        let after = read(&model, &tokens, 1, &[length]).0;
        assert_eq!(before.cut(1, 0..12), after.cut(1, 0..12), "{name}: a later token changed an earlier score");
        assert_ne!(before.cut(1, 12..13), after.cut(1, 12..13), "{name}: a token did not change its own score");
    }
}

#[test]
fn a_cloned_cache_goes_on_by_itself() {
    if is_missing() {
        return;
    }
    let model = model(&configs::mixed());
    let tokens = configs::tokens(8, 13);
    let mut cache = model.cache(1).expect("a cache");
    model.infer(&tokens[..5], 1, &mut cache).expect("scores");
    let mut fork = cache.clone();
    let one = model.infer(&tokens[5..], 1, &mut cache).expect("scores").to_f32().expect("scores");
    let other = model.infer(&tokens[5..], 1, &mut fork).expect("scores").to_f32().expect("scores");
    assert_eq!(one, other);
}

#[test]
fn frozen_rules_go_on_at_multiples_only() {
    if is_missing() {
        return;
    }
    let (group, length) = (4, 16);
    let tokens = configs::tokens(length, 15);
    for (name, config) in configs::frozen(group) {
        let model = model(&config);
        assert_eq!(model.group(), group as usize);
        let whole = read(&model, &tokens, 1, &[length]);
        assert_same(name, &whole, &read(&model, &tokens, 1, &[4, 12, length]));
        let mut cache = model.cache(1).expect("a cache");
        model.infer(&tokens[..6], 1, &mut cache).expect("scores");
        let message = refusal(model.infer(&tokens[6..], 1, &mut cache));
        for word in ["layers[0].mixer.", "rule.frozen", "token 6", "multiple of 4", "clone"] {
            assert!(message.contains(word), "{name}: `{word}` is not in: {message}");
        }
        assert_eq!(cache.position(), 6, "{name}: a refused call moved the cache");
    }
}

fn refusal<T>(result: hecate_models::Result<T>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error @ Error::Config { .. }) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
    }
}

#[test]
fn wrong_calls_are_refused() {
    if is_missing() {
        return;
    }
    let model = model(&configs::mixed());
    let mut cache = model.cache(2).expect("a cache");
    let has = |message: String, words: &[&str]| {
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
    };
    has(refusal(model.cache(0)), &["batch", "0"]);
    has(refusal(model.cache(usize::MAX)), &["batch", "at most"]);
    has(refusal(model.infer(&[1], 1, &mut cache)), &["batch", "is 1", "2"]);
    has(refusal(model.infer(&[1, 2, 3], 2, &mut cache)), &["3 tokens in 2 texts"]);
    has(refusal(model.infer(&[], 2, &mut cache)), &["0 tokens"]);
    has(refusal(model.infer(&[1, 11], 2, &mut cache)), &["11", "vocabulary_size"]);
    has(refusal(model.loss(&[1, 2], &[1], 1)), &["targets", "2"]);
    has(refusal(model.loss(&[1, 2], &[1, 99], 1)), &["targets", "99"]);
    has(refusal(model.loss_and_gradients(&[1, 2], &[1, 3], 0)), &["0 texts"]);
    assert_eq!(cache.position(), 0);
}

#[test]
fn configurations_survive_json() {
    let configs = [configs::exact(), configs::frozen(4)].concat();
    for config in configs.into_iter().map(|(_, config)| config).chain([Config::default()]) {
        let json = config.to_json().expect("JSON");
        assert_eq!(Config::from_json(&json).expect("a configuration"), config, "{json}");
    }
    assert_eq!(Config::from_json("{}").expect("all defaults"), Config::default());
    let short = r#"{"layers": [{"mixer": {"kind": "memory", "rule": {"name": "titans"}}}, {}]}"#;
    let short = Config::from_json(short).expect("a configuration");
    assert_eq!(short.layers.len(), 2);
    for name in RuleConfig::NAMES.into_iter().chain(["attention", "cms", "conductor", "tnt", "hope"]) {
        Config::uniform(name, 2, 64, 4).expect(name);
    }
}

#[test]
fn wrong_configurations_are_refused() {
    let layer = |mixer: &str| format!(r#"{{"hidden_size": 8, "layers": [{{"mixer": {mixer}}}]}}"#);
    let memory = |fields: &str| layer(&format!(r#"{{"kind": "memory", {fields}}}"#));
    let attention = |fields: &str| layer(&format!(r#"{{"kind": "attention", {fields}}}"#));
    let cases: Vec<(String, &[&str])> = vec![
        ("{".into(), &["config.json", "EOF"]),
        (r#"{"hidden_sise": 8}"#.into(), &["hidden_sise", "hidden_size"]),
        (r#"{"hidden_size": "wide"}"#.into(), &["wide"]),
        (r#"{"hidden_size": 0}"#.into(), &["hidden_size", "at least 1"]),
        (r#"{"vocabulary_size": 1}"#.into(), &["vocabulary_size", "at least 2"]),
        (r#"{"layers": []}"#.into(), &["layers", "at least 1"]),
        (r#"{"norm_eps": 0}"#.into(), &["norm_eps"]),
        (r#"{"intermediate_size": 0}"#.into(), &["intermediate_size"]),
        (layer(r#"{"kind": "mamba"}"#), &["mamba", "memory", "attention"]),
        (memory(r#""rule": {"name": "moneto"}"#), &["moneto", "hebbian", "delta", "titans", "dgd"]),
        (memory(r#""rule": {"name": "delta", "erase": "half"}"#), &["half", "undecayed", "decayed"]),
        (memory(r#""rule": {"name": "delta", "freeze": 4}"#), &["freeze", "frozen"]),
        (memory(r#""rule": {"name": "delta", "frozen": 0}"#), &["layers[0].mixer.rule", "frozen"]),
        (memory(r#""rule": {"name": "delta", "erase": "decayed", "frozen": 4}"#), &["rule", "decayed"]),
        (memory(r#""heads": 3"#), &["layers[0].mixer.heads", "divisor of hidden_size = 8"]),
        (memory(r#""heads": 0"#), &["layers[0].mixer.heads", "at least 1"]),
        (r#"{"hidden_size": 2305843009213693952}"#.into(), &["hidden_size", "at most"]),
        (r#"{"vocabulary_size": 18446744073709551615}"#.into(), &["vocabulary_size", "at most"]),
        (r#"{"vocabulary_size": 16777216, "hidden_size": 65536}"#.into(), &["number of parameters", "at most"]),
        (r#"{"intermediate_size": 16777217}"#.into(), &["intermediate_size", "at most"]),
        (memory(r#""heads": 8, "key_dim": 18446744073709551615"#), &["layers[0].mixer.key_dim", "at most"]),
        (memory(r#""key_dim": 16777216, "value_dim": 16777216"#), &["heads × key_dim × value_dim", "at most"]),
        (memory(r#""conv": 18446744073709551615"#), &["layers[0].mixer.conv", "at most"]),
        (attention(r#""window": 18446744073709551615"#), &["layers[0].mixer.window", "at most"]),
        (attention(r#""window": 16777216, "head_dim": 4096"#), &["layers[0].mixer.window", "GB for a text", "at most"]),
        (attention(r#""heads": 18446744073709551615, "head_dim": 2"#), &["layers[0].mixer.heads", "at most"]),
        (memory(r#""key_dim": 0"#), &["layers[0].mixer.key_dim"]),
        (memory(r#""conv": 1"#), &["layers[0].mixer.conv", "at least 2 taps"]),
        (memory(r#""step": 0"#), &["layers[0].mixer.step", "above 0 and at most 2"]),
        (memory(r#""step": 2.5, "decay": false"#), &["layers[0].mixer.step", "above 0 and at most 2"]),
        (memory(r#""step": 2"#), &["layers[0].mixer.step", "`decay: false`"]),
        (memory(r#""step": 2, "decay": false, "rule": {"name": "delta", "frozen": 4}"#), &["step", "`frozen: null`"]),
        (memory(r#""step": 2, "rule": {"name": "titans"}"#), &["layers[0].mixer.step", "only the delta rule"]),
        (
            memory(r#""momentum": 0, "rule": {"name": "titans"}"#),
            &["layers[0].mixer.momentum", "above 0 and at most 1"],
        ),
        (
            memory(r#""momentum": 1.5, "rule": {"name": "titans"}"#),
            &["layers[0].mixer.momentum", "above 0 and at most 1"],
        ),
        (memory(r#""momentum": 0.9"#), &["layers[0].mixer.momentum", "only titans, titans_mlp and yaad_momentum"]),
        (attention(r#""window": 1"#), &["layers[0].mixer.window", "at least 2"]),
        (attention(r#""kv_heads": 3"#), &["layers[0].mixer.kv_heads", "divisor"]),
        (attention(r#""head_dim": 3"#), &["layers[0].mixer.head_dim", "even"]),
        (attention(r#""rope_base": 0"#), &["layers[0].mixer.rope_base"]),
    ];
    for (json, words) in cases {
        let message = refusal(Config::from_json(&json));
        words.iter().for_each(|word| assert!(message.contains(word), "{json}: `{word}` is not in: {message}"));
    }
    for layers in [1_000_000_000_000, usize::MAX] {
        assert!(refusal(Config::uniform("delta", layers, 64, 4)).contains("`layers` is"));
    }
    let message = refusal(Config::uniform("elephant", 1, 64, 4));
    assert!(message.contains("elephant") && message.contains("titans"), "{message}");
}

#[test]
fn networks_go_by_groups_by_default() {
    if is_missing() {
        return;
    }
    for (rule, group) in [("titans_mlp", 16), ("yaad", 16), ("moneta_matrix", 16), ("memora", 1), ("delta", 1)] {
        let model = LanguageModel::new(&device(), &Config::uniform(rule, 1, 16, 2).unwrap(), 5).unwrap();
        assert_eq!(model.group(), group, "{rule}");
    }
}

/// Tokens under `known` of several texts, as `generate_all` draws them.
fn drawn(model: &LanguageModel<Column>, known: usize, prompts: &[&[u32]], count: usize) -> Vec<Vec<u32>> {
    let sampler = |seed| Sampler::new(Sampling { seed, top_k: 40, ..Sampling::default() }).unwrap().among(known);
    let texts = generate_all(model, prompts, (0..prompts.len() as u64).map(sampler).collect()).unwrap();
    texts.take(count).map(|tokens| tokens.unwrap()).collect()
}

/// Tokens that the host draws from scores, call by call: what a device that draws for itself is compared with.
fn drawn_by_the_host(model: &LanguageModel<Column>, known: usize, prompts: &[&[u32]], count: usize) -> Vec<Vec<u32>> {
    let texts = prompts.len();
    let mut cache = model.cache(texts).unwrap();
    let sampler = |seed| Sampler::new(Sampling { seed, top_k: 40, ..Sampling::default() }).unwrap();
    let mut samplers: Vec<_> = (0..texts as u64).map(sampler).collect();
    let mut tokens = prompts.concat();
    let draw = |_| {
        let scores = model.infer(&tokens, texts, &mut cache).unwrap().to_f32().unwrap();
        let rows = scores.chunks_exact(scores.len() / texts).map(|text| &text[text.len() - 256..][..known]);
        tokens = samplers.iter_mut().zip(rows).map(|(sampler, row)| sampler.draw(row).unwrap()).collect();
        tokens.clone()
    };
    (0..count).map(draw).collect()
}

#[test]
fn texts_are_drawn_as_the_host_draws_them() {
    if is_missing() {
        return;
    }
    let prompts: [&[u32]; 3] = [&[1, 2, 3], &[4, 5, 6], &[250, 0, 7]];
    // All tokens, or those that a vocabulary has.
    for (mixer, known) in
        [("delta", 256), ("delta", 200), ("titans", 256), ("attention", 131), ("mag", 256), ("mal", 256), ("mac", 200)]
    {
        let model = LanguageModel::new(&device(), &Config::uniform(mixer, 2, 32, 2).unwrap(), 5).unwrap();
        for model in [
            LanguageModel::new(&device(), model.config::<Config>().unwrap(), 5).unwrap().stored_in_16_bits().unwrap(),
            model,
        ] {
            // More than a device draws at a time, and not whole times as many.
            let [found, expected] = [drawn, drawn_by_the_host].map(|draw| draw(&model, known, &prompts, 37));
            assert_eq!(found, expected, "{mixer}, {known} tokens");
        }
    }
}

/// Where no step is captured, it is known why: what the device cannot do, or which layer hinders it.
#[test]
fn why_tokens_are_drawn_call_by_call() {
    if is_missing() {
        return;
    }
    for (mixer, captured) in [("delta", Column::NAME == "cuda"), ("attention", Column::NAME == "cuda"), ("mac", false)]
    {
        let model = LanguageModel::new(&device(), &Config::uniform(mixer, 2, 32, 2).unwrap(), 5).unwrap();
        let sampler = Sampler::new(Sampling::default()).unwrap();
        let mut texts = generate_all(&model, &[&[1, 2, 3]], vec![sampler]).unwrap();
        texts.next().expect("a token").unwrap();
        assert_eq!(texts.why_call_by_call(), None, "{mixer}: nothing was asked for yet");
        texts.next().expect("a token").unwrap();
        assert_eq!(texts.is_captured(), captured, "{mixer}");
        let why = match mixer {
            "mac" => Some("the mixer of layer 0 does other work at other positions".to_owned()),
            _ => (!captured).then(|| format!("{} captures nothing", Column::NAME)),
        };
        assert_eq!(texts.why_call_by_call(), why.as_deref(), "{mixer}");
    }
}

/// As many texts as share tiles of a product, and more: each goes on as it does beside few others.
#[test]
fn many_texts_are_drawn_side_by_side() {
    if is_missing() {
        return;
    }
    let prompts: Vec<[u32; 2]> = (0..70).map(|text| [text, 3 * text + 1]).collect();
    let prompts: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt[..]).collect();
    let model = LanguageModel::new(&device(), &Config::uniform("delta", 2, 64, 2).unwrap(), 5).unwrap();
    for model in [
        LanguageModel::new(&device(), model.config::<Config>().unwrap(), 5).unwrap().stored_in_16_bits().unwrap(),
        model,
    ] {
        for texts in [9, 33, 64, 70] {
            let prompts = &prompts[..texts];
            assert_eq!(drawn(&model, 256, prompts, 19), drawn_by_the_host(&model, 256, prompts, 19), "{texts} texts");
        }
        // Another number of rows sums in another order, and may round the stream: scores stay near.
        let scores = |texts: usize| {
            let mut cache = model.cache(texts).unwrap();
            model.infer(&prompts[..texts].concat(), texts, &mut cache).unwrap();
            model.infer(&vec![7; texts], texts, &mut cache).unwrap().to_f32().unwrap()
        };
        let few: Vec<f64> = scores(8).iter().map(|&x| f64::from(x)).collect();
        for texts in [9, 33, 64, 70] {
            let many: Vec<f64> = scores(texts)[..few.len()].iter().map(|&x| f64::from(x)).collect();
            // Of two layers, with 8 bits of the factors of every product.
            assert!(error(&few, &many) <= 2e-2, "{texts} texts: {:.1e}", error(&few, &many));
        }
    }
}

#[test]
fn prompts_and_samplers_that_do_not_fit_are_refused() {
    if is_missing() {
        return;
    }
    let model = LanguageModel::new(&device(), &Config::uniform("delta", 1, 16, 2).unwrap(), 5).unwrap();
    let sampler = |temperature| Sampler::new(Sampling { temperature, ..Sampling::default() }).unwrap();
    let refused =
        |prompts: &[&[u32]], samplers: Vec<Sampler>| generate_all(&model, prompts, samplers).map(drop).unwrap_err();
    for error in [
        refused(&[], vec![]),
        refused(&[&[]], vec![sampler(1.0)]),
        refused(&[&[1], &[1, 2]], vec![sampler(1.0), sampler(1.0)]),
        refused(&[&[1]], vec![]),
        refused(&[&[1], &[2]], vec![sampler(1.0), sampler(0.5)]),
    ] {
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
    let rounded = model.stored_in_16_bits().unwrap();
    let told = rounded.loss_and_gradients(&[1, 2], &[2, 3], 1).map(drop).unwrap_err().to_string();
    assert!(told.contains("bf16") && told.contains("32 bits"), "{told}");
    assert!(rounded.loss(&[1, 2], &[2, 3], 1).unwrap().is_finite());
}
