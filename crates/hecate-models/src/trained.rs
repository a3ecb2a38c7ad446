//! Trained models out of their folders, which may be those of runs.

use crate::{
    Architecture, Config, Error, LanguageModel, Result, Vocabulary,
    files::{BEST, CONFIG, MODEL, TOKENIZER, checksum, is_there, read_file},
    weights::{Beside, MARK, verify},
};
use hecate_core::Backend;
use std::path::{Path, PathBuf};

/// Which weights of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhichWeights {
    /// Those of the newest checkpoint.
    #[default]
    Last,
    /// Those with the lowest loss on held-out text.
    Best,
}

/// A trained model, and what its tokens mean.
#[derive(Debug)]
pub struct Trained<B: Backend> {
    /// The model.
    pub model: LanguageModel<B>,
    /// What its tokens mean.
    pub vocabulary: Vocabulary,
    /// Content of `tokenizer.json`, if the model does not read bytes.
    pub tokenizer: Option<Vec<u8>>,
}

impl<B: Backend> Trained<B> {
    /// A run's model and its vocabulary: that of the folder's `tokenizer.json`, bytes without one.
    ///
    /// # Errors
    /// As [`load_model`] and [`load_best_model`]. [`Error::Checkpoint`] for another tokenizer than the one that the weights
    /// were written beside; [`Error::Tokenizer`].
    pub fn load(device: &B, folder: &Path, which: WhichWeights) -> Result<Self> {
        Self::load_as::<Config>(device, folder, which)
    }

    /// As [`Trained::load`], of a run whose model is of one's own.
    ///
    /// # Errors
    /// As [`Trained::load`], and as [`Architecture::build`].
    pub fn load_as<A: Architecture<B>>(device: &B, folder: &Path, which: WhichWeights) -> Result<Self> {
        Self::load_of(device, folder, which, &blank::<B, A>)
    }

    /// [`Trained::load_as`], once for all models.
    fn load_of(device: &B, folder: &Path, which: WhichWeights, blank: Blank<B>) -> Result<Self> {
        let name = which.name(folder)?;
        let (model, beside) = load(device, folder, name, blank)?;
        let path = folder.join(TOKENIZER);
        let tokenizer = is_there(&path).then(|| read_file(&path)).transpose()?;
        if let Some(beside) = beside {
            check(&path, tokenizer.as_deref(), name, &beside)?;
        }
        let vocabulary = match &tokenizer {
            Some(content) => Vocabulary::from_json(&path, content)?,
            None => Vocabulary::Bytes,
        };
        Ok(Self { model, vocabulary, tokenizer })
    }
}

impl WhichWeights {
    /// The file in a run's folder.
    fn name(self, folder: &Path) -> Result<&'static str> {
        let path = folder.join(BEST);
        match self {
            Self::Last => Ok(MODEL),
            Self::Best if is_there(&folder.join(MODEL)) && !is_there(&path) => {
                let why = "missing, because this run was not measured on held-out text yet; use its last weights, or \
                           train on";
                Err(Error::checkpoint(path, why))
            }
            Self::Best => Ok(BEST),
        }
    }
}

/// The last weights of a run: the model in a folder with `config.json` and `model.safetensors`. Weights that Hecate wrote
/// know which configuration they were written beside; another one is refused.
///
/// # Errors
/// [`Error::Checkpoint`] if a file is missing or damaged or does not fit the other; the device's own failures.
pub fn load_model<B: Backend>(device: &B, folder: &Path) -> Result<LanguageModel<B>> {
    Ok(load(device, folder, MODEL, &blank::<B, Config>)?.0)
}

/// The weights of a run with the lowest loss on held-out text: as [`load_model`], from `best.safetensors`.
///
/// # Errors
/// As [`load_model`]; [`Error::Checkpoint`] for a run that was not measured yet.
pub fn load_best_model<B: Backend>(device: &B, folder: &Path) -> Result<LanguageModel<B>> {
    Ok(load(device, folder, WhichWeights::Best.name(folder)?, &blank::<B, Config>)?.0)
}

/// A configuration file.
///
/// # Errors
/// [`Error::Checkpoint`] if it is missing or cannot be understood.
pub fn load_config(path: &Path) -> Result<Config> {
    if !is_there(path) {
        return Err(Error::checkpoint(path, "no such file; name a config.json, such as that of a run"));
    }
    Config::parse(path, &read_file(path)?)
}

/// Makes a model of zeros of what a `config.json` with this path and content says.
pub type Blank<'a, B> = &'a dyn Fn(&B, &Path, &[u8]) -> Result<LanguageModel<B>>;

/// [`Blank`] of models of this architecture.
///
/// # Errors
/// As [`Architecture::read`] and [`LanguageModel::new`].
pub fn blank<B: Backend, A: Architecture<B>>(device: &B, path: &Path, config: &[u8]) -> Result<LanguageModel<B>> {
    LanguageModel::blank(device, &A::read(path, config)?)
}

/// A model of a configuration with the weights of a safetensors file, both with their paths.
///
/// # Errors
/// [`Error::Checkpoint`] for a file that is damaged or of another model; the device's own failures.
pub fn restore<B: Backend>(
    device: &B,
    blank: Blank<B>,
    (config_path, config): (PathBuf, &[u8]),
    (path, weights): (PathBuf, &[u8]),
) -> Result<LanguageModel<B>> {
    let mut model = blank(device, &config_path, config)?;
    model.parameters_mut().restore(device, &path, weights)?;
    Ok(model)
}

/// A model, and what its weights say they were written beside.
fn load<B: Backend>(
    device: &B,
    folder: &Path,
    weights: &str,
    blank: Blank<B>,
) -> Result<(LanguageModel<B>, Option<Beside>)> {
    let (path, config) = (folder.join(weights), folder.join(CONFIG));
    let (found, bytes) = (read_file(&config)?, read_file(&path)?);
    let beside = verify(&path, &bytes)?;
    if let Some(beside) = &beside {
        check(&config, Some(&found), weights, beside)?;
    }
    Ok((restore(device, blank, (config, &found), (path, &bytes))?, beside))
}

/// Refuses a file that is not the one which the weights were written beside; one that is missing or too much as well.
fn check(path: &Path, content: Option<&[u8]>, weights: &str, beside: &Beside) -> Result<()> {
    let written = path.file_name().and_then(|name| beside.get(name.to_str()?));
    let why = match (content, written) {
        (Some(content), Some(sum)) if checksum(content) == *sum => return Ok(()),
        (None, None) => return Ok(()),
        (Some(_), Some(_)) => "has changed since",
        (None, Some(_)) => "missing, though",
        (Some(_), None) => "is none that",
    };
    let why = format!(
        "{why} {weights} was written beside it; use a copy of both files as they were, or, where that is on purpose, save the \
         weights again without their metadata `{MARK}`"
    );
    Err(Error::checkpoint(path, why))
}
