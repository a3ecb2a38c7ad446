//! Models that others released, in the folders that they came in.

use crate::{
    device::{Choice, with_device},
    error::Result,
    runs::{check_run, check_vocabulary},
    visible::{visible, visible_path},
};
use hecate::{
    Backend, Bytes, Job,
    models::{LanguageModel, Opened, Vocabulary},
};
use indicatif::HumanCount;
use std::{
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Refuses what is no folder.
pub(crate) fn check(folder: &Path) -> Result<()> {
    check_run(
        folder,
        "a released model is a folder with config.json and safetensors files; name another with `--model DIR`",
    )
}

/// The model in a folder, what its tokens mean, and which of them end a text.
pub(crate) fn open<B: Backend>(device: &B, folder: &Path) -> Result<(LanguageModel<B>, Vocabulary, Vec<u32>)> {
    check(folder)?;
    let opened = Opened::open(device, folder)?;
    // What is small is read first, so that nobody waits for weights in vain.
    let (vocabulary, ends) = words(&opened)?;
    let model = opened.model()?;
    check_vocabulary(model.vocabulary_size(), &vocabulary)?;
    Ok((model, vocabulary, ends))
}

/// What a model's tokens mean, and which of them end a text.
pub(crate) fn words<B: Backend>(opened: &Opened<B>) -> Result<(Vocabulary, Vec<u32>)> {
    Ok((opened.vocabulary()?, opened.ends()?))
}

/// As [`open`], with an adapter of PEFT's in another folder beside it.
pub(crate) fn open_with<B: Backend>(
    device: &B,
    folder: &Path,
    adapter: Option<&Path>,
) -> Result<(LanguageModel<B>, Vocabulary, Vec<u32>)> {
    let (model, vocabulary, ends) = open(device, folder)?;
    let model = match adapter {
        Some(adapter) => Opened::open(device, folder)?.read_adapter(model, adapter)?,
        None => model,
    };
    Ok((model, vocabulary, ends))
}

/// Prints what a folder is.
pub(crate) fn describe(folder: PathBuf) -> Result<ExitCode> {
    check(&folder)?;
    with_device(&Choice::default(), Describe { folder })
}

/// Looks through a folder. No array is read.
struct Describe {
    folder: PathBuf,
}

impl Job for Describe {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // All of it is read before a line is printed: half a description helps nobody.
        let opened = Opened::open(device, &self.folder)?;
        let ends = opened.ends()?;
        let mut out = stdout().lock();
        let mut line = |name: &str, what: String| writeln!(out, "{name:<11} {}", visible(&what));
        line("model", visible_path(&self.folder))?;
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
        Ok(ExitCode::SUCCESS)
    }
}

/// A number of things.
fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
