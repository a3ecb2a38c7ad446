//! Models that others released, in the folders or GGUF files that they came in.

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

/// Refuses what is neither a folder nor a file.
fn check(path: &Path) -> Result<()> {
    if path.is_file() {
        return Ok(());
    }
    check_run(
        path,
        "a released model is a folder with config.json and safetensors files, or a GGUF file; name another with `--model PATH`",
    )
}

/// The model in a folder or a file, what its tokens mean, and which of them end a text.
pub(crate) fn open<B: Backend>(device: &B, path: &Path) -> Result<(LanguageModel<B>, Vocabulary, Vec<u32>)> {
    check(path)?;
    let opened = Opened::open(device, path)?;
    // What is small is read first, so that nobody waits for weights in vain.
    let (vocabulary, ends) = (opened.vocabulary()?, opened.ends()?);
    let model = opened.model()?;
    check_vocabulary(model.vocabulary_size(), &vocabulary)?;
    Ok((model, vocabulary, ends))
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
        let ends = opened.ends()?;
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
        Ok(ExitCode::SUCCESS)
    }
}

/// A number of things.
fn counted(count: usize, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
