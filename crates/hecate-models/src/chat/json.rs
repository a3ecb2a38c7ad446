//! JSON as Python's `json.dumps` writes it: what templates show a model of tools and their calls.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind},
};
use std::fmt::Write;

/// Lists and objects within each other; what comes as JSON has at most as many.
const DEPTH: usize = 128;
/// Blanks of a line's beginning, at most.
const BLANKS: usize = 1 << 10;
/// Bytes that are written for a step of the template.
const STEP: usize = 64;

/// How it is written.
struct Style<'a> {
    /// What pays for it.
    state: &'a State<'a, 'a>,
    /// Whether all that is not ASCII is escaped.
    ascii: bool,
    /// Blanks a level; none for one line.
    indent: Option<usize>,
    /// What is between elements, and between a name and its value.
    separators: [String; 2],
    sorted: bool,
}

/// The filter `tojson`, with `json.dumps`'s options that transformers has.
pub(super) fn tojson(state: &State<'_, '_>, value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = match options.get::<Option<Vec<String>>>("separators")? {
        Some(told) => <[String; 2]>::try_from(told)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "`separators` has two parts"))?,
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut text = String::new();
    Style { state, ascii, indent, separators, sorted }.write(&mut text, &value, 0)?;
    Ok(Value::from_safe_string(text))
}

impl Style<'_> {
    fn write(&self, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            let why = format!("lists and objects lie in each other more than {DEPTH} deep");
            return Err(Error::new(ErrorKind::BadSerialization, why));
        }
        let before = text.len();
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(word(value)),
            ValueKind::Number => text.push_str(&number(value)),
            ValueKind::String => self.string(text, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let all = value.try_iter()?;
                self.group(text, ['[', ']'], depth, all, |text, one| self.write(text, one, depth + 1))?;
                return Ok(());
            }
            ValueKind::Map => {
                let mut names: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    names.sort();
                }
                self.group(text, ['{', '}'], depth, names.into_iter(), |text, name| {
                    self.string(text, &key(name)?);
                    text.push_str(&self.separators[1]);
                    self.write(text, &value.get_item(name)?, depth + 1)
                })?;
                return Ok(());
            }
            other => {
                let why = format!("a value of the kind {other} is not JSON");
                return Err(Error::new(ErrorKind::BadSerialization, why));
            }
        }
        self.pay(text.len() - before)
    }

    /// Charges the template for so many bytes, and for a value: the same list may stand in many places.
    fn pay(&self, bytes: usize) -> Result<(), Error> {
        self.state.consume_fuel(1 + (bytes / STEP) as u64)
    }

    /// Elements between these brackets.
    fn group(
        &self,
        text: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        all: impl Iterator<Item = Value>,
        mut each: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(open);
        let mut some = false;
        for one in all {
            if some {
                text.push_str(&self.separators[0]);
            }
            some = true;
            let before = text.len();
            self.line(text, depth + 1);
            self.pay(text.len() - before + self.separators.iter().map(String::len).sum::<usize>())?;
            each(text, &one)?;
        }
        if some {
            self.line(text, depth);
        }
        text.push(close);
        self.pay(0)
    }

    /// A new line of this depth, where there are lines.
    fn line(&self, text: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth).min(BLANKS)));
        }
    }

    fn string(&self, text: &mut String, string: &str) {
        text.push('"');
        for c in string.chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                c if c < ' ' || self.ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
}

/// A name of an object: what is no string is written as one.
fn key(name: &Value) -> Result<String, Error> {
    match name.kind() {
        ValueKind::String => Ok(name.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(word(name).to_owned()),
        ValueKind::Number => Ok(number(name)),
        other => Err(Error::new(ErrorKind::BadSerialization, format!("a name of the kind {other} is not JSON"))),
    }
}

/// Yes or no, as JSON has it.
fn word(value: &Value) -> &'static str {
    if value.is_true() { "true" } else { "false" }
}

/// A number as Python writes it: floats with the fewest digits that tell them apart.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(x) = f64::try_from(value.clone()) else { return value.to_string() };
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let shortest = format!("{x:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        small @ ..-4 => format!("{digits}e-{:02}", -small),
        large @ 16.. => format!("{digits}e+{large:02}"),
        _ => format!("{x:?}"),
    }
}
