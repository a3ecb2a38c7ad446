//! The record of a run: one JSON object a line.

use crate::{
    checkpoint::{Run, open_to_change},
    monitor::SlotMonitor,
};
use hecate_models::{
    Error, Result,
    files::{self, Links},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Most bytes of a record: millions of steps.
const RECORD: u64 = 1 << 30;
/// How a line begins.
const BEGINNING: &[u8] = b"{\"step\":";

/// What is noted after a step; losses in nats a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Steps done.
    pub step: u64,
    /// When, in seconds since 1970 began in Greenwich. Records of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
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
    /// What memories are like after the held-out text that was measured. Records of before have none of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<SlotMonitor>,
}

/// The file, to be added to. Lines that a full disk refuses wait in memory, and are tried again with the next one. So does
/// a last line that is written again.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines in the file.
    length: u64,
    /// Lines that are not in the file yet.
    waiting: Vec<u8>,
    /// What the file's last line is to be; lines that wait come after it.
    amendment: Option<Record>,
}

impl Metrics {
    /// Opens the record of a run that has done `step` steps: lines of later steps and a torn last line, left by a run
    /// that was stopped, are cut off. A line that is no record is somebody's, and stays.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn resume(path: &Path, step: u64) -> Result<Self> {
        let mut file = open_to_change(path, OpenOptions::new().read(true).append(true))?;
        let text = read(path)?;
        let lines = || text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let stays = |line: &&[u8]| serde_json::from_slice::<Record>(line).map_or(true, |record| record.step <= step);
        let whole: usize = lines().take_while(stays).map(<[u8]>::len).sum();
        let kept = lines().filter(stays).collect::<Vec<_>>().concat();
        if kept.len() == whole {
            // In place: a full disk has no room for a second record.
            file.set_len(whole as u64).map_err(Error::io("cut", path))?;
        } else {
            file = replace(path, &kept)?;
        }
        Ok(Self { path: path.to_owned(), file, length: kept.len() as u64, waiting: Vec::new(), amendment: None })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// [`Error::Io`]; the line then waits for the next call.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        self.waiting.extend(line(&self.path, record)?);
        self.write_waiting()
    }

    /// Writes the last line again, which was written before all of it was known; adds one if the last is of another step.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is then as it was, and the next call writes the line.
    pub fn amend(&mut self, record: &Record) -> Result<()> {
        let next = self.amendment.as_ref().is_some_and(|first| first.step != record.step);
        if self.waiting.is_empty() && !next {
            self.amendment = Some(record.clone());
        } else {
            replace_last(&mut self.waiting, record.step, &line(&self.path, record)?);
        }
        self.write_waiting()
    }

    /// Writes the file's last line again.
    fn write_amendment(&mut self) -> Result<()> {
        let Some(record) = &self.amendment else { return Ok(()) };
        let mut lines = read(&self.path)?;
        replace_last(&mut lines, record.step, &line(&self.path, record)?);
        // Through a rename: a run that is killed has the old line or the new one.
        self.file = replace(&self.path, &lines)?;
        (self.length, self.amendment) = (lines.len() as u64, None);
        Ok(())
    }

    /// Flushes to the disk; to be called before a checkpoint, which must not be ahead of its record.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<()> {
        self.write_waiting()?;
        self.file.sync_all().map_err(Error::io("flush", &self.path))
    }

    /// Writes all lines that wait, or none of them.
    fn write_waiting(&mut self) -> Result<()> {
        self.write_amendment()?;
        match self.file.write_all(&self.waiting) {
            Ok(()) => {
                self.length += self.waiting.len() as u64;
                self.waiting.clear();
                Ok(())
            }
            Err(error) => {
                // What got through is written again with the rest.
                let _ = self.file.set_len(self.length);
                Err(Error::io("write", &self.path)(error))
            }
        }
    }
}

/// A record as a line of the file at `path`.
fn line(path: &Path, record: &Record) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record).map_err(|error| Error::io("write", path)(error.into()))?;
    line.push(b'\n');
    Ok(line)
}

/// Puts a line in the place of the last one if that is of this step, else after it.
fn replace_last(lines: &mut Vec<u8>, step: u64, line: &[u8]) {
    let last = lines.split_inclusive(|&byte| byte == b'\n').next_back().unwrap_or_default();
    if serde_json::from_slice::<Record>(last).is_ok_and(|found| found.step == step) {
        lines.truncate(lines.len() - last.len());
    }
    lines.extend(line);
}

/// All of a record.
fn read(path: &Path) -> Result<Vec<u8>> {
    files::read(path, Links::Refuse, RECORD)
}

/// Puts another record in the place of one, to be added to.
fn replace(path: &Path, lines: &[u8]) -> Result<File> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Run::new(path.parent().unwrap_or(Path::new(""))).write(&name, lines)?;
    open_to_change(path, OpenOptions::new().append(true))
}

/// Columns of a record as a table: its fields of one number.
pub const COLUMNS: [&str; 9] = [
    "step",
    "time",
    "loss",
    "bits_per_byte",
    "gradient_norm",
    "learning_rate",
    "tokens_per_second",
    "held_out_loss",
    "held_out_bits_per_byte",
];

/// A record as comma-separated values: a line of names, then a line a step. What a step has no figure of is empty, as are
/// figures that are not finite.
pub fn table(record: &[Record]) -> String {
    let line = |record: &Record| {
        // By way of its text: a number of 32 bits has the digits that the record has, and not those of its 64 bits.
        let text = serde_json::to_string(record).unwrap_or_default();
        let fields: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        COLUMNS.map(|name| fields[name].as_number().map_or_else(String::new, ToString::to_string)).join(",")
    };
    let lines = [COLUMNS.join(",")].into_iter().chain(record.iter().map(line));
    lines.map(|line| line + "\n").collect()
}

/// Whether a content is a record as [`table`] writes it.
pub fn is_table(content: &[u8]) -> bool {
    let Some(lines) = std::str::from_utf8(content).ok().and_then(|text| text.strip_prefix(&COLUMNS.join(","))) else {
        return false;
    };
    let cells = |line: &str| line.split(',').all(|cell| cell.is_empty() || cell.parse::<f64>().is_ok());
    lines.starts_with('\n') && lines.lines().all(cells)
}

/// All whole lines of a record; none if there is no such file.
///
/// # Errors
/// [`Error::Io`].
pub fn read_metrics(path: &Path) -> Result<Vec<Record>> {
    let bytes = match read(path) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    Ok(bytes.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// Whether a content is a record as a run writes it: every line is one, but for a last line that a stop may have torn.
pub fn is_record(content: &[u8]) -> bool {
    let mut lines = content.split_inclusive(|&byte| byte == b'\n');
    lines.all(|line| match line.ends_with(b"\n") {
        true => serde_json::from_slice::<Record>(line).is_ok(),
        false => line.starts_with(&BEGINNING[..line.len().min(BEGINNING.len())]),
    })
}
