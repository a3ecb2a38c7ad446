//! Texts to learn and to measure on.

use crate::{
    error::{Error, Result},
    progress,
};
use clap::Args;
use hecate::models::text::{IN_MEMORY, JsonLines, Text};
use std::{
    fmt,
    io::{Read, stdin},
    path::{Path, PathBuf},
};

/// Hecate's own sources, as they were when this program was built.
const OWN: &str = include_str!(concat!(env!("OUT_DIR"), "/sources.txt"));
/// Stands for standard input.
pub(crate) const STDIN: &str = "-";

/// Where a text is while it is read.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MemoryArgs {
    /// Longest text that is held in memory, such as 500MB or 4GiB
    ///
    /// A longer one is read from its files where it is needed, and gives the same results.
    #[arg(long, hide_short_help = true, value_name = "SIZE", default_value_t = Size(IN_MEMORY), value_parser = size)]
    in_memory: Size,
}

/// How documents are taken out of a text of JSON.
#[derive(Args, Clone, Debug)]
pub(crate) struct DocumentArgs {
    /// The text is lines of JSON: take this field of each
    ///
    /// A text, or a list of messages with `role` and `content`. Of folders, files that end in .jsonl or .ndjson are read.
    #[arg(long, value_name = "FIELD")]
    jsonl: Option<String>,
    /// What stands between two documents of --jsonl [default: an empty line]
    #[arg(long, hide_short_help = true, value_name = "TEXT", requires = "jsonl", allow_hyphen_values = true)]
    border: Option<String>,
}

impl DocumentArgs {
    /// None where the text is one as it is.
    pub(crate) fn json_lines(&self) -> Option<JsonLines> {
        let border = self.border.clone().unwrap_or_else(|| JsonLines::BORDER.to_owned());
        Some(JsonLines { field: self.jsonl.clone()?, border })
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest unit of which it is a multiple.
        let unit = UNITS.iter().rfind(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        let (name, bytes) = unit.unwrap_or(&("", 1));
        write!(f, "{}{name}", self.0 / bytes)
    }
}

/// Units of sizes, in bytes.
const UNITS: [(&str, usize); 6] =
    [("kB", 1_000), ("KiB", 1 << 10), ("MB", 1_000_000), ("MiB", 1 << 20), ("GB", 1_000_000_000), ("GiB", 1 << 30)];

/// A number of bytes, with a unit or without.
fn size(text: &str) -> Result<Size, String> {
    // A sign or a point belongs to no number here.
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let bytes = match unit.trim() {
        "" | "B" => Some(1),
        unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|&(_, bytes)| bytes),
    };
    // More than can be counted is no size either.
    let size = bytes.zip(number.parse::<usize>().ok()).and_then(|(bytes, number)| number.checked_mul(bytes));
    let names = UNITS.map(|(name, _)| name).join(", ");
    size.map(Size)
        .ok_or_else(|| format!("`{text}` is no size; give bytes, or a whole number with {names}, such as 500MB"))
}

/// The text of these files and folders, or of standard input for a dash; without any, Hecate's own sources.
pub(crate) fn load(
    paths: &[PathBuf],
    json_lines: Option<&JsonLines>,
    MemoryArgs { in_memory }: MemoryArgs,
) -> Result<Text> {
    let text = match paths {
        [] if json_lines.is_some() => {
            return Err(Error::flag("--jsonl", "Hecate's own sources are no JSON; name files with `--text`"));
        }
        [] => return Ok(Text::new("Hecate's own sources", OWN)),
        [path] if is_stdin(path) => read_stdin(in_memory, json_lines)?,
        // Where it would stand among files could not be found again.
        _ if paths.iter().any(|path| is_stdin(path)) => {
            return Err(Error::flag(
                "--text",
                "`-` is standard input and goes with no other text; name files, or `-` alone",
            ));
        }
        _ => match json_lines {
            Some(lines) => lines.open(paths, in_memory.0)?,
            None => Text::open(paths, in_memory.0)?,
        },
    };
    introduce(&text)?;
    Ok(text)
}

/// Whether this is no file but standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

/// All of standard input, of which as much is held as of any text.
fn read_stdin(most: Size, json_lines: Option<&JsonLines>) -> Result<Text> {
    // Read to its end: the last part of it is held out.
    let mut text = Vec::new();
    // A byte more tells that there is more; whoever writes without an end is not waited for.
    stdin().take((most.0 as u64).saturating_add(1)).read_to_end(&mut text).map_err(|error| {
        Error::flag("--text -", format!("standard input cannot be read: {error}; give a text in UTF-8"))
    })?;
    if text.len() > most.0 {
        let why = format!(
            "standard input is longer than {most}; give it as a file, or raise the limit with `--in-memory SIZE`"
        );
        return Err(Error::flag("--text -", why));
    }
    let text = String::from_utf8(text).map_err(|error| {
        Error::flag("--text -", format!("standard input cannot be read: {error}; give a text in UTF-8"))
    })?;
    if text.is_empty() {
        return Err(Error::flag("--text -", "standard input is empty; pipe a text into it, or name a file"));
    }
    match json_lines {
        Some(lines) => Ok(lines.text(Path::new("standard input"), &text)?),
        None => Ok(Text::new("standard input", text)),
    }
}

/// Says what a text of several files is made of, what was left out, and what of it is hardly meant to be learned.
fn introduce(text: &Text) -> Result<()> {
    // One file needs no line: what is trained on is told below.
    if text.files() > 1 || !text.skipped().is_empty() {
        progress::say(&format!("{} bytes of text in {} files", text.bytes(), text.files()));
    }
    // One of them shows what kind they are; a folder may have thousands.
    if let Some(first) = text.skipped().first() {
        let (count, first) = (text.skipped().len(), first.display());
        progress::say(&format!("{count} files skipped, empty or no text in UTF-8, such as {first}"));
    }
    let (marked, lines) = text.oddities()?;
    if marked {
        progress::say("the text has a byte-order mark (U+FEFF), which is read as a part of it; save it without one");
    }
    if lines > 0 {
        progress::say(&format!(
            "{lines} lines of the text's first megabyte end in CR LF, which is read as it is; `tr -d '\\r'` takes the CR out"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the build looks at to see whether the sources changed: files, and none of a test. A folder would bring all below it.
    #[test]
    fn no_test_is_watched() {
        let output = Path::new(concat!(env!("OUT_DIR"), "/../output"));
        let output = std::fs::read_to_string(output).expect("what the build script printed");
        let watched: Vec<_> =
            output.lines().filter_map(|line| line.strip_prefix("cargo:rerun-if-changed=")).map(Path::new).collect();
        assert!(watched.len() > 300, "only {} files", watched.len());
        for path in watched {
            let of_tests = ["benches", "examples", "tests", "tests.rs"];
            let is_test = path.iter().any(|part| of_tests.iter().any(|name| part == *name));
            assert!(path.is_file() && !is_test, "{}", path.display());
        }
    }

    #[test]
    fn sizes_have_units() {
        let sizes = ["0", "17", "17B", "2kB", "2 KiB", "500MB", "1GiB", "1gib"].map(|text| size(text).unwrap().0);
        assert_eq!(sizes, [0, 17, 17, 2_000, 2_048, 500_000_000, 1 << 30, 1 << 30]);
        for text in ["", "-1", "1.5GB", "GB", "1 TB", "1e9", "99999999999999999999", "18446744073709551615GiB"] {
            assert!(size(text).unwrap_err().contains("500MB"), "{text}");
        }
        let shown = [0, 17, 2_000, 3 << 20, 1 << 30].map(|bytes| Size(bytes).to_string());
        assert_eq!(shown, ["0", "17", "2kB", "3MiB", "1GiB"]);
    }
}
