//! The fields of a request. Each is taken by its name; one that nobody takes is refused, not ignored.

use crate::refusal::Refusal;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// What a request says and was not taken yet.
///
/// A handler takes the fields that it knows, each by one call that says what it may hold, and in the end calls
/// [`Fields::finish`]. A field that a later version understands is so refused by this one, and never means nothing.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

/// Most letters of a value that a message repeats.
const SHOWN: usize = 60;

impl Fields {
    /// The fields of a JSON object.
    ///
    /// # Errors
    /// 400 for anything else.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(Refusal::request(format!("the body is {}, expected a JSON object", shown(&other)))),
            Err(error) => Err(Refusal::request(format!("the body is no JSON: {error}"))),
        }
    }

    /// Whatever the field has; null is as if it were not there.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// What a field has, which is still to be taken.
    pub(crate) fn look(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A text.
    /// # Errors
    /// 400 for another kind of value.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        self.of(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// A number in this range.
    /// # Errors
    /// 400 for another kind of value, or one outside.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Refusal> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.of(name, &expected, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    /// A whole number in this range.
    /// # Errors
    /// 400 for another kind of value, for a fraction, or one outside.
    pub(crate) fn whole(&mut self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, Refusal> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let whole = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.of(name, &expected, |value| whole(value).filter(|number| range.contains(number)))
    }

    /// A seed: any whole number of 64 bits, with or without a sign.
    /// # Errors
    /// 400 for another kind of value.
    pub(crate) fn seed(&mut self, name: &str) -> Result<Option<u64>, Refusal> {
        let seed = |value: &Value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        self.of(name, "a whole number of 64 bits", seed)
    }

    /// True or false; false where it is not there.
    /// # Errors
    /// 400 for another kind of value.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        Ok(self.of(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// An object.
    /// # Errors
    /// 400 for another kind of value.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, Refusal> {
        self.of(name, "an object", |value| value.as_object().cloned().map(Fields))
    }

    /// A list.
    /// # Errors
    /// 400 for another kind of value.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Refusal> {
        self.of(name, "a list", |value| value.as_array().cloned())
    }

    /// All that was not taken yet, where an object may have any names.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (String, Value)> {
        self.0.into_iter()
    }

    /// Takes a field that may only say what is so without it.
    ///
    /// # Errors
    /// 400 by its name where it says something else; `way_out` ends the message.
    pub(crate) fn without(&mut self, name: &str, way_out: &str) -> Result<(), Refusal> {
        let says_nothing = |value: &Value| match value {
            Value::Bool(flag) => !flag,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Null => true,
        };
        match self.take(name) {
            Some(value) if !says_nothing(&value) => Err(Refusal::unsupported(name, way_out)),
            _ => Ok(()),
        }
    }

    /// Takes fields that change no answer.
    pub(crate) fn forget(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.0.remove(*name)));
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// 400 by the name of a field.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => {
                let name: String = name.chars().take(SHOWN).collect();
                Err(Refusal::unsupported(&name, "leave it out; docs/serving.md lists what is understood"))
            }
            None => Ok(()),
        }
    }

    /// A field that `read` understands.
    fn of<T>(&mut self, name: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match read(&value) {
            Some(found) => Ok(Some(found)),
            None => Err(Refusal::field(name, shown(&value), expected)),
        }
    }
}

/// A value as a message repeats it.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_refused_by_its_name() {
        let mut fields =
            Fields::parse(br#"{"seed": -1, "best_of": null, "penalty": 0.0, "tools": [1], "planet": 9}"#).unwrap();
        assert_eq!(fields.seed("seed").unwrap(), Some(u64::MAX));
        fields.without("penalty", "").unwrap();
        assert!(fields.without("tools", "").unwrap_err().object().to_string().contains("`tools`"));
        assert!(fields.finish().unwrap_err().object().to_string().contains("`planet`"));
    }

    #[test]
    fn values_are_what_they_have_to_be() {
        let mut fields = Fields::parse(br#"{"a": "x", "b": 1.5, "c": -1, "d": 3, "e": 1e999}"#).map_err(|_| ());
        // A number that no float holds is no JSON for serde.
        assert!(fields.is_err());
        fields = Fields::parse(br#"{"a": "x", "b": 1.5, "c": -1, "d": 3}"#).map_err(|_| ());
        let mut fields = fields.unwrap();
        assert!(
            fields.whole("a", 0..=9).is_err() && fields.whole("b", 0..=9).is_err() && fields.whole("c", 0..=9).is_err()
        );
        assert_eq!(fields.whole("d", 0..=3).unwrap(), Some(3));
        assert_eq!(fields.whole("d", 0..=3).unwrap(), None);
    }
}
