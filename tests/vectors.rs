//! Test vectors from another implementation in 64 bits: every `*.safetensors` in the folder that `HECATE_VECTORS` names.
//!
//! A file holds `in.*`, `st0.*` (arguments), `out.y`, `st1.*` (results), `dout.y`, `dst1.*` (gradients of the results),
//! `din.*`, `dst0.*` (gradients of the arguments), and in its metadata the rule and its options.

use hecate_conformance::{
    Array, BACKWARD, Case, Comparison, FORWARD, Sizes, assert_close, error, oracle::Oracle, require,
};
use hecate_core::{
    DType, Inputs, Kernel, Outputs, Rule, Sequences, Shape, Slots, Tensor,
    primitives::{Attended, AttentionInputs, AttentionOptions, Cache, attention, attention_cache},
    rules::*,
};
use hecate_cpu::{Algorithm, Cpu};
use hecate_models::RuleConfig;
use safetensors::SafeTensors;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// Rules that have files and are not compared, and why.
const NOT_COMPARED: [(&str, &str); 1] =
    [("linear_engine", "a backend's recurrence has no public entry; it is compared through the rules lowered to it")];

/// What is compared wherever it has files: every rule, and attention.
fn compared() -> Vec<&'static str> {
    macro_rules! names {
        ($($rule:ident),*) => { vec![$(<$rule as Rule>::NAME,)* ATTENTION] };
    }
    hecate_core::for_each_rule!(names)
}

/// What the other implementation has, so that a folder without a file of it is not whole.
const EXPECTED: [&str; 12] = [
    "hebbian",
    "delta",
    "titans",
    "dgd",
    "titans_mlp",
    "moneta",
    "yaad",
    "memora",
    "lattice",
    "trellis",
    "atlas",
    ATTENTION,
];
const ATTENTION: &str = "swa";

/// What is wrong with so many files of these rules: some without any, some of which nothing is known.
fn faults(files: &BTreeMap<String, usize>) -> Vec<String> {
    let without = EXPECTED.into_iter().filter(|rule| !files.contains_key(*rule));
    let is_known = |rule: &str| compared().contains(&rule) || NOT_COMPARED.iter().any(|(name, _)| *name == rule);
    let unknown = files.keys().filter(|rule| !is_known(rule));
    let stale = NOT_COMPARED.iter().filter(|(name, _)| compared().contains(name));
    without
        .map(|rule| format!("no file of `{rule}`"))
        .chain(unknown.map(|rule| format!("`{rule}` is neither compared nor in NOT_COMPARED")))
        .chain(stale.map(|(rule, _)| format!("`{rule}` is compared, so not in NOT_COMPARED")))
        .collect()
}

/// Part of a file's name, how much further off than others its results may be, and why.
const ILL_CONDITIONED: [(&str, f64, &str); 2] = [
    ("moneta__lq-literal", 10.0, "weights grow as their dual variable decays, and rounding with them"),
    ("titans_mlp__act-gelu_ln-True", 30.0, "the layer norm's gradient grows as the weights under it decay"),
];

/// The arrays of a file.
struct Arrays<'a>(SafeTensors<'a>);

impl Arrays<'_> {
    /// A slot of a state. Dual variables and logarithms are `A0` and `L0` there, weights of any kind `w0` here; other
    /// matrices have capital letters, buffers small ones, and those without rows are left out.
    fn state<R: Rule>(&self, group: &str, slot: &str, shape: Shape) -> Array {
        let name = match (R::NAME, slot) {
            ("moneta", _) => slot.replace('w', "A"),
            ("memora", _) => slot.replace('w', "L"),
            (_, "kbuf" | "vbuf") => slot.to_owned(),
            _ => slot.to_uppercase(),
        };
        if shape.count() == 0 { Array::new(shape, Vec::new()) } else { self.get(group, &name) }
    }

    fn get(&self, group: &str, name: &str) -> Array {
        let name = format!("{group}.{name}");
        let view = self.0.tensor(&name).unwrap_or_else(|error| panic!("`{name}`: {error}"));
        assert_eq!(view.dtype(), safetensors::Dtype::F64, "`{name}`");
        let values = view.data().chunks(8).map(|x| f64::from_le_bytes(x.try_into().expect("8 bytes")));
        Array::new(view.shape(), values.collect())
    }
}

fn backends() -> [Cpu; 3] {
    [Algorithm::Auto, Algorithm::Scan, Algorithm::Chunk(16)]
        .map(|algorithm| Cpu::new().with_algorithm(algorithm).expect("chunks of at least a token"))
}

fn check_rule<R: Oracle>(name: &str, rule: R, arrays: &Arrays<'_>)
where
    Cpu: Kernel<R>,
{
    let (q, v) = (arrays.get("in", "q"), arrays.get("in", "v"));
    let [batch, tokens, heads, key] = *q.shape.axes() else { panic!("{name}: `in.q` is not [B,T,H,K]") };
    let case = Case::new(rule, Sizes::new(batch, tokens, heads, key, v.shape.last()), 0);
    let state = |group| R::State::map(rule.state(&case.dims), |slot, shape| arrays.state::<R>(group, slot, shape));
    let inputs = |tokens, before| Inputs::<R, Array> {
        q: arrays.get(tokens, "q"),
        k: arrays.get(tokens, "k"),
        v: arrays.get(tokens, "v"),
        gates: R::Gates::build(|slot| arrays.get(tokens, slot)),
        state: state(before),
        anchor: None,
    };
    let outputs = |out, after| Outputs::<R, Array> { out: arrays.get(out, "y"), state: state(after) };
    let case = Case { inputs: inputs("in", "st0"), grads: outputs("dout", "dst1"), ..case.clone() };
    let truth = hecate_conformance::Results { outputs: outputs("out", "st1"), grads: inputs("din", "dst0") };
    for backend in backends() {
        let found = case.run(&backend, DType::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut compared = hecate_conformance::case::compare_outputs(rule, &truth.outputs, &found.outputs);
        compared.extend(hecate_conformance::case::compare_grads(rule, &truth.grads, &found.grads));
        for (_, factor, why) in ILL_CONDITIONED.iter().filter(|(part, ..)| name.contains(part)) {
            compared.iter_mut().for_each(|one| one.limit *= factor);
            require::say(&format!("{name}: limits times {factor}: {why}"));
        }
        assert_close(&format!("{name} on {backend:?}"), &compared);
    }
}

fn check_attention(name: &str, options: &Value, arrays: &Arrays<'_>) -> hecate_core::Result<()> {
    let device = Cpu::new();
    let upload = |group, name| arrays.get(group, name).upload(&device, DType::F32);
    let cache = |group| {
        Ok::<_, hecate_core::Error>(Cache {
            k: upload(group, "kc")?,
            v: upload(group, "vc")?,
            valid: upload(group, "valid")?,
        })
    };
    let (q, k, v) = (upload("in", "q")?, upload("in", "k")?, upload("in", "v")?);
    let sequences = Sequences::batch(q.shape().axes()[0], q.shape().axes()[1]);
    let window = options["window"].as_u64().expect("a window") as usize;
    let options = AttentionOptions { window, scale: 1.0 / (q.shape().last() as f32).sqrt() };
    let inputs = AttentionInputs { q, k, v, cache: Some(cache("st0")?), prefix: None };
    let after = attention_cache(options, &sequences, &inputs)?;
    let Attended { y, pass } = attention(options, &sequences, inputs)?;
    let (dy, dcache) = (upload("dout", "y")?, cache("dst1")?);
    let grads = pass.backward(&dy, Some(&dcache))?;
    let before = grads.cache.expect("a gradient of the cache");
    let mut compared = Vec::new();
    let mut compare = |group, array, slot, found: &Tensor<Cpu>, limit| -> hecate_core::Result<()> {
        let (truth, found) = (arrays.get(group, array), Array::download(found)?);
        compared.push(Comparison { slot, error: error(&truth.values, &found.values), limit });
        Ok(())
    };
    compare("out", "y", "y", &y, FORWARD)?;
    compare("st1", "kc", "cache k", &after.k, FORWARD)?;
    compare("st1", "vc", "cache v", &after.v, FORWARD)?;
    compare("st1", "valid", "cache valid", &after.valid, 0.0)?;
    compare("din", "q", "q", &grads.q, BACKWARD)?;
    compare("din", "k", "k", &grads.k, BACKWARD)?;
    compare("din", "v", "v", &grads.v, BACKWARD)?;
    compare("dst0", "kc", "cache k", &before.k, BACKWARD)?;
    compare("dst0", "vc", "cache v", &before.v, BACKWARD)?;
    assert_close(&name, &compared);
    Ok(())
}

/// A file's bytes, and what its metadata says.
struct File {
    name: String,
    bytes: Vec<u8>,
    rule: String,
    /// In the words of a model's configuration.
    options: Value,
}

impl File {
    fn open(path: &Path) -> Self {
        let name = path.display().to_string();
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let metadata = header.metadata().clone().unwrap_or_default();
        let entry = |key| metadata.get(key).unwrap_or_else(|| panic!("{name}: no `{key}` in the metadata"));
        let mut rule = entry("rule").clone();
        let mut options: Value =
            serde_json::from_str(entry("options")).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some(window) = rule.strip_prefix("atlas_c") {
            options["window"] = window.parse::<u32>().unwrap_or_else(|error| panic!("{name}: {rule}: {error}")).into();
            options["newton_schulz"] =
                options.as_object_mut().and_then(|all| all.remove("ns_steps")).unwrap_or(0.into());
            rule = Atlas::NAME.to_owned();
        }
        Self { name, bytes, rule, options }
    }

    /// Compares it with what backends find.
    fn check(&self) {
        let Self { name, bytes, rule, options } = self;
        let arrays = Arrays(SafeTensors::deserialize(bytes).unwrap_or_else(|error| panic!("{name}: {error}")));
        if rule == ATTENTION {
            return check_attention(name, options, &arrays).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let mut options = options.clone();
        options["name"] = rule.clone().into();
        translate(rule, &mut options);
        if rule == Trellis::NAME {
            options["slots"] = arrays.get("in", "code").shape.last().into();
        }
        let config = serde_json::from_value(options).unwrap_or_else(|error| panic!("{name}: {error}"));
        macro_rules! rules {
            ($($rule:ident),*) => {
                match config { $(RuleConfig::$rule(rule) => check_rule(name, rule, &arrays)),* }
            };
        }
        hecate_core::for_each_rule!(rules);
    }
}

/// Options of memories with weights, from the files' words into a configuration's.
fn translate(rule: &str, options: &mut Value) {
    if !["titans_mlp", "moneta", "yaad", "memora"].contains(&rule) {
        return;
    }
    let options = options.as_object_mut().expect("options by name");
    let mut memory = serde_json::json!({ "expansion": 2 });
    for (word, ours) in [("act", "activation"), ("residual", "residual"), ("ln", "norm")] {
        if let Some(value) = options.remove(word) {
            memory[ours] = value;
        }
    }
    options.insert("memory".into(), memory);
    for (word, ours) in [("eps", "epsilon"), ("lq", "map"), ("c", "scale")] {
        if let Some(value) = options.remove(word) {
            options.insert(ours.into(), value);
        }
    }
    if let Some(Value::String(bias)) = options.get_mut("bias") {
        let kind = bias.strip_prefix("huber").expect("a kind of Huber's error").trim_start_matches('_');
        *bias = if kind.is_empty() { "coordinate".into() } else { kind.to_owned() };
    }
}

#[test]
fn results_and_gradients_are_those_of_the_vectors() {
    let Some(folder) = std::env::var_os("HECATE_VECTORS") else {
        return require::skip("vectors", "set HECATE_VECTORS to the folder of the test vectors");
    };
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("HECATE_VECTORS={}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    paths.sort();
    let files: Vec<File> = paths.iter().map(|path| File::open(path)).collect();
    let mut counts = BTreeMap::new();
    files.iter().for_each(|file| *counts.entry(file.rule.clone()).or_default() += 1);
    let faults = faults(&counts);
    assert!(faults.is_empty(), "HECATE_VECTORS={}: {}", folder.display(), faults.join("; "));
    files.iter().filter(|file| compared().contains(&file.rule.as_str())).for_each(File::check);
    for (rule, why) in NOT_COMPARED.iter().filter(|(rule, _)| counts.contains_key(*rule)) {
        require::say(&format!("skipped: {} vectors of {rule}: {why}", counts[*rule]));
    }
}

#[test]
fn files_that_vanish_or_are_misspelt_are_seen() {
    let all = || -> BTreeMap<String, usize> { compared().into_iter().map(|rule| (rule.to_owned(), 1)).collect() };
    assert_eq!(faults(&all()), [""; 0]);
    let mut misspelt = all();
    misspelt.remove("delta");
    misspelt.insert("delat".to_owned(), 2);
    assert_eq!(faults(&misspelt), ["no file of `delta`", "`delat` is neither compared nor in NOT_COMPARED"]);
}
