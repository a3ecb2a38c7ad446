//! What a tokenizer's file may ask for. The library that reads it takes all memory, all time or all of the stack if it is asked
//! to, so what is out of proportion is refused before it sees the file.

use crate::bounds::SIZE;
use serde_json::{Map, Value};

/// Bytes of a token. A Unigram vocabulary is a tree as deep as its longest token, and is let go by recursion.
const TOKEN: usize = 1024;
/// Bytes of all tokens of a Unigram vocabulary, each of which may become a table of some 300 bytes.
const UNIGRAM: usize = 8 << 20;
/// Bytes of all added tokens, which are normalized and searched for together.
const ADDED: usize = 4 << 20;
/// Characters of a word for WordPiece, whose time grows with their square or faster.
const WORD: u64 = 1000;
/// Bytes of what begins or ends a part of a word.
const AFFIX: usize = 64;
/// Bytes of a pattern.
const PATTERN: usize = 16 << 10;
/// Most stages of a normalizer, a pre-tokenizer or a decoder, and how deep they may lie in each other.
const STAGES: usize = 64;
const DEPTH: usize = 8;
/// Bytes that normalizer and pre-tokenizer may make of one, and that a decoder may.
const GROWTH: f64 = 1024.0;
const DECODED: f64 = 64.0;
/// Bytes that a compiled table of characters may put in the place of one character.
const CHARACTER: usize = 64;

/// The file without what does not count, and the bytes that its stages make of one byte of text, at most.
///
/// # Errors
/// What is out of proportion, in words.
pub(super) fn checked(mut file: Value) -> Result<(Value, f64), String> {
    let parts = file.as_object_mut().ok_or("the file is no object")?;
    // Texts are neither cut, filled up nor put between tokens.
    for name in ["truncation", "padding", "post_processor"] {
        parts.insert(name.to_owned(), Value::Null);
    }
    let model = parts.get_mut("model").ok_or("it has no `model`")?;
    model.as_object_mut().map(check_model).ok_or("its `model` is no object")??;
    parts.get("added_tokens").map_or(Ok(()), check_added)?;
    let mut growth = [GROWTH, GROWTH, DECODED];
    for (name, most) in ["normalizer", "pre_tokenizer", "decoder"].into_iter().zip(&mut growth) {
        let mut stages = Stages { left: STAGES };
        let found = parts.get(name).map_or(Ok(1.0), |part| stages.growth(part, DEPTH));
        let found = found.map_err(|why| format!("its `{name}`: {why}"))?;
        if found > *most {
            return Err(format!("its `{name}` may make {found:.1e} bytes of one, expected at most {most}"));
        }
        *most = found;
    }
    let [normalizer, pre_tokenizer, _] = growth;
    if normalizer * pre_tokenizer > GROWTH {
        let found = normalizer * pre_tokenizer;
        return Err(format!(
            "its `normalizer` and `pre_tokenizer` may make {found:.1e} bytes of one, expected at most {GROWTH}"
        ));
    }
    Ok((file, normalizer * pre_tokenizer))
}

/// Refuses tokens, numbers and words of a model that are too large.
fn check_model(model: &mut Map<String, Value>) -> Result<(), String> {
    // Chance would give a text other tokens each time.
    if model.contains_key("dropout") {
        model.insert("dropout".to_owned(), Value::Null);
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        let length = model.get(name).and_then(Value::as_str).map_or(0, str::len);
        at_most(&format!("its `{name}`"), length, AFFIX)?;
    }
    let word = model.get("max_input_chars_per_word").and_then(Value::as_u64).unwrap_or(0);
    if word > WORD {
        return Err(format!("`max_input_chars_per_word` is {word}, expected at most {WORD}"));
    }
    match model.get("vocab").ok_or("its `model` has no `vocab`")? {
        Value::Object(tokens) => tokens.iter().try_for_each(|(token, number)| check_token(token, Some(number))),
        Value::Array(tokens) => {
            let mut all = 0;
            for token in tokens.iter().filter_map(|pair| pair.get(0)?.as_str()) {
                check_token(token, None)?;
                all += token.len();
            }
            at_most("all its tokens together", all, UNIGRAM)
        }
        _ => Err("the `vocab` of its `model` is neither an object nor a list".to_owned()),
    }
}

/// Refuses a token that is too long, or whose number is too large.
fn check_token(token: &str, number: Option<&Value>) -> Result<(), String> {
    if token.len() > TOKEN {
        let start: String = token.chars().take(20).collect();
        return Err(format!("the token {start:?}… has {} bytes, expected at most {TOKEN}", token.len()));
    }
    match number.and_then(Value::as_u64) {
        Some(number) if number >= SIZE as u64 => {
            Err(format!("the token {token:?} has the number {number}, expected numbers under {SIZE}"))
        }
        _ => Ok(()),
    }
}

/// Refuses added tokens that are too large.
fn check_added(added: &Value) -> Result<(), String> {
    let mut all = 0;
    for token in added.as_array().into_iter().flatten() {
        let content = token.get("content").and_then(Value::as_str).unwrap_or_default();
        check_token(content, token.get("id"))?;
        all += content.len();
    }
    at_most("its added tokens together", all, ADDED)
}

fn at_most(what: &str, found: usize, most: usize) -> Result<(), String> {
    if found <= most { Ok(()) } else { Err(format!("{what} has {found} bytes, expected at most {most}")) }
}

/// Stages of a part of a tokenizer, as they are counted.
struct Stages {
    /// How many more there may be.
    left: usize,
}

impl Stages {
    /// Bytes that a stage makes of one, at most; what it is shows in its fields, since old files name no types.
    fn growth(&mut self, stage: &Value, depth: usize) -> Result<f64, String> {
        let Value::Object(fields) = stage else { return Ok(1.0) };
        if depth == 0 {
            return Err(format!("stages lie more than {DEPTH} deep in each other"));
        }
        self.left = self.left.checked_sub(1).ok_or_else(|| format!("more than {STAGES} stages"))?;
        let mut growth = own_growth(fields)?;
        for list in ["normalizers", "pretokenizers", "decoders"] {
            for inner in fields.get(list).and_then(Value::as_array).into_iter().flatten() {
                growth *= self.growth(inner, depth - 1)?;
            }
        }
        Ok(growth)
    }
}

/// As [`Stages::growth`], without the stages inside.
fn own_growth(fields: &Map<String, Value>) -> Result<f64, String> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let length = |name: &str| text(name).map_or(0.0, |text| text.len() as f64);
    if let Some(table) = text("precompiled_charsmap") {
        return check_characters(table);
    }
    // Before every piece of a text, of which there may be one a byte.
    let mut growth = 1.0 + length("prepend");
    // A character becomes another, which may also be put before each piece.
    if fields.contains_key("replacement") {
        growth *= 1.0 + length("replacement");
    }
    match fields.get("pattern") {
        Some(Value::Object(pattern)) if pattern.contains_key("Regex") => {
            check_pattern(pattern["Regex"].as_str().unwrap_or_default())?;
            // It may match nothing, anywhere.
            growth *= 1.0 + length("content");
        }
        Some(Value::Object(pattern)) => {
            let replaced = pattern.get("String").and_then(Value::as_str).unwrap_or_default();
            at_most("a pattern", replaced.len(), PATTERN)?;
            let replaced = replaced.len() as f64;
            growth *= if replaced == 0.0 { 1.0 + length("content") } else { (length("content") / replaced).max(1.0) };
        }
        _ => {}
    }
    // A byte becomes a character of up to two, and a space may come before it.
    if text("type") == Some("ByteLevel") || fields.contains_key("trim_offsets") {
        growth *= if fields.get("add_prefix_space") == Some(&Value::Bool(false)) { 2.0 } else { 3.0 };
    }
    // What is empty is everywhere: a space takes its place.
    if ["suffix", "word_delimiter_token"].iter().any(|name| text(name) == Some("")) {
        growth *= 2.0;
    }
    Ok(growth)
}

/// Refuses a compiled table whose size is not what it says, or that makes long texts of characters. Returns its growth.
fn check_characters(table: &str) -> Result<f64, String> {
    let table = base64::decode(table).map_err(|error| format!("a table of characters that is none ({error})"))?;
    let (size, rest) = table.split_first_chunk::<4>().ok_or("a table of characters that is empty")?;
    let size = u32::from_le_bytes(*size) as usize;
    let texts = rest.get(size..).ok_or_else(|| format!("a table of characters of {size} bytes that has fewer"))?;
    let longest = texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    if longest > CHARACTER {
        return Err(format!("a character that becomes {longest} bytes, expected at most {CHARACTER}"));
    }
    Ok(longest.max(1) as f64)
}

/// Refuses patterns that a search goes back in without end. Without looking around, a search is as long as its text.
fn check_pattern(pattern: &str) -> Result<(), String> {
    at_most("a pattern", pattern.len(), PATTERN)?;
    let refuse = |what: &str| Err(format!("the pattern {:?} {what}", pattern.chars().take(60).collect::<String>()));
    let found = Groups::of(pattern);
    if found.backreference {
        return refuse("refers to what it matched before, which takes time without bound");
    }
    if found.depth > STAGES {
        return refuse(&format!("has groups more than {STAGES} deep in each other"));
    }
    if found.looks_around && found.repeated_choice {
        return refuse("looks around and repeats a group of repetitions or choices, which takes time without bound");
    }
    Ok(())
}

/// What a pattern's groups are like.
#[derive(Default)]
struct Groups {
    depth: usize,
    backreference: bool,
    /// Looks ahead or back, or forbids to go back: no plain automaton.
    looks_around: bool,
    /// A group with a repetition or a choice in it is repeated.
    repeated_choice: bool,
}

impl Groups {
    fn of(pattern: &str) -> Self {
        let mut found = Self::default();
        // Of the pattern and of each open group, whether it has a repetition or a choice.
        let (mut open, mut rest) = (vec![false], pattern);
        while let Some(first) = rest.chars().next() {
            let next = &rest[first.len_utf8()..];
            let mut taken = first.len_utf8();
            match first {
                '\\' => {
                    let escaped = next.chars().next().unwrap_or('\\');
                    found.backreference |= matches!(escaped, '1'..='9' | 'k' | 'g');
                    found.looks_around |= matches!(escaped, 'K' | 'G' | 'R' | 'X');
                    taken += escaped.len_utf8().min(next.len());
                }
                '[' => taken = class(rest),
                '(' => {
                    let around = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?("];
                    found.looks_around |= around.iter().any(|start| rest.starts_with(start));
                    open.push(false);
                    found.depth = found.depth.max(open.len() - 1);
                }
                ')' if open.len() > 1 => {
                    let inside = open.pop().unwrap_or(false);
                    found.repeated_choice |= inside && repetition(next).is_some();
                    // What is inside of a group is inside of the one around it.
                    note(&mut open, inside);
                }
                '|' => note(&mut open, true),
                _ => {
                    if let Some(length) = repetition(rest) {
                        taken = length;
                        note(&mut open, true);
                        // A second sign forbids to go back.
                        found.looks_around |= rest[taken..].starts_with('+');
                    }
                }
            }
            rest = &rest[taken..];
        }
        found
    }
}

/// Notes of the innermost group whether it has a repetition or a choice.
fn note(open: &mut [bool], found: bool) {
    if let Some(innermost) = open.last_mut() {
        *innermost |= found;
    }
}

/// Bytes of the repetition that stands here, if it may be of many.
fn repetition(text: &str) -> Option<usize> {
    match text.as_bytes().first()? {
        b'*' | b'+' => Some(1),
        b'{' => {
            let inside = &text[1..text.find('}')?];
            let numbers = inside.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
            let few = inside.split(',').all(|number| number.parse::<u32>().is_ok_and(|number| number <= 8));
            (numbers && !inside.is_empty() && !few).then_some(inside.len() + 2)
        }
        _ => None,
    }
}

/// Bytes of the class of characters that begins here; classes lie in each other.
fn class(text: &str) -> usize {
    let (mut depth, mut escaped, mut first) = (0, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => (depth, first) = (depth + 1, true),
            // A bracket that comes first stands for itself.
            ']' if !first => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            '^' if first => continue,
            _ => {}
        }
        first = letter == '[' && first;
    }
    text.len()
}
