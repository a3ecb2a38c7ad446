//! Adapters of released models, against what the library PEFT computes with them (`adapters.py`); their files, and what is refused.

use crate::{ADAPTED, MODELS, folder};
use hecate_conformance::{Array, error};
use hecate_core::{Backend, primitives};
use hecate_cpu::Cpu;
use hecate_models::{Error, LanguageModel, Lora, Opened};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// 32 bits round each of some dozens of sums after one another.
const SCORES: f64 = 1e-5;
/// Gradients sum over 260 tokens, of either sign.
const GRADIENTS: f64 = 1e-4;
/// Tokens of a text.
const TOKENS: usize = 130;

const FILE: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// The folder of an adapter that PEFT wrote.
pub(crate) fn adapter(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "released/adapters", name].iter().collect()
}

/// A copy of it, without what is expected.
pub(crate) fn copy(name: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in [FILE, CONFIG] {
        fs::copy(adapter(name).join(file), copy.path().join(file)).expect("room");
    }
    copy
}

/// Arrays by their names: shapes and values.
type Contents = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// All arrays of a file.
fn arrays(path: &Path) -> Contents {
    let bytes = fs::read(path).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    let all = file.tensors().into_iter().filter(|(_, view)| view.dtype() == Dtype::F32);
    all.map(|(name, view)| (name, (view.shape().to_vec(), values(view.data())))).collect()
}

fn open<B: Backend>(device: &B, name: &str) -> Opened<B> {
    Opened::open(device, &folder(name)).expect("a folder of a model")
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

/// A name without the word more that models that see have.
fn plain(name: &str) -> String {
    name.replace(".language_model", "")
}

/// `from .. to` of the tokens of both texts of a model.
fn tokens(name: &str, from: usize, to: usize) -> Vec<u32> {
    let bytes = fs::read(folder(name).join("expected.safetensors")).expect("what is expected");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    let (ids, _) = file.tensor("ids").expect("tokens").data().as_chunks::<4>();
    let ids: Vec<u32> = ids.iter().map(|x| u32::from_le_bytes(*x)).collect();
    ids.chunks(TOKENS + 1).flat_map(|text| &text[from..to]).copied().collect()
}

fn scores<B: Backend>(model: &LanguageModel<B>, name: &str) -> Vec<f64> {
    let mut cache = model.cache(2).expect("a cache");
    Array::download(&model.infer(&tokens(name, 0, TOKENS), 2, &mut cache).expect("scores")).expect("scores").values
}

/// Scores, the loss, and the gradients of `A` and `B` of every map.
pub(crate) fn are_those_of_peft<B: Backend>(device: &B) {
    for name in ADAPTED {
        let opened = open(device, name);
        let mut model = opened.read_adapter(opened.model().expect("a model"), &adapter(name)).expect("an adapter");
        let expected = arrays(&adapter(name).join("expected.safetensors"));
        let apart = error(&wide(&expected["logits"].1), &scores(&model, name));
        assert!(apart <= SCORES, "{name}: scores by {apart:.1e}");
        let (inputs, targets) = (tokens(name, 0, TOKENS), tokens(name, 1, TOKENS + 1));
        let (loss, gradients) = model.loss_and_gradients(&inputs, &targets, 2).expect("gradients");
        let apart = error(&wide(&expected["loss"].1), &[loss]);
        assert!(apart <= SCORES, "{name}: the loss by {apart:.1e}");
        // Written as an adapter, gradients have the names and the rows of PEFT.
        for (parameter, gradient) in model.parameters_mut().iter_mut().zip(gradients.iter()) {
            parameter.value = gradient.clone().expect("a gradient");
        }
        let written = tempfile::tempdir().expect("a folder");
        opened.save_adapter(&model, written.path()).expect("room");
        let found = arrays(&written.path().join(FILE));
        assert_eq!(found.len() + 2, expected.len(), "{name}");
        for (array, (shape, values)) in found {
            let (expected_shape, expected) = &expected[&format!("gradient.{}", plain(&array))];
            let apart = error(&wide(expected), &wide(&values));
            assert!(shape == *expected_shape && apart <= GRADIENTS, "{name}: {array} by {apart:.1e}");
        }
    }
}

#[test]
fn an_adapter_is_written_as_it_was_read() {
    for name in ADAPTED {
        let opened = open(&Cpu::new(), name);
        let model = opened.read_adapter(opened.model().expect("a model"), &adapter(name)).expect("an adapter");
        let written = tempfile::tempdir().expect("a folder");
        opened.save_adapter(&model, written.path()).expect("room");
        let (found, expected) = [written.path(), &adapter(name)].map(|folder| arrays(&folder.join(FILE))).into();
        let found: BTreeMap<_, _> = found.into_iter().map(|(name, values)| (plain(&name), values)).collect();
        assert!(found == expected, "{name}: {:?}", found.keys());
        let read = |folder: &Path| serde_json::from_slice::<Value>(&fs::read(folder.join(CONFIG)).expect("a file"));
        let [found, expected] = [written.path(), &adapter(name)].map(|folder| read(folder).expect("JSON"));
        for field in ["peft_type", "task_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias"] {
            assert_eq!(found[field], expected[field], "{name}: {field}");
        }
        // It is read again, also by the names that were written.
        let again = opened.read_adapter(opened.model().expect("a model"), written.path()).expect("an adapter");
        assert_eq!(scores(&again, name), scores(&model, name), "{name}");
    }
}

#[test]
fn merged_models_score_as_the_model_and_its_adapter() {
    for name in ADAPTED {
        let opened = open(&Cpu::new(), name);
        let base = opened.model().expect("a model");
        let (config, before) = (base.config_json().to_vec(), scores(&base, name));
        let model = opened.read_adapter(base, &adapter(name)).expect("an adapter");
        let beside = scores(&model, name);
        assert!(error(&before, &beside) > 0.1, "{name}: the adapter changes something");
        let content = String::from_utf8_lossy(model.config_json());
        assert!(content.contains("\"rank\""), "{name}");
        // The same bytes from every build: names are in order.
        let mut sorted: Value = serde_json::from_str(&content).expect("JSON");
        sorted.sort_all_objects();
        assert_eq!(content.trim(), format!("{sorted:#}"), "{name}");
        let written = tempfile::tempdir().expect("a folder");
        let told = opened.save(&model, written.path()).expect_err("two models").to_string();
        assert!(told.contains("LanguageModel::merged"), "{told}");
        let merged = model.merged().expect("a model");
        assert!(error(&beside, &scores(&merged, name)) <= SCORES, "{name}");
        assert!(merged.lora().is_none() && merged.config_json() == config, "{name}");
        opened.save(&merged, written.path()).expect("room");
        let again = Opened::open(&Cpu::new(), written.path()).and_then(|opened| opened.model()).expect("a model");
        assert_eq!(scores(&again, name), scores(&merged, name), "{name}");
        // All of it learns again.
        assert_eq!(merged.parameters().len(), opened.model().expect("a model").parameters().len(), "{name}");
    }
}

#[test]
fn fresh_adapters_change_nothing_and_learn_alone() {
    for name in MODELS {
        let opened = open(&Cpu::new(), name);
        let base = opened.model().expect("a model");
        let (before, elements) = (scores(&base, name), base.parameters().elements());
        let lora = Lora::of_rank(3);
        let mut model = opened.adapt(base, &lora, 5).expect("an adapter");
        assert_eq!(scores(&model, name), before, "{name}");
        let learned: usize = model.parameters().iter().map(|parameter| parameter.value.shape().count()).sum();
        assert_eq!(model.parameters().elements(), elements + learned, "{name}");
        // Every `B` has a gradient at first, every `A` once its `B` is not zero.
        let (inputs, targets) = (tokens(name, 0, TOKENS), tokens(name, 1, TOKENS + 1));
        for factor in [".lora_B.weight", ".lora_A.weight"] {
            let (_, gradients) = model.loss_and_gradients(&inputs, &targets, 2).expect("gradients");
            assert_eq!(gradients.iter().len(), model.parameters().len(), "{name}: the frozen ones have none");
            for (parameter, gradient) in model.parameters_mut().iter_mut().zip(gradients.iter()) {
                let values = gradient.as_ref().expect("a gradient").to_f32().expect("values");
                let norm = values.iter().map(|x| x * x).sum::<f32>();
                assert!(!parameter.name.ends_with(factor) || norm > 0.0, "{name}: {}", parameter.name);
                if parameter.name.ends_with(".lora_B.weight") {
                    parameter.value = gradient.clone().expect("a gradient");
                }
            }
        }
        // Blocks of Mamba-2 have one map in and one back.
        let maps = if name == "mamba2" { 2 } else { 7 };
        assert!(model.lora().expect("an adapter").targets.len() >= maps, "{name}");
    }
}

/// One adapter beside two models: what texts are kept by knows the models apart.
#[test]
fn fingerprints_are_of_the_model_and_its_adapter() {
    let opened = open(&Cpu::new(), "llama");
    let of = |factor: f32| {
        let mut model = opened.model().expect("a model");
        let first = model.parameters_mut().iter_mut().next().expect("a table");
        first.value = primitives::scale(factor, &first.value).expect("a table");
        let model = opened.read_adapter(model, &adapter("llama")).expect("an adapter");
        model.fingerprint().expect("values").to_owned()
    };
    assert_eq!(of(1.0), of(1.0));
    assert_ne!(of(1.0), of(2.0));
}

/// Beside a model in 16 bits, as those that learn in bfloat16 are.
#[test]
fn adapters_learn_beside_matrices_in_16_bits() {
    let opened = open(&Cpu::new(), "llama_bf16");
    let gradients = |model: LanguageModel<Cpu>| {
        let model = opened.adapt(model, &Lora::of_rank(2), 5).expect("an adapter");
        let (inputs, targets) = (tokens("llama_bf16", 0, TOKENS), tokens("llama_bf16", 1, TOKENS + 1));
        let (_, gradients) = model.loss_and_gradients(&inputs, &targets, 2).expect("gradients");
        let values = gradients.iter().map(|x| wide(&x.as_ref().expect("a gradient").to_f32().expect("values")));
        (values.collect::<Vec<_>>(), model)
    };
    let (whole, _) = gradients(opened.model().expect("a model"));
    // The file has 16 bits, so nothing is lost.
    let (narrow, model) = gradients(opened.model().and_then(LanguageModel::stored_in_16_bits).expect("a model"));
    assert!(whole.iter().zip(&narrow).all(|(a, b)| error(a, b) <= GRADIENTS || a.iter().all(|x| *x == 0.0)));
    let told = model.merged().expect_err("rounded").to_string();
    assert!(told.contains("bf16") && told.contains("read once more"), "{told}");
}

/// An adapter of `qwen3_5`, changed and refused; the message says all of `told`.
#[track_caller]
fn refused(change: impl FnOnce(&Path), told: &[&str]) {
    let copy = copy("qwen3_5");
    change(copy.path());
    let opened = open(&Cpu::new(), "qwen3_5");
    let error = opened.read_adapter(opened.model().expect("a model"), copy.path()).expect_err("a refusal");
    let message = error.to_string();
    told.iter().for_each(|told| assert!(message.contains(told), "{message}\nwithout {told}"));
}

#[test]
fn what_is_not_built_of_peft_is_refused_by_name() {
    for (field, value) in [
        ("peft_type", json!("LOHA")),
        ("peft_type", json!(null)),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("init_lora_weights", json!("pissa")),
        ("fan_in_fan_out", json!(true)),
        ("rank_pattern", json!({"q_proj": 4})),
        ("alpha_pattern", json!({"q_proj": 4})),
        ("layers_to_transform", json!([0])),
        ("target_parameters", json!(["x"])),
        ("exclude_modules", json!(["x"])),
        ("lora_bias", json!(true)),
        ("target_modules", json!(".*_proj")),
        ("target_modules", json!(["nothing"])),
        ("target_modules", json!(["embed_tokens"])),
        ("target_modules", json!(["conv1d"])),
        ("r", json!(0)),
        ("r", json!(1.5)),
        ("lora_alpha", json!("much")),
        ("lora_alpha", json!(0)),
        ("use_rslora", json!(1)),
        ("something_new", json!("on")),
    ] {
        let set = |folder: &Path| {
            let path = folder.join(CONFIG);
            let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
            config[field] = value.clone();
            fs::write(path, config.to_string()).expect("room");
        };
        let name = match field {
            "target_modules" => "target",
            "r" if value == 0 => "rank",
            "lora_alpha" if value == 0 => "alpha",
            field => field,
        };
        refused(set, &[name]);
    }
}

/// Changes the arrays of an adapter.
fn rewrite(folder: &Path, change: impl FnOnce(&mut Contents)) {
    let path = folder.join(FILE);
    let mut all = arrays(&path);
    change(&mut all);
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let all: Vec<_> = all.iter().map(|(name, (shape, values))| (name, shape, bytes(values))).collect();
    let views = all.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("an array"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("a file")).expect("room");
}

#[test]
fn arrays_of_another_adapter_are_told_by_name() {
    let q = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
    let remove = |folder: &Path| rewrite(folder, |all| drop(all.remove(q)));
    refused(remove, &[FILE, "lacks `base_model.model.model.", "q_proj.lora_A.weight`"]);
    let add = |folder: &Path| rewrite(folder, |all| drop(all.insert("extra".to_owned(), (vec![1], vec![0.0]))));
    refused(add, &[FILE, "holds `extra`"]);
    let turn = |folder: &Path| rewrite(folder, |all| all.get_mut(q).expect("an array").0.reverse());
    refused(turn, &[FILE, q, "shape [19, 3], expected [3, 19]"]);
    refused(|folder| fs::remove_file(folder.join(FILE)).expect("a file"), &[FILE, "cannot read"]);
    refused(|folder| fs::remove_file(folder.join(CONFIG)).expect("a file"), &[CONFIG, "cannot read"]);
    refused(|folder| fs::write(folder.join(CONFIG), "{").expect("room"), &[CONFIG, "damaged"]);
}

#[test]
fn adapters_that_make_no_sense_are_refused() {
    let opened = open(&Cpu::new(), "qwen3_5");
    let refused = |lora: Lora, told: &str| {
        let error = opened.adapt(opened.model().expect("a model"), &lora, 0).expect_err(told);
        assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(told), "{error}");
    };
    let with = |target: &str| Lora { targets: vec![target.to_owned()], ..Lora::of_rank(2) };
    refused(Lora::of_rank(0), "`rank` is 0");
    refused(Lora { alpha: f32::NAN, ..Lora::of_rank(2) }, "`alpha` is NaN");
    refused(
        with("q_projection"),
        "`q_projection`, expected last words of the name of a map in the model's files, such as",
    );
    refused(with("input_layernorm"), "expected linear maps");
    refused(with(""), "``");
    let twice = opened.adapt(opened.model().expect("a model"), &Lora::of_rank(2), 0).expect("an adapter");
    let told = opened.adapt(twice, &Lora::of_rank(2), 0).expect_err("a second one").to_string();
    assert!(told.contains("one with an adapter"), "{told}");
    let untied = open(&Cpu::new(), "llama_bf16");
    let told = untied.adapt(untied.model().expect("a model"), &with("lm_head"), 0).expect_err("the head").to_string();
    assert!(told.contains("lm_head") && told.contains("no adapter yet"), "{told}");
    let told = untied.save_adapter(&untied.model().expect("a model"), &folder("llama")).expect_err("none").to_string();
    assert!(told.contains("without an adapter"), "{told}");
}
