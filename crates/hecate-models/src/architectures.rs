//! Families of models that others released, a file each: what their `config.json` says, which tensors of their files are which
//! parameters, and what a block is made of. The layers are those of all models.

mod decoder;
mod delta_net;
mod falcon_h1;
mod gated_deltanet;
mod granite_hybrid;
mod lfm2;
mod llama;
mod mamba2;
mod olmo_hybrid;
mod qwen3_5;
mod rope;

pub use delta_net::DeltaNet;
pub use falcon_h1::FalconH1;
pub use gated_deltanet::GatedDeltaNet;
pub use granite_hybrid::GraniteHybrid;
pub use lfm2::Lfm2;
pub use llama::Llama;
pub use mamba2::Mamba2Model;
pub use olmo_hybrid::OlmoHybrid;
pub use qwen3_5::Qwen35;

use crate::{Architecture, Builder, Error, Model, Result};
use hecate_core::Backend;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// What every family says of itself.
pub(crate) trait Released: Serialize + DeserializeOwned {
    /// Fields that would change what a model computes, with the values, in JSON, that are understood. Null is one of them.
    const FIXED: &'static [(&'static str, &'static [&'static str])];

    /// Refuses sizes that no model has, and what is not built yet.
    fn check(&self) -> Result<()>;

    /// Number of blocks.
    fn layers(&self) -> usize;

    /// Tensors that are not one parameter of the same name. `has` tells which tensors there are: some files have several forms.
    fn joins(&self, _has: &dyn Fn(&str) -> bool) -> Vec<Join> {
        Vec::new()
    }

    /// The model.
    fn build<B: Backend>(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>>;
}

/// Tensors of a file whose rows, one tensor after another, are the rows of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// Names in the file.
    pub(crate) tensors: Vec<String>,
    /// Names in the model.
    pub(crate) parameters: Vec<String>,
    /// Turns in which the parameters' rows come, an equal share of each parameter a turn: 1, or heads whose rows of all
    /// parameters stand together.
    pub(crate) turns: usize,
}

impl Join {
    /// Parameters whose rows stand one after another.
    fn new(tensors: &[String], parameters: &[String]) -> Self {
        Self { tensors: tensors.to_vec(), parameters: parameters.to_vec(), turns: 1 }
    }
}

/// Families of released models, with their names in `config.json` (`model_type`).
macro_rules! families {
    ($($family:ident $($name:literal)|+),* $(,)?) => {
        /// What a released model is made of, as its `config.json` says.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Family {
            $(
                #[doc = concat!($("`", $name, "` "),+)]
                $family($family),
            )*
        }

        impl Family {
            /// Names of all families that can be opened.
            pub const NAMES: &'static [&'static str] = &[$($($name),+),*];

            /// The family of this name with these fields; none where there is no such family.
            pub(crate) fn read(model_type: &str, fields: Map<String, Value>) -> Option<Result<Self>> {
                match model_type {
                    $($($name)|+ => Some(read(fields).map(Self::$family)),)*
                    _ => None,
                }
            }

            /// [`Released::joins`].
            pub(crate) fn joins(&self, has: &dyn Fn(&str) -> bool) -> Vec<Join> {
                match self {
                    $(Self::$family(family) => family.joins(has),)*
                }
            }
        }

        impl<B: Backend> Architecture<B> for Family {
            fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
                match self {
                    $(Self::$family(family) => Released::build(family, build),)*
                }
            }

            fn check(&self) -> Result<()> {
                match self {
                    $(Self::$family(family) => Released::check(family),)*
                }
            }

            fn layers(&self) -> usize {
                match self {
                    $(Self::$family(family) => Released::layers(family),)*
                }
            }
        }
    };
}

families! {
    Llama "llama",
    DeltaNet "delta_net",
    GatedDeltaNet "gated_deltanet",
    OlmoHybrid "olmo_hybrid",
    Lfm2 "lfm2",
    Mamba2Model "mamba2",
    GraniteHybrid "granitemoehybrid",
    FalconH1 "falcon_h1",
    Qwen35 "qwen3_5" | "qwen3_5_text",
}

/// A family's configuration of these fields.
fn read<R: Released>(fields: Map<String, Value>) -> Result<R> {
    for (name, known) in R::FIXED {
        let found = fields.get(*name).filter(|found| !found.is_null()).map(Value::to_string);
        if let Some(found) = found.filter(|found| !known.contains(&found.as_str())) {
            let expected = if known.is_empty() { "null".to_owned() } else { known.join(" or ") };
            return Err(Error::config(*name, found, format!("{expected}: nothing else is built yet")));
        }
    }
    // Some builds have objects that keep their order. The same model has the same configuration in all of them.
    let mut fields = Value::Object(fields);
    fields.sort_all_objects();
    let family: R = serde_json::from_value(fields)
        .map_err(|error| Error::config("configuration", error, "the fields of this family"))?;
    family.check()?;
    Ok(family)
}
