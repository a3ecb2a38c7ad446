//! Models that others released, in the folders or GGUF files that they came in.

use crate::{
    device::{Choice, with_device},
    error::Result,
    generate::said,
    runs::{check_run, check_vocabulary},
    visible::{visible, visible_path},
};
use hecate::{
    Backend, Bytes, Job,
    models::{ChatTemplate, LanguageModel, Opened, Vocabulary, sampling::Sampling},
};
use indicatif::HumanCount;
use std::{
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Refuses what is neither a folder nor a file.
pub(crate) fn check(path: &Path) -> Result<()> {
    // Whether it is a GGUF file, its first bytes tell when it is opened.
    if path.is_file() {
        return Ok(());
    }
    check_run(
        path,
        "a released model is a folder with config.json and safetensors files, or a GGUF file; name another with `--model PATH`",
    )
}

/// A model to continue texts with.
pub(crate) struct Released<B: Backend> {
    pub(crate) model: LanguageModel<B>,
    /// What its tokens mean.
    pub(crate) vocabulary: Vocabulary,
    /// Tokens that end a text.
    pub(crate) ends: Vec<u32>,
    /// How tokens are drawn, unless flags say otherwise.
    pub(crate) sampling: Sampling,
}

/// The model in a folder or a file.
pub(crate) fn open<B: Backend>(device: &B, path: &Path) -> Result<Released<B>> {
    Ok(open_with(device, path, |_| Ok(()))?.0)
}

/// The model in a folder or a file, and what `first` reads there.
pub(crate) fn open_with<B: Backend, T>(
    device: &B,
    path: &Path,
    first: impl FnOnce(&Opened<B>) -> Result<T>,
) -> Result<(Released<B>, T)> {
    check(path)?;
    let opened = Opened::open(device, path)?;
    // What is small is read first, so that nobody waits for weights in vain.
    let first = first(&opened)?;
    let ((vocabulary, ends), sampling) = (words(&opened)?, opened.sampling()?.unwrap_or_default());
    let model = opened.model()?;
    check_vocabulary(model.vocabulary_size(), &vocabulary)?;
    Ok((Released { model, vocabulary, ends, sampling }, first))
}

/// What a model's tokens mean, and which of them end a text.
pub(crate) fn words<B: Backend>(opened: &Opened<B>) -> Result<(Vocabulary, Vec<u32>)> {
    Ok((opened.vocabulary()?, opened.ends()?))
}

/// As [`open`], with an adapter of PEFT's in another folder beside it; and how it writes conversations, or why that is not known.
pub(crate) fn open_adapted<B: Backend>(
    device: &B,
    path: &Path,
    adapter: Option<&Path>,
) -> Result<(Released<B>, Result<ChatTemplate, String>)> {
    let of_file = |opened: &Opened<B>| Ok(opened.chat_template().map_err(|error| error.to_string()));
    let (released, template) = open_with(device, path, of_file)?;
    // The folder is looked through once more: names of its arrays say what the adapter is of.
    let model = match adapter {
        Some(adapter) => Opened::open(device, path)?.read_adapter(released.model, adapter)?,
        None => released.model,
    };
    Ok((Released { model, ..released }, template))
}

/// Prints what a folder or a file is.
pub(crate) fn describe(path: PathBuf) -> Result<ExitCode> {
    check(&path)?;
    with_device(&Choice::default(), Describe { path })
}

/// Looks through a folder or a file. No array is read.
struct Describe {
    path: PathBuf,
}

impl Job for Describe {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // All of it is read before a line is printed: half a description helps nobody.
        let opened = Opened::open(device, &self.path)?;
        // Small files, which are looked at before the arrays are counted.
        let (ends, sampling) = (opened.ends()?, opened.sampling()?);
        let mut out = stdout().lock();
        let mut line = |name: &str, what: String| writeln!(out, "{name:<11} {}", visible(&what));
        line("model", visible_path(&self.path))?;
        line("family", format!("{} in {}", opened.model_type(), counted(opened.layers(), "layer")))?;
        line("parameters", HumanCount(opened.parameters()).to_string())?;
        let types: Vec<_> = opened.types().into_iter().map(|(name, count)| format!("{count} in {name}")).collect();
        line("arrays", format!("{}, of {}", types.join(", "), counted(opened.files(), "file")))?;
        let ignored: Vec<_> = opened.ignored().collect();
        let bytes = Bytes(ignored.iter().map(|(_, bytes)| u128::from(*bytes)).sum());
        if let Some((first, _)) = ignored.first() {
            line("of no use", format!("{} of {bytes}, such as {first}", counted(ignored.len(), "array")))?;
        }
        let ends: Vec<_> = ends.iter().map(ToString::to_string).collect();
        line("end tokens", if ends.is_empty() { "none".to_owned() } else { ends.join(", ") })?;
        line("sampling", sampling.map_or_else(|| format!("not told, so {}", said(Sampling::default())), said))?;
        line("chat", opened.chat_template().map_or_else(|why| why.to_string(), |_| "by its own template".to_owned()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A number of things.
fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
