//! Models that others released, as Hugging Face has them: a folder with `config.json`, weights in safetensors files and a
//! `tokenizer.json`. Or as llama.cpp has them: a GGUF file with all of that in it.
//!
//! Nothing in there is trusted. All names, shapes and types are compared with what the configuration says before an
//! array is read; what is left over or missing is an error by its name. Arrays are read by ranges of their files, a piece at a
//! time: a file that somebody cuts short meanwhile gives an error, where a mapped one would end the program.
//!
//! A model of a folder is written back as it came: the same files, names, shapes and types, and what it has no use for as it was.

mod adapter;
mod arrays;
mod blocks;
mod describe;
mod generation;
mod gguf;
mod header;
mod numbers;
mod peft;
mod plan;
mod write;

use crate::{
    Architecture, Builder, ChatTemplate, Error, LanguageModel, Parameters, Result, Vocabulary,
    architectures::Family,
    files::{self, CONFIG, JSON, Links, TOKENIZER, is_there},
    sampling::Sampling,
};
use arrays::Arrays;
use describe::Description;
use gguf::Metadata;
use hecate_core::{Backend, Shape};
use plan::Plan;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A released model in a folder or a GGUF file, looked through and not read yet.
///
/// # Example
///
/// ```no_run
/// use hecate_cpu::Cpu;
/// use hecate_models::{Opened, Result};
///
/// # fn main() -> Result<()> {
/// let opened = Opened::open(&Cpu::new(), "SmolLM2-135M".as_ref())?;
/// println!("{}, {} parameters", opened.model_type(), opened.parameters());
/// let (model, vocabulary) = (opened.model()?, opened.vocabulary()?);
/// // Changed or not, it is written as it came.
/// opened.save(&model, "copy".as_ref())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Opened<B: Backend> {
    device: B,
    path: PathBuf,
    description: Description,
    arrays: Arrays,
    plan: Plan,
    /// What a GGUF file says beside its arrays; a folder has files for that.
    metadata: Option<Metadata>,
}

impl<B: Backend> Opened<B> {
    /// Looks through a folder or a GGUF file, for a model on this device.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for files that are missing or damaged, for arrays that are missing, left over, twice
    /// there, or of another shape or type than the configuration says, and for what is not built yet: families,
    /// quantisations and options by their names.
    pub fn open(device: &B, path: &Path) -> Result<Self> {
        let (config, (description, arrays, metadata)) = if path.is_dir() {
            let config = path.join(CONFIG);
            let description = Description::read(&config, &files::read(&config, Links::Follow, JSON)?)?;
            (config, (description, Arrays::open(path)?, None))
        } else {
            let (description, arrays, metadata) = gguf::open(path)?;
            (path.to_owned(), (description, arrays, Some(metadata)))
        };
        let layers = Architecture::<B>::layers(&description.family);
        if layers > arrays.all().len() {
            let found = format!("`num_hidden_layers` is {layers}, and there are {} arrays", arrays.all().len());
            return Err(Error::checkpoint(
                config,
                format!("{found}; use the configuration that the weights came with"),
            ));
        }
        let parameters = parameters(device, &description.family).map_err(|error| in_file(&config, error))?;
        let joins = description.family.joins(&|name| arrays.find(name).is_some());
        let plan = Plan::new(parameters, &arrays, &joins).map_err(|why| Error::checkpoint(path, why))?;
        Ok(Self { device: device.clone(), path: path.to_owned(), description, arrays, plan, metadata })
    }

    /// Whether it came in a GGUF file, which is read and not written.
    pub fn is_gguf(&self) -> bool {
        self.metadata.is_some()
    }

    /// The family's name, as `config.json` has it.
    pub fn model_type(&self) -> &str {
        &self.description.model_type
    }

    /// What it is made of.
    pub fn family(&self) -> &Family {
        &self.description.family
    }

    /// Number of its blocks.
    pub fn layers(&self) -> usize {
        Architecture::<B>::layers(&self.description.family)
    }

    /// Elements of all parameters.
    pub fn parameters(&self) -> u64 {
        self.plan.arrays().map(|array| self.arrays.all()[array].elements()).sum()
    }

    /// Number of files with weights.
    pub fn files(&self) -> usize {
        self.arrays.shards().len()
    }

    /// Number of arrays of each type that parameters are stored in.
    pub fn types(&self) -> BTreeMap<String, usize> {
        let mut types = BTreeMap::new();
        for array in self.plan.arrays() {
            *types.entry(self.arrays.all()[array].dtype.to_string()).or_default() += 1;
        }
        types
    }

    /// Arrays that the model has no use for, with their bytes: parts for pictures, for guessing several tokens, tables that are
    /// computed here.
    pub fn ignored(&self) -> impl Iterator<Item = (&str, u64)> {
        let ignored = self.arrays.all().iter().filter(|array| array.is_ignored());
        ignored.map(|array| (array.stored.as_str(), array.bytes))
    }

    /// Tokens that end a text: those of `generation_config.json`, else of `config.json`; of a GGUF file those of its metadata.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a file that says something else than one token or a list of them.
    pub fn ends(&self) -> Result<Vec<u32>> {
        match &self.metadata {
            Some(metadata) => gguf::ends(&self.path, metadata),
            None => generation::ends(&self.path, &self.description.ends),
        }
    }

    /// How `generation_config.json` says that tokens are drawn; none where it says nothing of it, and of a GGUF file. What it
    /// leaves out is then as transformers has it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for values of other types, or out of their ranges.
    pub fn sampling(&self) -> Result<Option<Sampling>> {
        if self.metadata.is_some() { Ok(None) } else { generation::sampling(&self.path) }
    }

    /// How it writes conversations.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`].
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        match &self.metadata {
            Some(metadata) => gguf::chat_template(&self.path, metadata),
            None => ChatTemplate::open(&self.path),
        }
    }

    /// What its tokens mean.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] without a `tokenizer.json`, and for a GGUF file's tokenizer of a kind that is not read; as
    /// [`Vocabulary::from_file`].
    pub fn vocabulary(&self) -> Result<Vocabulary> {
        if let Some(metadata) = &self.metadata {
            return gguf::vocabulary(&self.path, metadata);
        }
        let path = self.path.join(TOKENIZER);
        if !is_there(&path) {
            let why = "missing, and without it no text becomes tokens; put the model's own tokenizer.json there";
            return Err(Error::checkpoint(path, why));
        }
        Vocabulary::from_file(&path)
    }

    /// Reads the model, an array at a time, into 32 bits.
    ///
    /// # Errors
    /// [`Error::Io`], also for a file that was cut short since it was opened; too little memory; the device's own failures.
    pub fn model(&self) -> Result<LanguageModel<B>> {
        LanguageModel::given(&self.device, &self.description.family, &mut |name, shape| {
            let values = self.plan.values(&self.arrays, name)?;
            Ok(Some(hecate_core::Tensor::from_f32(&self.device, shape.clone(), values)?))
        })
    }

    /// Writes a model of this folder's family and sizes into another one, which is empty or made, as this folder is: the same
    /// files, names, shapes and types. Values that were read and not changed are written as they were, to the bit.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Checkpoint`] for a folder with something in it, and for a model that came in a GGUF file;
    /// [`Error::Config`] for a model of other parameters or with matrices that were rounded; the device's own failures.
    pub fn save(&self, model: &LanguageModel<B>, folder: &Path) -> Result<()> {
        if self.is_gguf() {
            let why = "GGUF files are read and not written; open the model's folder with safetensors files to write it";
            return Err(Error::checkpoint(&self.path, why));
        }
        write::folder((&self.path, &self.arrays, &self.plan), model.parameters(), folder)
    }
}

/// Names and shapes of all parameters of a family's model, of which nothing is made.
fn parameters<B: Backend>(device: &B, family: &Family) -> Result<Vec<(String, Shape)>> {
    let (mut parameters, mut named) = (Parameters::new(), Vec::new());
    let mut list = |name: &str, shape: &Shape| {
        named.push((name.to_owned(), shape.clone()));
        Ok(None)
    };
    family.build(&mut Builder::given(device, &mut parameters, &mut list))?;
    Ok(named)
}

/// An error of what this file says.
fn in_file(path: &Path, error: Error) -> Error {
    Error::checkpoint(path, error.to_string())
}

/// The error of a file whose bytes are not as they were written.
fn damaged(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::checkpoint(path, format!("damaged or cut short ({why}); use a copy of it as it was published"))
}
