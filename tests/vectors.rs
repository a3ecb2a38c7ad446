//! Test vectors from another implementation in 64 bits: every `*.safetensors` in the folder that `HECATE_VECTORS` names.
//!
//! A file holds `in.*`, `st0.*` (arguments), `out.y`, `st1.*` (results), `dout.y`, `dst1.*` (gradients of the results),
//! `din.*`, `dst0.*` (gradients of the arguments), and in its metadata the rule and its options.

use hecate_core::{
    DType, Inputs, Kernel, Outputs, Read, Rule, Sequences, Slots, Tensor,
    primitives::{AttentionInputs, AttentionOptions, Cache, attention, attention_backward, attention_cache},
    rules::*,
};
use hecate_cpu::{Algorithm, Cpu};
use hecate_tests::{Array, BACKWARD, Case, Comparison, FORWARD, Sizes, assert_close, error, oracle::Oracle};
use safetensors::SafeTensors;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// A rule whose options a file can name.
trait Named: Oracle {
    /// The rule with the options of a file.
    fn named(options: &Value) -> Self;
}

fn read(options: &Value) -> Read {
    match options["read"].as_str() {
        None | Some("after") => Read::After,
        Some("before") => Read::Before,
        Some(other) => panic!("unknown read `{other}`"),
    }
}

fn frozen(options: &Value) -> Option<u32> {
    options["frozen"].as_u64().map(|group| group as u32)
}

impl Named for Hebbian {
    fn named(options: &Value) -> Self {
        Self { read: read(options) }
    }
}

impl Named for Delta {
    fn named(options: &Value) -> Self {
        let erase = match options["erase"].as_str() {
            None | Some("undecayed") => Erase::Undecayed,
            Some("decayed") => Erase::Decayed,
            Some(other) => panic!("unknown erase `{other}`"),
        };
        Self { erase, read: read(options), frozen: frozen(options) }
    }
}

impl Named for Titans {
    fn named(options: &Value) -> Self {
        Self { read: read(options), frozen: frozen(options) }
    }
}

impl Named for Dgd {
    fn named(options: &Value) -> Self {
        let objective = match options["objective"].as_str() {
            None | Some("l2") => Objective::L2,
            Some("dot") => Objective::Dot,
            Some(other) => panic!("unknown objective `{other}`"),
        };
        Self { objective, read: read(options), frozen: frozen(options) }
    }
}

/// The arrays of a file.
struct Arrays<'a>(SafeTensors<'a>);

impl Arrays<'_> {
    fn get(&self, group: &str, name: &str) -> Array {
        let name = format!("{group}.{name}");
        let view = self.0.tensor(&name).unwrap_or_else(|error| panic!("`{name}`: {error}"));
        assert_eq!(view.dtype(), safetensors::Dtype::F64, "`{name}`");
        let values = view.data().chunks(8).map(|x| f64::from_le_bytes(x.try_into().expect("8 bytes")));
        Array::new(view.shape(), values.collect())
    }
}

fn backends() -> [Cpu; 3] {
    [Algorithm::Auto, Algorithm::Scan, Algorithm::Chunk(16)].map(|algorithm| Cpu::new().with_algorithm(algorithm))
}

fn check_rule<R: Named>(name: &str, options: &Value, arrays: &Arrays<'_>)
where
    Cpu: Kernel<R>,
{
    let state = |group| R::State::build(|slot| arrays.get(group, &slot.to_uppercase()));
    let inputs = |tokens, before| Inputs::<R, Array> {
        q: arrays.get(tokens, "q"),
        k: arrays.get(tokens, "k"),
        v: arrays.get(tokens, "v"),
        gates: R::Gates::build(|slot| arrays.get(tokens, slot)),
        state: state(before),
    };
    let outputs = |out, behind| Outputs::<R, Array> { out: arrays.get(out, "y"), state: state(behind) };
    let arguments = inputs("in", "st0");
    let [batch, tokens, heads, key] = *arguments.q.shape.axes() else { panic!("`in.q` is not [B,T,H,K]") };
    let sizes = Sizes::new(batch, tokens, heads, key, arguments.v.shape.last());
    let case = Case { inputs: arguments, grads: outputs("dout", "dst1"), ..Case::new(R::named(options), sizes, 0) };
    let truth = hecate_tests::Results { outputs: outputs("out", "st1"), grads: inputs("din", "dst0") };
    for backend in backends() {
        let found = case.run(&backend, DType::F32).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut compared = hecate_tests::case::compare_outputs(&truth.outputs, &found.outputs);
        compared.extend(hecate_tests::case::compare_grads(&truth.grads, &found.grads));
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
    let (y, lse) = attention(options, &sequences, &inputs)?;
    let behind = attention_cache(options, &sequences, &inputs)?;
    let (dy, dcache) = (upload("dout", "y")?, cache("dst1")?);
    let grads = attention_backward(options, &sequences, &inputs, (&y, &lse), &dy, Some(&dcache))?;
    let before = grads.cache.expect("a gradient of the cache");
    let mut compared = Vec::new();
    let mut compare = |group, array, slot, found: &Tensor<Cpu>, limit| -> hecate_core::Result<()> {
        let (truth, found) = (arrays.get(group, array), Array::download(found)?);
        compared.push(Comparison { slot, error: error(&truth.values, &found.values), limit });
        Ok(())
    };
    compare("out", "y", "y", &y, FORWARD)?;
    compare("st1", "kc", "cache k", &behind.k, FORWARD)?;
    compare("st1", "vc", "cache v", &behind.v, FORWARD)?;
    compare("st1", "valid", "cache valid", &behind.valid, 0.0)?;
    compare("din", "q", "q", &grads.q, BACKWARD)?;
    compare("din", "k", "k", &grads.k, BACKWARD)?;
    compare("din", "v", "v", &grads.v, BACKWARD)?;
    compare("dst0", "kc", "cache k", &before.k, BACKWARD)?;
    compare("dst0", "vc", "cache v", &before.v, BACKWARD)?;
    assert_close(&name, &compared);
    Ok(())
}

/// Compares one file; the name of its rule where that is not covered.
fn check(path: &Path) -> Option<String> {
    let name = path.display().to_string();
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let parse = |error| -> ! { panic!("{name}: {error}") };
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|error| parse(error));
    let arrays = Arrays(SafeTensors::deserialize(&bytes).unwrap_or_else(|error| parse(error)));
    let metadata = header.metadata().as_ref().unwrap_or_else(|| panic!("{name}: no metadata"));
    let options: Value = serde_json::from_str(&metadata["options"]).unwrap_or_else(|error| panic!("{name}: {error}"));
    let rule = &metadata["rule"];
    macro_rules! rules {
        ($($rule:ident),*) => { $(if rule == <$rule as Rule>::NAME {
            check_rule::<$rule>(&name, &options, &arrays);
            return None;
        })* };
    }
    hecate_core::for_each_rule!(rules);
    if rule == "swa" {
        check_attention(&name, &options, &arrays).unwrap_or_else(|error| panic!("{name}: {error}"));
        return None;
    }
    Some(rule.clone())
}

#[test]
fn results_and_gradients_are_those_of_the_vectors() {
    let Some(folder) = std::env::var_os("HECATE_VECTORS") else {
        let required = std::env::var("HECATE_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|x| x == "vectors"), "HECATE_REQUIRE asks for vectors: set HECATE_VECTORS");
        // The line must be seen even where the output of passing tests is not, so it goes around the test harness.
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: set HECATE_VECTORS to the folder of the test vectors");
        return;
    };
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("HECATE_VECTORS={}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    paths.sort();
    let mut uncovered: BTreeMap<String, usize> = BTreeMap::new();
    for rule in paths.iter().filter_map(|path| check(path)) {
        *uncovered.entry(rule).or_default() += 1;
    }
    let compared = paths.len() - uncovered.values().sum::<usize>();
    println!("{compared} files compared; of rules not yet covered: {uncovered:?}");
    assert!(compared > 0, "HECATE_VECTORS={}: no file of a rule that is covered", folder.display());
}
