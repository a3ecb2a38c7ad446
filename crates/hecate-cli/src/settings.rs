//! Flags of `train` in a file: those that it names are read as if they had been given, and a run writes down its own.
//!
//! A file is a JSON object such as `{"rule": "titans", "lr": 0.002, "horizon": [4, 64], "mean": true}`.
//! It becomes words of the command line, so that its values are checked where those of flags are.
//! Whatever the line itself says counts before it.

use crate::{
    Action, Command,
    error::{Error, Result},
};
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, parser::ValueSource};
use hecate::train::checkpoint::Run;
use serde_json::{Map, Number, Value};
use std::{
    env,
    ffi::OsString,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// The flags of a run, beside it.
/// `--settings` reads it as it was written, in any folder.
pub(crate) const SETTINGS: &str = "settings.json";
/// The subcommand that has such a file.
const TRAIN: &str = "train";
/// Flags that say nothing of what is learned: a file of settings is for runs in other folders too.
/// With a folder among them, the next run would be written over this one.
const OF_ONE_CALL: [&str; 5] = ["settings", "out", "overwrite", "help", "version"];
/// Bytes of a file, at most.
/// Thousands of texts are named in less, and a file without an end is not read on.
const MOST: u64 = 1 << 20;

/// Flags by their names, as a file has them.
/// Names have no dashes in front; between words they have `-` or `_`. Values are texts, numbers, `true` or lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Given(Map<String, Value>);

/// Why there is no command.
/// They end the command in two ways: flags with status 2, or 0 for help, and files with 1.
pub(crate) enum Refused {
    /// Flags that cannot be read, or help that was asked for.
    Flags(clap::Error),
    /// A file of them.
    File(Error),
}

impl From<clap::Error> for Refused {
    fn from(answer: clap::Error) -> Self {
        Self::Flags(answer)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

/// The command line, with the flags of the file that it names.
/// With a file the line is read twice: for the file's name, and then with its flags behind the others.
///
/// # Errors
/// For flags that cannot be read, wherever they stand, and for a file that is no object of flags.
pub(crate) fn parse() -> Result<Command, Refused> {
    let words: Vec<OsString> = env::args_os().collect();
    let matches = Command::command().try_get_matches_from(&words)?;
    let matches = match file_of(&matches) {
        Some(file) => {
            let more = Given::read(&file)?.words(&file, train_of(&matches))?;
            Command::command().try_get_matches_from(words.into_iter().chain(more))?
        }
        None => matches,
    };
    let mut command = Command::from_arg_matches(&matches)?;
    if let (Action::Train(arguments), Some(train)) = (&mut command.action, train_of(&matches)) {
        arguments.given = Given::of(train);
    }
    Ok(command)
}

/// What `train` was told; nothing where another subcommand was called.
fn train_of(matches: &ArgMatches) -> Option<&ArgMatches> {
    matches.subcommand_matches(TRAIN)
}

/// The file that `train` is told.
/// Nothing where it is told none, or where another subcommand was called.
fn file_of(matches: &ArgMatches) -> Option<PathBuf> {
    train_of(matches)?.get_one::<PathBuf>("settings").cloned()
}

/// All flags of `train`.
/// Each knows its name, its values and what parts them; the order is that of the help.
fn flags() -> Vec<Arg> {
    let command = Command::command();
    let train = command.find_subcommand(TRAIN);
    train.map_or_else(Vec::new, |train| train.get_arguments().cloned().collect())
}

impl Given {
    /// From a file.
    /// At most `MOST` bytes are read. A mark of byte order in front is skipped: some editors write one.
    fn read(path: &Path) -> Result<Self> {
        let refuse = |why: String| {
            let why =
                format!("{}: {why}; give a JSON object of flags, such as {{\"rule\": \"titans\"}}", path.display());
            Error::flag("--settings", why)
        };
        let mut content = Vec::new();
        // A pipe is as good as a file, and neither need end.
        let read = File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut content));
        read.map_err(|error| refuse(error.to_string()))?;
        if content.len() as u64 > MOST {
            return Err(refuse(format!("over {MOST} bytes")));
        }
        let content = content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&content);
        match serde_json::from_slice(content).map_err(|error| refuse(error.to_string()))? {
            Value::Object(flags) => Ok(Self(flags)),
            _ => Err(refuse("no object in braces".to_owned())),
        }
    }

    /// As words of a command line, without flags that are given there.
    /// The last of two flags counts, and these stand behind the line's: what the line has is left out.
    ///
    /// # Errors
    /// For a name that is no flag of `train`, and for a value that no flag has.
    fn words(&self, file: &Path, line: Option<&ArgMatches>) -> Result<Vec<OsString>> {
        let (mut words, flags) = (Vec::new(), flags());
        for (name, value) in &self.0 {
            let long = name.replace('_', "-");
            let flag = flags.iter().find(|flag| flag.get_long() == Some(&long) && name != "settings");
            let flag = flag.ok_or_else(|| {
                let why =
                    format!("{}: `{name}` is no flag of `train`; `hecate train --help` lists them", file.display());
                Error::flag("--settings", why)
            })?;
            if line.is_none_or(|line| line.value_source(flag.get_id().as_str()) != Some(ValueSource::CommandLine)) {
                let more = words_of(flag, &long, value).ok_or_else(|| {
                    let why = format!(
                        "{}: `{name}` is {value}, expected a text, a number, true, false or a list",
                        file.display()
                    );
                    Error::flag("--settings", why)
                })?;
                words.extend(more);
            }
        }
        Ok(words)
    }

    /// What was given of these flags, by the command line or by a file.
    /// A file's flags are words of the line by now. Defaults stay out: the file says what somebody chose.
    fn of(train: &ArgMatches) -> Self {
        let given = |flag: &Arg| train.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine);
        let flags = flags().into_iter().filter(given);
        Self(flags.filter_map(|flag| Some((flag.get_long()?.to_owned(), value(&flag, train)))).collect())
    }

    /// Writes them down, for runs that are to learn alike.
    /// What concerns one call stays out, its folder above all.
    pub(crate) fn save(&self, run: &Run) -> Result<()> {
        let kept = self.0.iter().filter(|(name, _)| !OF_ONE_CALL.contains(&name.as_str()));
        let kept: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut kept = Value::Object(kept);
        // Some builds have objects that keep their order; files are the same in all of them.
        kept.sort_all_objects();
        let text = format!("{kept:#}\n");
        Ok(run.write(SETTINGS, text.as_bytes())?)
    }
}

/// Whether a content is a file of settings as a run writes it: an object of flags of `train`.
/// A file by that name with anything else in it is somebody's own, and a run does not write over it.
pub(crate) fn is_settings(content: &[u8]) -> bool {
    let flags = flags();
    let known = |name: &String| flags.iter().any(|flag| flag.get_long() == Some(name));
    serde_json::from_slice::<Map<String, Value>>(content).is_ok_and(|found| found.keys().all(known))
}

/// A flag and its value as words; none for values that no flag has.
/// `null` and `false` are a flag that is not given. A list is one word where the flag has a delimiter, as
/// `--horizon 4,64` has, and a word an element elsewhere.
fn words_of(flag: &Arg, long: &str, value: &Value) -> Option<Vec<OsString>> {
    let word = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    // Name and value in one word: a value that begins with a dash is then no flag.
    let word_of = |text: String| OsString::from(format!("--{long}={text}"));
    Some(match value {
        Value::Null | Value::Bool(false) => Vec::new(),
        Value::Bool(true) => vec![format!("--{long}").into()],
        Value::Array(list) => {
            let texts = list.iter().map(word).collect::<Option<Vec<String>>>()?;
            match flag.get_value_delimiter() {
                Some(delimiter) => vec![word_of(texts.join(&delimiter.to_string()))],
                None => texts.into_iter().map(word_of).collect(),
            }
        }
        Value::Object(_) => return None,
        one => vec![word_of(word(one)?)],
    })
}

/// The value of a flag as a file has it.
/// Whoever reads the file again gets the same words: `0.002` is a number, and `2e-3` stays a text.
fn value(flag: &Arg, train: &ArgMatches) -> Value {
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return true.into();
    }
    let one = |text: String| match text.parse::<Number>() {
        // Numbers that would be written in another way are other words.
        Ok(number) if number.to_string() == text => Value::Number(number),
        _ => Value::String(text),
    };
    let raw = train.get_raw(flag.get_id().as_str()).into_iter().flatten();
    let mut values: Vec<Value> = raw.map(|word| one(word.to_string_lossy().into_owned())).collect();
    match (flag.get_num_args().is_some_and(|count| count.max_values() > 1), values.len()) {
        (false, 0) => true.into(),
        (false, 1) => values.remove(0),
        _ => Value::Array(values),
    }
}
