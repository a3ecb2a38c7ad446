//! Rotary positions in `config.json`, in the three forms that it has had.

use crate::{Error, Result, layers::Rotary};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields of rotary positions, whichever are there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rope {
    /// Today's form: `{"rope_type": "default", "rope_theta": 10000.0}`.
    rope_parameters: Option<Map<String, Value>>,
    /// The form before.
    rope_theta: Option<f32>,
    /// Beside it: how positions are stretched.
    rope_scaling: Option<Map<String, Value>>,
    /// Share of a head's channels that is turned; it may be among the parameters.
    partial_rotary_factor: Option<f32>,
}

impl Rope {
    /// Rotary positions of heads of `width` channels, of which `partial` are turned unless the fields say otherwise. None where
    /// no base of frequencies is told.
    pub(super) fn rotary(&self, width: usize, partial: f32) -> Result<Option<Rotary>> {
        let parameters = self.rope_parameters.as_ref();
        for fields in parameters.into_iter().chain(&self.rope_scaling) {
            for name in ["rope_type", "type"] {
                if let Some(kind) = fields.get(name).filter(|kind| !kind.is_null() && *kind != "default") {
                    let expected = "`default`: positions that are stretched are not built yet";
                    return Err(Error::config(name, kind, expected));
                }
            }
        }
        let number = |name: &str, beside: Option<f32>| match parameters.and_then(|fields| fields.get(name)) {
            None | Some(Value::Null) => Ok(beside),
            Some(found) => match found.as_f64() {
                Some(number) => Ok(Some(number as f32)),
                None => Err(Error::config(name, found, "a number")),
            },
        };
        let share = number("partial_rotary_factor", self.partial_rotary_factor)?.unwrap_or(partial);
        let Some(base) = number("rope_theta", self.rope_theta)? else { return Ok(None) };
        if !(share > 0.0 && share <= 1.0) {
            return Err(Error::config("partial_rotary_factor", share, "over 0 and at most 1"));
        }
        // Rounded down, as in Python.
        Ok(Some(Rotary { base, channels: (width as f64 * f64::from(share)) as usize }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotary(text: &str) -> Result<Option<Rotary>, String> {
        let rope: Rope = serde_json::from_str(text).expect("fields");
        rope.rotary(12, 0.5).map_err(|error| error.to_string())
    }

    #[test]
    fn all_forms_say_the_same() {
        let expected = Ok(Some(Rotary { base: 1e5, channels: 3 }));
        for text in [
            r#"{"rope_parameters":{"rope_type":"default","rope_theta":100000,"partial_rotary_factor":0.25}}"#,
            r#"{"rope_parameters":{"rope_theta":1e5},"partial_rotary_factor":0.25}"#,
            r#"{"rope_theta":1e5,"rope_scaling":null,"partial_rotary_factor":0.25}"#,
            r#"{"rope_theta":1e5,"rope_scaling":{"type":"default"},"partial_rotary_factor":0.25}"#,
        ] {
            assert_eq!(rotary(text), expected, "{text}");
        }
        assert_eq!(rotary(r#"{"rope_theta":7}"#), Ok(Some(Rotary { base: 7.0, channels: 6 })));
        assert_eq!(rotary("{}"), Ok(None));
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        for (text, told) in [
            (r#"{"rope_parameters":{"rope_type":"yarn","rope_theta":1e5}}"#, "`rope_type` is \"yarn\""),
            (r#"{"rope_theta":1e5,"rope_scaling":{"type":"linear","factor":2}}"#, "`type` is \"linear\""),
            (r#"{"rope_parameters":{"rope_theta":"large"}}"#, "`rope_theta` is \"large\", expected a number"),
            (r#"{"rope_theta":1e5,"partial_rotary_factor":0}"#, "`partial_rotary_factor` is 0"),
        ] {
            let found = rotary(text).expect_err(text);
            assert!(found.contains(told), "{text}: {found}");
        }
    }
}
