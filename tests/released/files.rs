//! Folders of released models: what they say of themselves, how they are written back, and what is refused.

use crate::{MODELS, copy, folder};
use hecate_core::{Tensor, primitives};
use hecate_cpu::Cpu;
use hecate_models::{Error, LanguageModel, Opened};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path};

/// A folder that is about to be opened.
fn open(folder: &Path) -> Result<Opened<Cpu>, Error> {
    Opened::open(&Cpu::new(), folder)
}

/// Content of all files of a folder, by their names.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), fs::read(&path).expect("a file"))).collect()
}

/// Changes the configuration of a folder.
fn configure(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    change(&mut config);
    fs::write(path, config.to_string()).expect("room");
}

/// Arrays by their names.
type Contents = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Changes the arrays of a file.
fn rewrite(path: &Path, change: impl FnOnce(&mut Contents)) {
    let bytes = fs::read(path).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    let own =
        |(name, view): (String, TensorView<'_>)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    let mut contents = file.tensors().into_iter().map(own).collect();
    change(&mut contents);
    let views = contents.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("an array"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("a file")).expect("room");
}

/// A model, opened, changed and refused; the message says all of `told`.
#[track_caller]
fn refused(name: &str, change: impl FnOnce(&Path), told: &[&str]) {
    let copy = copy(name);
    change(copy.path());
    let error = open(copy.path()).expect_err("a refusal");
    assert!(matches!(error, Error::Checkpoint { .. }), "{error:?}");
    let message = error.to_string();
    told.iter().for_each(|told| assert!(message.contains(told), "{message}\nwithout {told}"));
}

fn values(model: &LanguageModel<Cpu>) -> Vec<(String, Vec<f32>)> {
    let values = |p: &hecate_models::Parameter<Cpu>| (p.name.clone(), p.value.to_f32().expect("values"));
    model.parameters().iter().map(values).collect()
}

#[test]
fn what_was_read_is_written_as_it_was() {
    for name in MODELS {
        let (before, after) = (copy(name), tempfile::tempdir().expect("a folder"));
        let opened = open(before.path()).expect("a folder of a model");
        let model = opened.model().expect("a model");
        opened.save(&model, after.path()).expect("room");
        // Bytes of all files: names, shapes, types, order and what is of no use are among them.
        assert!(contents(before.path()) == contents(after.path()), "{name}");
        let again = open(after.path()).expect("a folder of a model").model().expect("a model");
        assert_eq!(values(&model), values(&again), "{name}");
    }
}

#[test]
fn what_was_learned_is_written() {
    for name in ["olmo_hybrid", "qwen3_5", "qwen3_5_text"] {
        let opened = open(&folder(name)).expect("a folder of a model");
        let mut model = opened.model().expect("a model");
        for parameter in model.parameters_mut().iter_mut() {
            // Halves are exact in 16 bits too.
            parameter.value = primitives::scale(0.5, &parameter.value).expect("halves");
        }
        let after = tempfile::tempdir().expect("a folder");
        opened.save(&model, after.path()).expect("room");
        let again = open(after.path()).expect("a folder of a model").model().expect("a model");
        assert_eq!(values(&model), values(&again), "{name}");
    }
}

#[test]
fn a_model_is_written_into_an_empty_folder_alone() {
    let opened = open(&folder("llama")).expect("a folder of a model");
    let model = opened.model().expect("a model");
    let there = copy("llama");
    let told = opened.save(&model, there.path()).expect_err("files").to_string();
    assert!(told.contains("empty folder"), "{told}");
    let other = open(&folder("llama_bf16")).expect("a folder of a model");
    let empty = tempfile::tempdir().expect("a folder");
    let told = other.save(&model, &empty.path().join("new")).expect_err("another model").to_string();
    assert!(told.contains("arrays, expected"), "{told}");
    let narrow = model.stored_in_16_bits().expect("16 bits");
    let told = opened.save(&narrow, &empty.path().join("new")).expect_err("rounded").to_string();
    assert!(told.contains("expected f32"), "{told}");
    assert!(!empty.path().join("new").exists());
}

#[test]
fn a_folder_says_what_it_is() {
    let opened = open(&folder("qwen3_5")).expect("a folder of a model");
    assert_eq!((opened.model_type(), opened.layers(), opened.files()), ("qwen3_5_text", 3, 1));
    let ignored: Vec<_> = opened.ignored().collect();
    assert_eq!(ignored, [("mtp.fc.weight", 24), ("model.visual.patch_embed.bias", 10)]);
    let model = opened.model().expect("a model");
    assert_eq!(opened.parameters(), model.parameters().elements() as u64);
    let mixed = open(&folder("qwen3_5_text")).expect("a folder of a model");
    assert_eq!(mixed.types().into_iter().collect::<Vec<_>>(), [("bf16".to_owned(), 38), ("f32".to_owned(), 4)]);
    assert_eq!(mixed.files(), 4);
}

/// Published files call layers otherwise than transformers does today, and may leave a head's width to be computed.
#[test]
fn names_of_before_are_understood() {
    let old = copy("granitemoehybrid");
    configure(old.path(), |config| {
        config["layer_types"] = json!(["mamba", "attention", "mamba"]);
        config["mamba_d_head"] = json!("auto");
        config["position_embedding_type"] = json!("nope");
    });
    let [old, new] = [old.path(), &folder("granitemoehybrid")]
        .map(|folder| open(folder).and_then(|opened| opened.model()).expect("a model"));
    let scores = |model: &LanguageModel<Cpu>| {
        let scores = model.infer(&[1, 2, 3], 1, &mut model.cache(1).expect("a cache")).expect("scores");
        scores.to_f32().expect("values")
    };
    assert_eq!(scores(&old), scores(&new));
}

/// Files that older transformers wrote have a word that is no JSON.
#[test]
fn infinity_is_read_as_python_writes_it() {
    let old = copy("mamba2");
    let path = old.path().join("config.json");
    configure(old.path(), |config| config["note"] = json!("\\\" Infinity"));
    let text = fs::read_to_string(&path).expect("a file");
    let changed = text.replace(r#"{"__float__":"Infinity"}"#, "Infinity");
    assert_ne!(text, changed);
    fs::write(&path, changed).expect("room");
    open(old.path()).expect("a folder of a model");
}

/// Sessions know their model by its configuration, which is the same from every build: some have objects that keep their order.
#[test]
fn names_have_no_order() {
    let other = copy("llama");
    configure(other.path(), |config| {
        let rope = config["rope_parameters"].as_object().expect("an object").clone();
        config["rope_parameters"] = rope.into_iter().rev().collect();
    });
    let [one, other] = [&folder("llama"), other.path()].map(|folder| open(folder).and_then(|opened| opened.model()));
    let (one, other) = (one.expect("a model"), other.expect("a model"));
    assert_eq!(String::from_utf8_lossy(one.config_json()), String::from_utf8_lossy(other.config_json()));
}

#[test]
fn ends_of_texts_are_a_token_or_several() {
    let copy = copy("qwen3_5");
    let ends = || open(copy.path()).expect("a folder of a model").ends().map_err(|error| error.to_string());
    assert_eq!(ends(), Ok(vec![2]));
    let write = |text: &str| fs::write(copy.path().join("generation_config.json"), text).expect("room");
    write(r#"{"eos_token_id": [7, 9], "temperature": 0.6}"#);
    assert_eq!(ends(), Ok(vec![7, 9]));
    write(r#"{"temperature": 0.6}"#);
    assert_eq!(ends(), Ok(vec![2]));
    for bad in [r#"{"eos_token_id": "</s>"}"#, r#"{"eos_token_id": [1, -1]}"#, "{"] {
        write(bad);
        assert!(ends().expect_err(bad).contains("generation_config.json"), "{bad}");
    }
}

#[test]
fn arrays_missing_left_over_and_twice_there_are_told_by_name() {
    let one = |folder: &Path| folder.join("model.safetensors");
    let norm = "model.layers.1.input_layernorm.weight";
    refused("llama", |folder| rewrite(&one(folder), |all| drop(all.remove(norm))), &["lacks", norm]);
    let add = |all: &mut Contents| drop(all.insert("model.extra".into(), (Dtype::F32, vec![1], vec![0; 4])));
    refused("llama", |folder| rewrite(&one(folder), add), &["holds `model.extra`", "another family"]);
    // The head of a model whose head is its table.
    let head = |all: &mut Contents| drop(all.insert("lm_head.weight".into(), all["model.embed_tokens.weight"].clone()));
    refused("llama", |folder| rewrite(&one(folder), head), &["holds `lm_head.weight`"]);
    let untie = |folder: &Path| configure(folder, |config| config["tie_word_embeddings"] = json!(false));
    refused("llama", untie, &["lacks `lm_head.weight`"]);
    let qkv = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight";
    let joined = |folder: &Path| rewrite(&one(folder), |all| drop(all.remove(qkv)));
    refused("qwen3_5", joined, &["lacks `model.layers.0.linear_attn.in_proj_qkv.weight`;"]);
    let both = |all: &mut Contents| drop(all.insert(qkv.replace("model.language_model", "model"), all[qkv].clone()));
    refused("qwen3_5", |folder| rewrite(&one(folder), both), &["holds", "which is also", "leave one of them out"]);
}

#[test]
fn names_come_once_in_a_header_and_over_all_files() {
    let twice = |folder: &Path| {
        let entry = r#""a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        let header = format!("{{{entry},{entry}}}");
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        fs::write(folder.join("model.safetensors"), file).expect("room");
    };
    refused("llama", twice, &["damaged", "`a` comes twice"]);
    let [first, second] = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"];
    let name = "model.layers.0.self_attn.k_proj.weight";
    let index = |folder: &Path, change: &dyn Fn(&mut Value)| {
        let path = folder.join("model.safetensors.index.json");
        let mut index: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
        change(&mut index["weight_map"]);
        fs::write(path, index.to_string()).expect("room");
    };
    let again = |folder: &Path| {
        rewrite(&folder.join(second), |all| drop(all.insert(name.into(), (Dtype::F32, vec![1], vec![0; 4]))))
    };
    refused("llama_bf16", again, &[second, "holds", name, "which is also"]);
    let elsewhere = |folder: &Path| index(folder, &|map| map[name] = json!(second));
    refused("llama_bf16", elsewhere, &[name]);
    let unnamed = |folder: &Path| index(folder, &|map| drop(map.as_object_mut().expect("a map").remove(name)));
    refused("llama_bf16", unnamed, &[first, "holds", name, "says nothing"]);
    let outside = |folder: &Path| index(folder, &|map| map[name] = json!("../model.safetensors"));
    refused("llama_bf16", outside, &["\"../model.safetensors\"", "no safetensors file right in the folder"]);
}

#[test]
fn shapes_and_types_are_those_that_the_configuration_says() {
    let one = |folder: &Path| folder.join("model.safetensors");
    let width = |folder: &Path| configure(folder, |config| config["intermediate_size"] = json!(24));
    refused("llama", width, &["`model.layers.0.mlp.gate_proj.weight` has shape [23, 21], expected [24, 21]"]);
    let conv = "model.language_model.layers.0.linear_attn.conv1d.weight";
    let turn = |all: &mut Contents| all.get_mut(conv).expect("a convolution").1 = vec![63, 3, 1];
    refused("qwen3_5", |folder| rewrite(&one(folder), turn), &[conv, "[63, 3, 1]", "MLX"]);
    let norm = "model.norm.weight";
    let eight = |all: &mut Contents| drop(all.insert(norm.into(), (Dtype::F8_E4M3, vec![21], vec![0; 21])));
    refused("llama", |folder| rewrite(&one(folder), eight), &[norm, "f8_e4m3", "f32, f16 or bf16"]);
    // A layer more than there is, and more than anybody has.
    let layers =
        |count: usize| move |folder: &Path| configure(folder, |config| config["num_hidden_layers"] = json!(count));
    refused("llama", layers(3), &["lacks `model.layers.2.", "and 6 more"]);
    refused("llama", layers(60_000), &["`num_hidden_layers` is 60000, and there are 20 arrays"]);
    refused("llama", layers(1 << 40), &["`num_hidden_layers` is 1099511627776"]);
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let set =
        |field: &'static str, value: Value| move |folder: &Path| configure(folder, |config| config[field] = value);
    for (name, field, value, told) in [
        ("llama", "model_type", json!("glm5_next"), "hyper-connections"),
        ("llama", "model_type", json!("kimi_k3"), "SiTU"),
        ("llama", "model_type", json!("qwen4_exp"), "n-gram"),
        ("llama", "model_type", json!("inkling_2"), "`inkling_2`"),
        ("llama", "model_type", json!("dory"), "looped"),
        ("llama", "model_type", json!("qwen3_5_moe_text"), "experts"),
        ("llama", "model_type", json!("gpt2"), "`gpt2`, expected one of llama, delta_net"),
        ("llama", "quantization_config", json!({"quant_method": "fp8"}), "`quantization_config` is \"fp8\""),
        ("llama", "attention_bias", json!(true), "`attention_bias` is true, expected false"),
        ("llama", "hidden_act", json!("gelu"), "`hidden_act` is \"gelu\""),
        ("llama", "rope_parameters", json!({"rope_type": "llama3", "rope_theta": 5e5}), "`rope_type` is \"llama3\""),
        ("delta_net", "use_beta", json!(false), "`use_beta` is false"),
        ("delta_net", "attn", json!({"layers": [1]}), "`attn` is {\"layers\":[1]}, expected null"),
        ("gated_deltanet", "num_v_heads", json!(5), "`num_v_heads` is 5, expected a multiple of `num_heads`, 3"),
        ("gated_deltanet", "attnres_block_size", json!(4), "`attnres_block_size` is 4"),
        ("gated_deltanet", "output_gate_activation", json!("relu"), "`relu`, expected `swish` or `sigmoid`"),
        ("olmo_hybrid", "layer_types", json!(["mamba", "full_attention", "full_attention"]), "`mamba`"),
        ("olmo_hybrid_grouped", "linear_num_key_heads", json!(3), "`linear_num_value_heads` is 4, expected a multiple"),
        ("olmo_hybrid", "layer_types", json!(["full_attention"]), "a list of 1, expected 3"),
        ("qwen3_5_text", "linear_num_value_heads", json!(4), "`linear_num_value_heads` is 4, expected a multiple"),
        ("qwen3_5_text", "attn_output_gate", json!(false), "`attn_output_gate` is false"),
        ("mamba2", "n_groups", json!(4), "`heads of keys` is 4, expected a divisor of the 6"),
        ("mamba2", "head_dim", json!(4), "`num_heads × head_dim` is 24, expected 30"),
        ("mamba2", "use_bias", json!(true), "`use_bias` is true"),
        ("mamba2", "time_step_limit", json!([0.001, 0.1]), "`time_step_limit` is [0.001,0.1]"),
        ("mamba2", "conv_kernel", json!(1), "`taps` is 1, expected at least 2"),
        ("granitemoehybrid", "num_local_experts", json!(4), "`num_local_experts` is 4, expected 0"),
        ("granitemoehybrid", "layer_types", json!(["mamba", "attention", "mlp"]), "`mlp`, expected"),
        ("granitemoehybrid", "logits_scaling", json!(0.0), "`logits_scaling` is 0, expected a finite number other"),
        ("granitemoehybrid", "attention_multiplier", json!(-1), "`factor of attention's scores` is -1"),
        ("granitemoehybrid", "position_embedding_type", json!("alibi"), "alibi"),
        ("granitemoehybrid", "mamba_d_head", json!(4), "`mamba_d_head` is 4, expected 5"),
        ("granitemoehybrid", "mamba_proj_bias", json!(true), "`mamba_proj_bias` is true"),
        ("falcon_h1", "mamba_n_heads", json!(7), "a multiple of the 7 heads"),
        ("falcon_h1", "ssm_multipliers", json!([1, 2]), "config.json"),
        ("falcon_h1", "lm_head_multiplier", json!(0), "`lm_head_multiplier` is 0"),
        ("falcon_h1", "ssm_out_multiplier", json!(0), "`ssm_out_multiplier` is 0"),
        ("falcon_h1", "projectors_bias", json!(true), "`projectors_bias` is true"),
        ("falcon_h1", "time_step_limit", json!([0.001, 0.1]), "`time_step_limit` is [0.001,0.1]"),
        ("qwen3_5", "quantization_config", json!({"quant_method": "awq"}), "\"awq\""),
        ("llama", "hidden_size", json!("wide"), "config.json"),
        ("llama", "hidden_size", json!(0), "`hidden_size` is 0"),
        ("llama", "num_attention_heads", json!(0), "heads"),
        ("llama", "num_key_value_heads", json!(2), "`key-value heads` is 2, expected a divisor of the 3"),
        ("llama", "head_dim", json!(7), "`channels that rotary positions turn` is 7"),
    ] {
        refused(name, set(field, value), &["config.json", told]);
    }
    let empty = |folder: &Path| fs::remove_file(folder.join("model.safetensors")).expect("a file");
    refused("llama", empty, &["no model.safetensors and no model.safetensors.index.json"]);
    let pickled = |folder: &Path| {
        fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).expect("a file");
    };
    refused("llama", pickled, &["pickled by PyTorch"]);
}

/// A file that was cut short after it was opened.
#[test]
fn what_is_gone_when_it_is_read_is_an_error() {
    let copy = copy("llama");
    let opened = open(copy.path()).expect("a folder of a model");
    let path = copy.path().join("model.safetensors");
    let length = fs::metadata(&path).expect("a file").len();
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(length - 9)).expect("a cut");
    let told = opened.model().expect_err("a file cut short").to_string();
    assert!(told.contains("cannot read") && told.contains("model.safetensors"), "{told}");
}

/// A tensor is made of what the file says, whatever the device is.
#[test]
fn values_are_read_exactly() {
    let model = open(&folder("llama_bf16")).expect("a folder of a model").model().expect("a model");
    let bytes = fs::read(folder("llama_bf16").join("model-00001-of-00003.safetensors")).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    let table = file.tensor("model.embed_tokens.weight").expect("a table");
    let (halves, _) = table.data().as_chunks::<2>();
    let wide = halves.iter().map(|x| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16)).collect();
    let expected = Tensor::from_f32(&Cpu::new(), [37, 28], wide).expect("a table").to_f32().expect("values");
    assert_eq!(values(&model)[0], ("model.embed_tokens.weight".to_owned(), expected));
}
