//! Files of adapters, as the library PEFT has them: `adapter_config.json` and `adapter_model.safetensors`.

use super::{
    adapter::Factors,
    arrays::{Array, Arrays},
    damaged,
    numbers::narrow,
};
use crate::{
    Error, Lora, Result,
    files::{self, JSON, Links, to_json, write_whole},
};
use hecate_core::{Shape, memory};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Map, Value, json};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

const CONFIG: &str = "adapter_config.json";
const MODEL: &str = "adapter_model.safetensors";
/// What PEFT puts in front of the names of the model's maps.
const PREFIX: &str = "base_model.model.";

/// Fields that say nothing of what an adapter computes when it has learned, or are read here.
const READ: [&str; 17] = [
    "r",
    "lora_alpha",
    "use_rslora",
    "target_modules",
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "auto_mapping",
    "inference_mode",
    "lora_dropout",
    "init_lora_weights",
    "peft_version",
    "runtime_config",
    "megatron_core",
    "qalora_group_size",
    "bias",
];

/// What the configuration of an adapter says.
///
/// # Errors
/// [`Error::Io`]; [`Error::Checkpoint`] for what is no such file, and for what is not built, by its name.
pub(super) fn read_config(folder: &Path) -> Result<Lora> {
    let path = folder.join(CONFIG);
    let content = files::read(&path, Links::Follow, JSON)?;
    let found = serde_json::from_slice(files::unmarked(&content));
    let fields: Map<String, Value> = found.map_err(|error| damaged(&path, error))?;
    lora(&fields).map_err(|error| super::in_file(&path, error))
}

/// What these fields say.
fn lora(fields: &Map<String, Value>) -> Result<Lora> {
    let field = |name: &str| fields.get(name).unwrap_or(&Value::Null);
    let wrong = |name: &str, expected: &str| Error::config(name, field(name), expected);
    if field("peft_type") != "LORA" {
        return Err(wrong("peft_type", "\"LORA\": no other adapter is built yet"));
    }
    if !matches!(field("bias"), Value::Null) && field("bias") != "none" {
        return Err(wrong("bias", "\"none\": biases that learn are not built yet"));
    }
    // Others change the model itself before they learn.
    if !matches!(field("init_lora_weights"), Value::Null | Value::Bool(_)) && field("init_lora_weights") != "gaussian" {
        return Err(wrong("init_lora_weights", "true, false or \"gaussian\": what changes the model is not built yet"));
    }
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        _ => true,
    };
    let asked = fields.iter().find(|(name, value)| !READ.contains(&name.as_str()) && asks(value));
    if let Some((name, value)) = asked {
        return Err(Error::config(name, value, "nothing: it is not built yet"));
    }
    let rank = field("r").as_u64().and_then(|rank| usize::try_from(rank).ok());
    let alpha = field("lora_alpha").as_f64().map(|alpha| alpha as f32);
    let names = |list: &Vec<Value>| list.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    let targets: Option<Vec<String>> = field("target_modules").as_array().and_then(names);
    let rank_stabilised = match field("use_rslora") {
        Value::Null => Some(false),
        other => other.as_bool(),
    };
    let lora = Lora {
        rank: rank.ok_or_else(|| wrong("r", "a whole number of at least 1"))?,
        alpha: alpha.ok_or_else(|| wrong("lora_alpha", "a number above 0"))?,
        rank_stabilised: rank_stabilised.ok_or_else(|| wrong("use_rslora", "true or false"))?,
        targets: targets.ok_or_else(|| wrong("target_modules", "a list of names: patterns are not built yet"))?,
    };
    lora.check()?;
    Ok(lora)
}

/// Arrays of an adapter's file.
pub(super) struct PeftFile {
    path: PathBuf,
    arrays: Arrays,
    /// Those that a map was found for.
    used: HashSet<usize>,
}

impl PeftFile {
    /// Reads the header alone.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a damaged file.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let arrays = Arrays::of_file(folder, MODEL)?;
        Ok(Self { path: folder.join(MODEL), arrays, used: HashSet::new() })
    }

    /// The factors of rank `rank` of a map of the model.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for arrays that are missing, or of another shape or type.
    pub(super) fn factors(&mut self, map: &Array, rank: usize) -> Result<Factors> {
        let [outputs, inputs] = map.rows();
        Ok(Factors { a: self.values(map, "A", [rank, inputs])?, b: self.values(map, "B", [outputs, rank])? })
    }

    /// One factor of a map.
    fn values(&mut self, map: &Array, factor: &str, shape: [usize; 2]) -> Result<Vec<f32>> {
        let fail = |why: String| Error::checkpoint(&self.path, why);
        // Parts that see may stand in front of the text's names, or not.
        let names = [&map.stored, &map.name].map(|map| name(map, factor));
        let Some(found) = names.iter().find_map(|name| self.arrays.find(name)) else {
            return Err(fail(format!("lacks `{}`, which `target_modules` asks for", names[0])));
        };
        let array = &self.arrays.all()[found];
        if array.shape != shape {
            let (found, expected) = (Shape::from(&array.shape[..]), Shape::from(shape));
            let why = "it is an adapter of another model, or of another rank than its configuration says";
            return Err(fail(format!("`{}` has shape {found}, expected {expected}; {why}", array.stored)));
        }
        if array.dtype.unit().is_none() {
            return Err(fail(format!("`{}` is stored as {}, expected f32, f16 or bf16", array.stored, array.dtype)));
        }
        let mut values = memory::with_capacity("weights", shape[0].saturating_mul(shape[1]))?;
        self.arrays.read_rows(array, 0..shape[0], &mut values)?;
        self.used.insert(found);
        Ok(values)
    }

    /// Refuses arrays that no map was found for.
    pub(super) fn check_used(&self) -> Result<()> {
        match self.arrays.all().iter().enumerate().find(|(number, _)| !self.used.contains(number)) {
            None => Ok(()),
            Some((_, array)) => {
                let why =
                    "which is no part of a linear map that `target_modules` names: it is an adapter of another model";
                Err(Error::checkpoint(&self.path, format!("holds `{}`, {why}", array.stored)))
            }
        }
    }
}

/// PEFT's name of a factor of the map with this weight.
fn name(weight: &str, factor: &str) -> String {
    format!("{PREFIX}{}.lora_{factor}.weight", weight.strip_suffix(".weight").unwrap_or(weight))
}

/// An array of an adapter's file: name, shape, bytes.
pub(super) type PeftArray = (String, [usize; 2], Vec<u8>);

/// The arrays of a map with these factors.
pub(super) fn arrays(map: &Array, Factors { a, b }: Factors, rank: usize) -> [PeftArray; 2] {
    let [outputs, inputs] = map.rows();
    let array = |factor, shape, values: &[f32]| (name(&map.stored, factor), shape, narrow(Dtype::F32, values));
    [array("A", [rank, inputs], &a), array("B", [outputs, rank], &b)]
}

/// Writes an adapter of the model in the folder `base`.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn write(folder: &Path, (lora, base): (&Lora, &Path), arrays: Vec<PeftArray>) -> Result<()> {
    let (config, model) = (folder.join(CONFIG), folder.join(MODEL));
    let fail = |why: safetensors::SafeTensorError| Error::checkpoint(&model, format!("cannot be made: {why}"));
    let views = arrays
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    // What PEFT itself writes there.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(fail)?;
    write_whole(&model, &bytes)?;
    let mut fields = fields(lora, base);
    fields.sort_all_objects();
    write_whole(&config, &to_json(&config, &fields)?)
}

/// The configuration of an adapter of the model in the folder `base`.
fn fields(lora: &Lora, base: &Path) -> Value {
    // Whole numbers are written as such, as PEFT does.
    let alpha = if lora.alpha.fract() == 0.0 { json!(lora.alpha as i64) } else { json!(lora.alpha) };
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.to_string_lossy(),
        "inference_mode": true,
        "r": lora.rank,
        "lora_alpha": alpha,
        "use_rslora": lora.rank_stabilised,
        "target_modules": lora.targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "modules_to_save": null,
    })
}
