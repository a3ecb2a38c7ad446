//! Texts that are documents in JSON, one a line.

use super::{Text, open};
use crate::{Result, files::unmarked, tokens::fail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Endings of files that a folder is searched for.
const ENDINGS: [&str; 2] = ["jsonl", "ndjson"];

/// How documents are taken out of lines of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLines {
    /// The field of each line: a text, or a list of messages, objects with `role` and `content`.
    pub field: String,
    /// What stands between two documents.
    pub border: String,
}

impl JsonLines {
    /// What stands between two documents unless told otherwise: an empty line.
    pub const BORDER: &'static str = "\n\n";

    /// The text of these files, with a border between two documents, also of two files. Of a folder the files below it are read
    /// whose names end in `.jsonl` or `.ndjson`, in the order of their paths. All documents are held in memory.
    ///
    /// # Errors
    /// As [`Text::open`]; [`Error::Text`](crate::Error::Text) for a line that is no object or has no such field, for a folder
    /// without such a file, and for over `in_memory` bytes.
    pub fn open(&self, paths: &[PathBuf], in_memory: usize) -> Result<Text> {
        let files = open::named_or_ending(paths, &ENDINGS)?;
        let mut all = String::new();
        for file in &files {
            let lines = Text::open(std::slice::from_ref(file), usize::MAX)?;
            self.add(file, &lines.content()?, &mut all)?;
            if all.len() > in_memory {
                let why =
                    format!("documents of over {in_memory} bytes; they are held in memory: allow more, or give fewer");
                return Err(fail(file, why));
            }
        }
        if all.is_empty() {
            let why = "no document in it; of folders, files that end in .jsonl or .ndjson are read";
            return Err(fail(&open::name(paths), why));
        }
        Ok(Text { files: files.len(), ..Text::new(open::name(paths), all) })
    }

    /// The text of these lines; `name` is for messages.
    ///
    /// # Errors
    /// As [`JsonLines::open`].
    pub fn text(&self, name: &Path, lines: &str) -> Result<Text> {
        let mut all = String::new();
        self.add(name, lines.as_bytes(), &mut all)?;
        if all.is_empty() {
            return Err(fail(name, "no document in it; give a line of JSON for each"));
        }
        Ok(Text::new(name, all))
    }

    /// Adds the documents of these lines.
    fn add(&self, name: &Path, lines: &[u8], all: &mut String) -> Result<()> {
        let lines = unmarked(lines).split(|&byte| byte == b'\n').enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let document = self.document(line).map_err(|why| fail(name, format!("line {}: {why}", number + 1)))?;
            if !all.is_empty() {
                all.push_str(&self.border);
            }
            all.push_str(&document);
        }
        Ok(())
    }

    /// The document of a line, or what is wrong with it.
    fn document(&self, line: &[u8]) -> Result<String, String> {
        let object: Value = serde_json::from_slice(line).map_err(|error| format!("no JSON ({error})"))?;
        let fields = object.as_object().ok_or("no object; each line is to be one, in braces")?;
        let field = fields.get(&self.field).ok_or_else(|| {
            let mut known: Vec<_> = fields.keys().map(String::as_str).collect();
            // Some builds have objects that keep their order.
            known.sort_unstable();
            format!("no field `{}`; there are {}", self.field, known.join(", "))
        })?;
        let expected =
            || format!("`{}` is neither a text nor a list of messages with `role` and `content`", self.field);
        let message =
            |message: &Value| Some(format!("{}: {}", message["role"].as_str()?, message["content"].as_str()?));
        match field {
            Value::String(text) => Ok(text.clone()),
            Value::Array(messages) => {
                let lines: Option<Vec<String>> = messages.iter().map(message).collect();
                Ok(lines.ok_or_else(expected)?.join("\n"))
            }
            _ => Err(expected()),
        }
    }
}
