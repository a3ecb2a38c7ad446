//! Where memories go as they forget.

use super::{HIDDEN, configs, stir};
use crate::column::{Column, device, is_missing};
use hecate_conformance::Array;
use hecate_models::{
    Builder, Config, Features, LanguageModel, LayerCache, LayerConfig, MemoryConfig, MixerConfig, Parameters, Random,
    Retain, RuleConfig, Tape, Var,
    layers::{Context, mixer},
};

/// Rules whose memories go back to their start unless told otherwise.
const NAMES: [&str; 10] = [
    "titans_mlp",
    "moneta",
    "moneta_matrix",
    "yaad",
    "yaad_matrix",
    "yaad_momentum",
    "memora",
    "memora_matrix",
    "lattice",
    "trellis",
];

/// Those that once forgot 1,024 times more slowly than their gates say.
const SLOW: [&str; 5] = ["titans_mlp", "moneta", "yaad", "yaad_momentum", "trellis"];

fn memory(name: &str) -> MemoryConfig {
    configs::memory(RuleConfig::named(name).expect(name))
}

/// Linear rules that go back, as they are told to.
fn linear() -> impl Iterator<Item = (&'static str, MemoryConfig)> {
    ["hebbian", "delta", "titans", "dgd", "lightning"]
        .map(|name| (name, MemoryConfig { retain: Some(Retain::Initial), ..memory(name) }))
        .into_iter()
}

/// All that go back.
fn all() -> Vec<(&'static str, MemoryConfig)> {
    NAMES.map(|name| (name, memory(name))).into_iter().chain(linear()).collect()
}

fn model_of(memory: &MemoryConfig) -> Config {
    configs::config([MixerConfig::Memory(memory.clone())])
}

/// Scores of a text, and all gradients.
fn bits(config: &Config) -> (Vec<f32>, Vec<Vec<f32>>) {
    let model = LanguageModel::<Column>::new(&device(), config, 5).expect("a model");
    let (inputs, targets) = (configs::tokens(21, 8), configs::tokens(21, 9));
    let scores = model.infer(&inputs, 1, &mut model.cache(1).expect("a cache")).expect("scores");
    let (_, gradients) = model.loss_and_gradients(&inputs, &targets, 1).expect("a loss");
    let gradients = gradients.iter().flatten().map(|x| x.to_f32().expect("a gradient")).collect();
    (scores.to_f32().expect("scores"), gradients)
}

/// As `config.json` was before there was a choice.
fn former(memory: &MemoryConfig) -> String {
    let mut json: serde_json::Value = serde_json::from_str(&model_of(memory).to_json().expect("JSON")).expect("JSON");
    let mixer = json["layers"][0]["mixer"].as_object_mut().expect("a memory");
    assert!(mixer.remove("retain").is_some() && mixer.remove("forgetting").is_some(), "both are always written");
    json.to_string()
}

#[test]
fn memories_go_back_where_they_can() {
    for name in RuleConfig::NAMES {
        let wanted = if NAMES.contains(&name) { Retain::Initial } else { Retain::Zero };
        assert_eq!(memory(name).retention(), wanted, "{name}");
        assert_eq!(MemoryConfig { decay: false, ..memory(name) }.retention(), Retain::Zero, "{name}, no decay");
    }
    let before = r#"{"name": "yaad", "read": "before"}"#;
    let before = configs::memory(serde_json::from_str(before).expect("a rule"));
    assert_eq!(before.retention(), Retain::Zero, "read before the write");
    model_of(&before).validate().expect("to zero");
}

/// `−1 / log a` of fresh heads with nothing read: `1 / (exp(A_log) softplus(dt_bias))`.
#[test]
fn fresh_heads_have_the_horizons_that_are_asked_for() {
    if is_missing() {
        return;
    }
    let memory = MemoryConfig { heads: 64, horizon: Some([16.0, 1024.0]), ..memory("delta") };
    let config = Config { hidden_size: 64, ..model_of(&memory) };
    let model = LanguageModel::<Column>::new(&device(), &config, 5).expect("a model");
    let values = |name: &str| {
        let named = model.parameters().iter().find(|parameter| parameter.name.ends_with(name));
        named.expect("a parameter").value.to_f32().expect("its values")
    };
    let horizon = |(a, dt): (f32, f32)| 1.0 / (f64::from(a).exp() * f64::from(dt).exp().ln_1p());
    let horizons: Vec<f64> = values("A_log").into_iter().zip(values("dt_bias")).map(horizon).collect();
    assert_eq!(horizons.len(), 64);
    assert!(horizons.iter().all(|horizon| (15.99..1024.1).contains(horizon)), "{horizons:?}");
    // Log-uniform: half of them are under the geometric mean of the ends, give or take four deviations.
    let short = horizons.iter().filter(|&&horizon| horizon < 128.0).count();
    assert!((16..=48).contains(&short), "{short} of 64");
    for (horizon, decay) in [([0.5, 9.0], true), ([9.0, 4.0], true), ([1.0, f32::INFINITY], true), ([2.0, 4.0], false)]
    {
        let told = model_of(&MemoryConfig { horizon: Some(horizon), decay, ..memory }).validate().expect_err("refused");
        assert!(told.to_string().contains("horizon"), "{told}");
    }
}

/// A whole file as it was written before there was a choice.
#[test]
fn a_former_file_is_what_it_was() {
    let file = r#"{"vocabulary_size": 256, "hidden_size": 8, "intermediate_size": null, "tie_word_embeddings": true,
        "norm_eps": 0.000001, "initializer_range": 0.02, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "hidden_dropout": 0.0, "layers": [{"mixer": {"kind": "memory", "rule": {"name": "yaad", "memory": {"expansion": 2,
        "activation": "silu", "residual": false, "norm": false}, "bias": "coordinate", "read": "after", "frozen": null},
        "heads": 2, "key_dim": null, "value_dim": null, "conv": 4, "gate": true, "decay": true, "step": 1.0,
        "momentum": 1.0, "features": "identity"}}]}"#;
    let config = Config::from_json(file).expect("a configuration");
    let slow = MemoryConfig {
        rule: memory("yaad").rule,
        heads: 2,
        retain: Some(Retain::Zero),
        forgetting: 1.0 / 1024.0,
        features: Features::Identity,
        ..MemoryConfig::default()
    };
    let layers = vec![LayerConfig { mixer: MixerConfig::Memory(slow) }];
    assert_eq!(config, Config { hidden_size: 8, layers, ..Config::default() });
}

#[test]
fn former_configurations_keep_their_function() {
    if is_missing() {
        return;
    }
    for name in RuleConfig::NAMES {
        let read = Config::from_json(&former(&memory(name))).expect(name);
        let forgetting = if SLOW.contains(&name) { 1.0 / 1024.0 } else { 1.0 };
        let slow = MemoryConfig { retain: Some(Retain::Zero), forgetting, ..memory(name) };
        assert_eq!(read, model_of(&slow), "{name}");
        assert_eq!(bits(&read), bits(&model_of(&slow)), "{name}");
        if NAMES.contains(&name) {
            assert_ne!(bits(&read), bits(&model_of(&memory(name))), "{name}: both ways are one");
        }
    }
    // Nothing is divided by in a trellis without a norm.
    let rule = r#"{"name": "trellis", "phi": "identity", "slots": 2}"#;
    let plain = configs::memory(serde_json::from_str(rule).expect("a rule"));
    let read = Config::from_json(&former(&plain)).expect("a configuration");
    assert_eq!(read, model_of(&MemoryConfig { retain: Some(Retain::Zero), ..plain }));
}

/// What goes to zero has neither the parameter of those that do not nor another function than before.
#[test]
fn linear_rules_go_to_zero_unless_told_otherwise() {
    if is_missing() {
        return;
    }
    for (name, memory) in linear() {
        let zero = MemoryConfig { retain: Some(Retain::Zero), ..memory.clone() };
        let unsaid = MemoryConfig { retain: None, ..memory.clone() };
        assert_eq!(bits(&model_of(&unsaid)), bits(&model_of(&zero)), "{name}");
        assert_eq!(bits(&model_of(&unsaid)).1.len() + 1, bits(&model_of(&memory)).1.len(), "{name}: `initial.m`");
    }
}

/// Hope makes its own keys, of which a memory that went to zero has none.
#[test]
fn a_former_hope_goes_to_zero() {
    if is_missing() {
        return;
    }
    let [zero, start] =
        [Retain::Zero, Retain::Initial].map(|retain| configs::config([configs::levels::hope(3, retain)]));
    let mut json: serde_json::Value = serde_json::from_str(&zero.to_json().expect("JSON")).expect("JSON");
    json["layers"][0]["mixer"].as_object_mut().expect("hope").remove("retain").expect("it is always written");
    let read = Config::from_json(&json.to_string()).expect("a configuration");
    assert_eq!(read, zero);
    assert_eq!(bits(&read), bits(&zero));
    assert_ne!(bits(&read), bits(&start), "both ways are one");
    assert!(matches!(&Config::uniform("hope", 1, 8, 2).expect("a model").layers[0].mixer,
        MixerConfig::Hope(hope) if hope.retain == Retain::Initial));
}

/// With `a = 0` and a last token that writes nothing, hope remembers what it started from and nothing else.
#[test]
fn a_hope_that_forgets_all_starts_again() {
    if is_missing() {
        return;
    }
    for chunk in [1, 3] {
        let (layer, parameters) = forgetful(&configs::levels::hope(chunk, Retain::Initial));
        let mut cache = layer.cache(&device(), &parameters, 1).expect("a cache");
        let state = |cache: &LayerCache<Column>| cache.get("m").expect("a state").to_f32().expect("a state");
        let first = state(&cache);
        for (tokens, same) in [(6, false), (3, true)] {
            let mut x = hecate_conformance::Random::new(7).normals([1, tokens, HIDDEN]);
            if same {
                x.values.fill(0.0);
            }
            let x = Var::constant(x.upload(&device(), hecate_core::DType::F32).expect("tokens"));
            let mut context = Context { cache: Some(&mut cache), ..Context::whole(1, tokens) };
            layer.forward(&Tape::inert(&parameters), &x, &mut context).expect("hope");
            assert_eq!(state(&cache) == first, same, "chunks of {chunk}");
        }
    }
}

#[test]
fn choices_survive_json() {
    let choices = [(None, 1.0), (Some(Retain::Initial), 0.25), (Some(Retain::Zero), 1.0), (Some(Retain::Zero), 0.5)];
    for (retain, forgetting) in choices {
        let config = model_of(&MemoryConfig { retain, forgetting, ..memory("yaad") });
        assert_eq!(Config::from_json(&config.to_json().expect("JSON")).expect("a configuration"), config);
    }
    // Who picks zero today forgets as gates say.
    let json = former(&memory("yaad")).replace(r#""kind":"#, r#""retain":"zero","kind":"#);
    let picked = MemoryConfig { retain: Some(Retain::Zero), ..memory("yaad") };
    assert_eq!(Config::from_json(&json).expect("a configuration"), model_of(&picked));
}

#[test]
fn what_no_memory_can_do_is_refused() {
    let told = |memory: MemoryConfig, words: &[&str]| {
        let message = model_of(&memory).validate().expect_err("refused").to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
    };
    let retain = Some(Retain::Initial);
    told(MemoryConfig { retain, ..memory("atlas") }, &["mixer.retain", "initial", "zero", "atlas", "Linear rules"]);
    let frozen = configs::memory(serde_json::from_str(r#"{"name": "dgd", "frozen": 4}"#).expect("a rule"));
    told(MemoryConfig { retain, ..frozen }, &["mixer.retain", "initial", "zero", "dgd", "without frozen groups"]);
    let before = configs::memory(serde_json::from_str(r#"{"name": "yaad", "read": "before"}"#).expect("a rule"));
    told(MemoryConfig { retain, ..before }, &["mixer.retain", "initial", "read after"]);
    for forgetting in [0.0, -1.0, 1.5, f32::NAN, f32::INFINITY] {
        told(MemoryConfig { forgetting, ..memory("yaad") }, &["mixer.forgetting", "above 0 and at most 1"]);
    }
}

/// A layer whose gates forget all: `dt_bias` so large that `a` is 0, or with hope `alpha_bias` so small.
fn forgetful(config: &MixerConfig) -> (Box<dyn hecate_models::layers::Mixer<Column>>, Parameters<Column>) {
    let (device, mut parameters, mut random) = (device(), Parameters::new(), Random::new(3));
    let build = &mut Builder::new(&device, &mut parameters, &mut random, 0.4, 1);
    let layer = mixer(build, config, HIDDEN, 1e-5).expect("a layer");
    stir(&mut parameters);
    let biases = ["dt_bias", "alpha_bias"];
    for parameter in parameters.iter_mut().filter(|parameter| biases.contains(&parameter.name.as_str())) {
        let bias = if parameter.name == "dt_bias" { 1e4 } else { -1e4 };
        let values = vec![bias; parameter.value.shape().count()];
        parameter.value =
            hecate_core::Tensor::from_f32(&device, parameter.value.shape().clone(), values).expect("biases");
    }
    (layer, parameters)
}

/// With `a = 0` a token finds the start, whatever came before it. Only the gradient is taken at what was there.
#[test]
fn memories_that_forget_all_start_again() {
    if is_missing() {
        return;
    }
    // Momentum goes on by itself, whatever is forgotten; lightning forgets as it does.
    let others = ["titans_mlp", "yaad_momentum", "titans", "lightning"];
    for (name, memory) in all().into_iter().filter(|(name, _)| !others.contains(name)) {
        let config = MemoryConfig { conv: 0, ..memory };
        let (layer, parameters) = forgetful(&MixerConfig::Memory(config));
        let tape = Tape::inert(&parameters);
        let mut draw = hecate_conformance::Random::new(7);
        let mut x = draw.normals([1, 6, HIDDEN]);
        // The last token writes nothing: its key is made of zeros.
        x.values[5 * HIDDEN..].fill(0.0);
        let last = Array { values: x.values[5 * HIDDEN..].to_vec(), ..draw.normals([1, 1, HIDDEN]) };
        let state = |x: &Array, tokens| {
            let mut cache = layer.cache(&device(), &parameters, 1).expect("a cache");
            let x = Var::constant(x.upload(&device(), hecate_core::DType::F32).expect("tokens"));
            let mut context = Context { cache: Some(&mut cache), ..Context::whole(1, tokens) };
            layer.forward(&tape, &x, &mut context).expect(name);
            cache.iter().map(|(_, state)| state.to_f32().expect("a state")).collect::<Vec<_>>()
        };
        assert_eq!(state(&x, 6), state(&last, 1), "{name}: the state of one token");
    }
}

/// The start is learned by what goes back to it too: from the first state alone it would have another gradient.
#[test]
fn what_memories_go_back_to_is_learned() {
    if is_missing() {
        return;
    }
    for (name, memory) in all() {
        let (layer, parameters) = forgetful(&MixerConfig::Memory(memory));
        let tape = Tape::recording(&parameters);
        let x = hecate_conformance::Random::new(7).normals([1, 5, HIDDEN]);
        let x = Var::constant(x.upload(&device(), hecate_core::DType::F32).expect("tokens"));
        let y = layer.forward(&tape, &x, &mut Context::whole(1, 5)).expect(name);
        // Of the last token alone, which no longer knows of the first state.
        let y = tape.narrow(&y, 1, 4, 1).expect("a token");
        let seed = Array::full([1, 1, HIDDEN], 1.0).upload(&device(), hecate_core::DType::F32).expect("a seed");
        let gradients = tape.backward_seeded([(y, seed)]).expect(name);
        let starts = parameters.iter().zip(gradients.iter()).filter(|(p, _)| p.name.starts_with("initial."));
        let mut count = 0;
        for (parameter, gradient) in starts {
            let gradient = gradient.as_ref().expect("a gradient").to_f32().expect("a gradient");
            let size = gradient.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!(size > 1e-4, "{name}: {} has a gradient of {size:.1e}", parameter.name);
            count += 1;
        }
        assert!(count > 0, "{name}: nothing is learned");
    }
}
