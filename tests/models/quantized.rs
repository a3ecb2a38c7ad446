//! Quantized models: what they are made of, how close they stay, what they refuse, and their files.

use crate::{
    column::{Column, device, is_missing},
    training::fixtures::{plan, settings},
};
use hecate_core::{DType, quantized::BlockFormat};
use hecate_models::{
    Config, LanguageModel, LayerConfig, MemoryConfig, MixerConfig, RuleConfig, Vocabulary,
    generate::generate,
    quantize::{quantize, save},
    sampling::{Sampler, Sampling},
    trained::{Trained, WhichWeights},
    weights::stored,
};
use hecate_train::{
    Trainer,
    optimizer::{AdamW, Constants},
};
use std::{fs, path::Path};

/// Rows of 256 values everywhere, with a head of its own.
fn config(mixer: &str) -> Config {
    let config = Config::uniform(mixer, 1, 256, 2).expect("a configuration");
    Config { intermediate_size: Some(256), tie_word_embeddings: false, ..config }
}

fn model(mixer: &str) -> LanguageModel<Column> {
    LanguageModel::new(&device(), &config(mixer), 7).expect("a model")
}

/// Tokens of a text of bytes.
fn text() -> Vec<u32> {
    (0..33).map(|i| (i * i * 7 + i) % 256).collect()
}

fn scores(model: &LanguageModel<Column>) -> Vec<f32> {
    let mut cache = model.cache(1).expect("a cache");
    model.infer(&text(), 1, &mut cache).expect("scores").to_f32().expect("scores")
}

fn trained(model: LanguageModel<Column>) -> Trained<Column> {
    Trained { model, vocabulary: Vocabulary::Bytes, tokenizer: None }
}

/// Root mean square of the difference over that of the truth.
fn error(truth: &[f32], found: &[f32]) -> f32 {
    let square = |x: f32| x * x;
    let difference: f32 = truth.iter().zip(found).map(|(x, y)| square(x - y)).sum();
    (difference / truth.iter().map(|&x| square(x)).sum::<f32>()).sqrt()
}

/// Fewer bits are further away. A level of the format is what a weight may be off by, and layers add up.
#[test]
fn scores_stay_close() {
    if is_missing() {
        return;
    }
    for mixer in ["delta", "attention", "titans_mlp", "mag", "hope", "tnt"] {
        let (model, mut last) = (model(mixer), 0.0);
        let truth = scores(&model);
        for (format, most) in BlockFormat::ALL.into_iter().zip([0.03, 0.06, 0.12, 0.25]) {
            let quantized = quantize(&model, format).expect("a quantized model");
            assert_eq!(quantized.config::<Config>().unwrap().quantization, Some(format));
            assert_eq!(quantized.parameters().elements(), model.parameters().elements(), "{mixer} {format}");
            let error = error(&truth, &scores(&quantized));
            assert!(error > 0.0 && error < most, "{mixer} {format}: {error}");
            assert!(error > 0.5 * last, "{mixer} {format}: {error} is less than {last} of more bits");
            last = error;
        }
    }
}

/// Projections, the MLP and the head; not tables, norms, convolutions and what gates are made of.
#[test]
fn matrices_are_quantized_and_nothing_else() {
    if is_missing() {
        return;
    }
    let quantized = quantize(&model("delta"), BlockFormat::Q4K).expect("a quantized model");
    let mut names: Vec<&str> = quantized.parameters().quantized().iter().map(|x| x.name.as_str()).collect();
    names.sort_unstable();
    let of_layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut expected: Vec<String> = [
        "attn.q_proj",
        "attn.k_proj",
        "attn.v_proj",
        "attn.g_proj",
        "attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ]
    .map(of_layer)
    .into();
    expected.push("lm_head.weight".into());
    expected.sort_unstable();
    assert_eq!(names, expected);
    let kept = |name: &str| quantized.parameters().iter().any(|p| p.name.contains(name));
    assert!(["embeddings", "a_proj", "b_proj", "norm", "conv"].into_iter().all(kept));
}

/// Token by token as in one call, whatever kernel each of them takes.
#[test]
fn decoding_goes_on_where_a_prompt_ends() {
    if is_missing() {
        return;
    }
    let quantized = quantize(&model("delta"), BlockFormat::Q6K).expect("a quantized model");
    let (whole, mut cache, mut parts) = (scores(&quantized), quantized.cache(1).expect("a cache"), Vec::new());
    for token in text() {
        parts.extend(quantized.infer(&[token], 1, &mut cache).expect("scores").to_f32().expect("scores"));
    }
    // Rows of activations are rounded one by one, so that how many there are matters to sums of 32 bits alone; what a
    // rounding then tips over is a level of 8 bits.
    let error = error(&whole, &parts);
    assert!(error < 5e-3, "{error}");
    let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }).expect("a sampler");
    let tokens = generate(&quantized, &text(), sampler).expect("a prompt").take(4).collect::<Result<Vec<_>, _>>();
    assert_eq!(tokens.expect("tokens").len(), 4);
}

#[test]
fn learning_is_refused_by_name() {
    if is_missing() {
        return;
    }
    let quantized = quantize(&model("delta"), BlockFormat::Q5K).expect("a quantized model");
    let told = |error: hecate_models::Error| {
        let told = error.to_string();
        assert!(told.contains("quantization") && told.contains("q5_k") && told.contains("32 bits"), "{told}");
    };
    let text = text();
    told(quantized.loss_and_gradients(&text[..8], &text[1..9], 1).expect_err("a gradient"));
    // A loss alone is no learning.
    assert!(quantized.loss(&text[..8], &text[1..9], 1).expect("a loss").is_finite());
    let config = quantized.config::<Config>().expect("blocks");
    told(LanguageModel::new(&device(), config, 0).map(drop).expect_err("a fresh model"));
    told(Trainer::new(&device(), config, settings(), plan(), None).map(drop).expect_err("a run"));
    told(Trainer::from_model(quantized, settings(), plan(), None).map(drop).expect_err("a run"));
}

/// Rows of 256 values are blocks of all formats, those of 96 of `q8_0` alone, and those of 80 of none.
#[test]
fn matrices_that_a_format_does_not_fit_take_the_next() {
    if is_missing() {
        return;
    }
    let rule = RuleConfig::named("delta").expect("a rule");
    let memory = MemoryConfig { rule, heads: 2, value_dim: Some(40), ..MemoryConfig::default() };
    let layers = vec![LayerConfig { mixer: MixerConfig::Memory(memory) }];
    let config = Config { intermediate_size: Some(96), layers, ..config("delta") };
    let model = LanguageModel::new(&device(), &config, 7).expect("a model");
    let (truth, folder) = (scores(&model), tempfile::tempdir().expect("a folder"));
    for (format, most) in BlockFormat::ALL.into_iter().zip([0.03, 0.06, 0.12, 0.25]) {
        let quantized = quantize(&model, format).expect("a quantized model");
        let down = |x: &&hecate_models::QuantizedMatrix<Column>| x.name.contains("down_proj");
        let found = quantized.parameters().quantized().iter().find(down).expect("a matrix").matrix.format();
        assert_eq!(found, BlockFormat::Q8_0, "{format}");
        let narrow: Vec<_> = quantized.parameters().iter().filter(|p| p.value.dtype() == DType::Bf16).collect();
        assert_eq!(narrow.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["model.layers.0.attn.o_proj.weight"]);
        let own = scores(&quantized);
        let error = error(&truth, &own);
        assert!(error > 0.0 && error < most, "{format}: {error}");
        assert_eq!(quantized.parameters().elements(), model.parameters().elements());
        // A file keeps each as it is.
        let out = folder.path().join(format.name());
        let saved = trained(quantized);
        save(&saved, &out).expect("files");
        let loaded = Trained::load(&device(), &out, WhichWeights::Last).expect("a model").model;
        assert_eq!(scores(&loaded), own, "{format}");
        let told = loaded.loss_and_gradients(&text()[..8], &text()[1..9], 1).expect_err("a gradient").to_string();
        assert!(told.contains("32 bits"), "{told}");
        // As many bytes as the header says, and no 32 bits of what has 16.
        let stored = stored(&out.join("model.safetensors"), Some(format)).expect("a header");
        assert_eq!(stored["bf16"].bytes, 2 * stored["bf16"].elements);
        assert!(stored["q8_0"].rows.contains(&96), "{stored:?}");
        assert_eq!(stored.values().map(|x| x.elements as usize).sum::<usize>(), model.parameters().elements());
    }
    let again = quantize(&quantize(&model, BlockFormat::Q8_0).expect("blocks of 32"), BlockFormat::Q8_0);
    assert!(again.map(drop).expect_err("quantized twice").to_string().contains("q8_0"));
}

/// What no block can hold is told with the matrix that has it.
#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    if is_missing() {
        return;
    }
    let mut model = model("delta");
    let name = "model.layers.0.mlp.up_proj.weight";
    let parameter = model.parameters_mut().iter_mut().find(|parameter| parameter.name == name).expect("a matrix");
    let mut values = parameter.value.to_f32().expect("values");
    values[300] = f32::NAN;
    let shape = parameter.value.shape().clone();
    parameter.value = hecate_core::Tensor::from_f32(&device(), shape, values).expect("values");
    let told = quantize(&model, BlockFormat::Q4K).map(drop).expect_err("NaN").to_string();
    assert!(told.contains(name) && told.contains("NaN") && told.contains("300"), "{told}");
}

/// A NaN that comes up inside reaches the scores.
#[test]
fn nan_reaches_the_scores() {
    if is_missing() {
        return;
    }
    let mut quantized = quantize(&model("attention"), BlockFormat::Q4K).expect("a quantized model");
    let table = quantized.parameters_mut().iter_mut().find(|p| p.name.contains("embeddings")).expect("a table");
    let mut values = table.value.to_f32().expect("values");
    let token = text()[5] as usize;
    values[token * 256 + 3] = f32::NAN;
    let shape = table.value.shape().clone();
    table.value = hecate_core::Tensor::from_f32(&device(), shape, values).expect("values");
    let scores = scores(&quantized);
    let counts: Vec<usize> = scores.chunks(256).map(|row| row.iter().filter(|x| x.is_nan()).count()).collect();
    // What comes before it in the same call may be NaN too.
    assert!(counts[5..].iter().all(|&count| count == 256), "{counts:?}");
}

#[test]
fn files_come_back_and_damage_is_noticed() {
    if is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for format in BlockFormat::ALL {
        let out = folder.path().join(format.name());
        let trained = trained(quantize(&model("delta"), format).expect("a quantized model"));
        save(&trained, &out).expect("files");
        let load = |out: &Path| Trained::load(&device(), out, WhichWeights::Last).map(|trained| trained.model);
        let loaded = load(&out).expect("a model");
        assert_eq!(scores(&trained.model), scores(&loaded), "{format}");
        let (config, weights) = (out.join("config.json"), out.join("model.safetensors"));
        assert!(fs::read_to_string(&config).expect("a file").contains(&format!("\"quantization\": \"{format}\"")));
        // Nothing is written over.
        let told = save(&trained, &out).expect_err("a folder that is taken").to_string();
        assert!(told.contains("config.json") && told.contains("another folder"), "{told}");
        let whole = fs::read(&weights).expect("a file");
        for at in [whole.len() - 1, whole.len() / 2, 3 * whole.len() / 4] {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(&weights, bytes).expect("a file");
            let told = load(&out).map(drop).expect_err("damage").to_string();
            assert!(told.contains("model.safetensors") && told.contains("damaged"), "{told}");
        }
        fs::write(&weights, &whole[..whole.len() - 7]).expect("a file");
        assert!(load(&out).is_err(), "cut short");
    }
    let unknown = r#"{"layers": [{}], "quantization": "q3_k"}"#;
    let told = Config::from_json(unknown).expect_err("an unknown format").to_string();
    assert!(told.contains("q3_k") && BlockFormat::ALL.into_iter().all(|format| told.contains(format.name())), "{told}");
}

/// A model that learned something predicts it as well in 8 bits, and nearly so in 4.
#[test]
fn what_was_learned_stays() {
    if is_missing() {
        return;
    }
    let (device, mut model) = (device(), model("delta"));
    let mut optimizer = AdamW::new(&device, model.parameters(), Constants::default()).expect("moments");
    let text: Vec<u32> = "tick tock ".repeat(6).bytes().map(u32::from).collect();
    let (inputs, targets) = (&text[..48], &text[1..49]);
    for _ in 0..12 {
        let (_, gradients) = model.loss_and_gradients(inputs, targets, 1).expect("gradients");
        optimizer.step(model.parameters_mut(), gradients, 0.003).expect("a step");
    }
    let loss = |model: &LanguageModel<Column>| model.loss(inputs, targets, 1).expect("a loss");
    let before = loss(&model);
    assert!(before < 2.0, "{before} was learned");
    for (format, most) in BlockFormat::ALL.into_iter().zip([0.005, 0.01, 0.03, 0.08]) {
        let after = loss(&quantize(&model, format).expect("a quantized model"));
        assert!((after / before - 1.0).abs() < most, "{format}: {after} nats, before {before}");
    }
}
