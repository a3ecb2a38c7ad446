//! The record of a run: one JSON object a line.

use crate::{Error, Result, checkpoint::write_whole};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// What is noted after a step; losses in nats a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Steps done.
    pub step: u64,
    /// Loss of the step's batch, before the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The same in bits a byte of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Norm of all gradients together, before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// Learning rate of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f32>,
    /// Tokens learned a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Loss on held-out text, after the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// The same in bits a byte of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_bits_per_byte: Option<f64>,
}

/// The file, to be added to.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Opens the record of a run that has done `step` steps: lines of later steps and a torn last line, left by a run
    /// that was stopped, are removed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn resume(path: &Path, step: u64) -> Result<Self> {
        let mut kept = String::new();
        for line in read_lines(path)?.iter().filter(|(record, _)| record.step <= step) {
            kept.push_str(&line.1);
            kept.push('\n');
        }
        write_whole(path, kept.as_bytes())?;
        let file = OpenOptions::new().append(true).open(path).map_err(Error::io("open", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn add(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_string(record).map_err(|error| Error::io("write", &self.path)(error.into()))?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).map_err(Error::io("write", &self.path))
    }

    /// Flushes to the disk; to be called before a checkpoint, which must not be ahead of its record.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<()> {
        self.file.sync_all().map_err(Error::io("flush", &self.path))
    }
}

/// All whole lines of a record; none if there is no such file.
///
/// # Errors
/// [`Error::Io`].
pub fn read_metrics(path: &Path) -> Result<Vec<Record>> {
    Ok(read_lines(path)?.into_iter().map(|(record, _)| record).collect())
}

fn read_lines(path: &Path) -> Result<Vec<(Record, String)>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("read", path))?,
    };
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().filter_map(|line| Some((serde_json::from_str(line).ok()?, line.to_owned()))).collect())
}
