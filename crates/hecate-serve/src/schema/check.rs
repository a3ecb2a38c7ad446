//! Bounds of schemas, before any work.
//!
//! They are far above what people write by hand, and what programs make of their types.

use crate::{fields::shown, refusal::Refusal};
use serde_json::Value;

/// Most bytes of a schema as JSON without blanks.
const BYTES: usize = 64 << 10;
/// Most lists and objects inside of each other.
const DEPTH: usize = 64;
/// Most patterns of names of properties: each is compared with each.
const PATTERNS: usize = 32;
/// Most letters of a property's name in a message.
const NAME: usize = 60;

/// Refuses what would take long, or much memory, to be understood; `field` is where the request has the schema.
///
/// # Errors
/// 400.
pub(super) fn check(schema: &Value, field: &str) -> Result<(), Refusal> {
    if !schema.is_object() {
        return Err(Refusal::field(field, shown(schema), "a JSON schema: an object"));
    }
    let bytes = schema.to_string().len();
    if bytes > BYTES {
        return Err(Refusal::field(field, format!("{bytes} bytes"), format!("up to {BYTES}")));
    }
    let depth = depth(schema);
    if depth > DEPTH {
        return Err(Refusal::field(field, format!("{depth} levels deep"), format!("up to {DEPTH}")));
    }
    let patterns = patterns(schema);
    if patterns > PATTERNS {
        let found = format!("with {patterns} `patternProperties`");
        return Err(Refusal::field(field, found, format!("up to {PATTERNS}")));
    }
    match schema.get(OPTIONS) {
        Some(_) => Err(Refusal::unsupported(&format!("{field}.{OPTIONS}"), "leave it out")),
        None => Ok(()),
    }
}

/// Where the library reads its own options: whoever asks could have it keep to less than the schema.
const OPTIONS: &str = "x-guidance";

/// All values directly inside of one.
fn inside(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Lists and objects inside of each other.
///
/// JSON of a request is never so deep that this could have no end of the stack.
fn depth(value: &Value) -> usize {
    let own = usize::from(value.is_array() || value.is_object());
    own + inside(value).map(depth).max().unwrap_or(0)
}

/// Patterns of names of properties, anywhere.
fn patterns(value: &Value) -> usize {
    let own = value.get("patternProperties").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    own + inside(value).map(patterns).sum::<usize>()
}

/// Schemas directly inside of one, each with the step to it.
pub(super) fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    for (name, value) in schema.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("items" | "additionalProperties", one) => all.push((format!(".{name}"), one)),
            ("prefixItems" | "anyOf" | "allOf" | "oneOf", Value::Array(list)) => {
                all.extend(list.iter().enumerate().map(|(i, part)| (format!(".{name}[{i}]"), part)));
            }
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(fields)) => {
                let step = |of: &str| format!(".{name}.{}", of.chars().take(NAME).collect::<String>());
                all.extend(fields.iter().map(|(of, part)| (step(of), part)));
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is said of a schema in the field `s`; nothing for one that is fine.
    fn said(schema: &Value) -> String {
        check(schema, "s").err().map_or_else(String::new, |refusal| refusal.object().to_string())
    }

    #[test]
    fn bounds_are_looked_at_before_any_work() {
        let deep = |levels| (0..levels).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(said(&deep(DEPTH - 1)), "");
        assert!(said(&deep(DEPTH)).contains("65 levels deep"), "{}", said(&deep(DEPTH)));
        let named = |bytes| json!({"title": "x".repeat(bytes - r#"{"title":""}"#.len())});
        assert_eq!(said(&named(BYTES)), "");
        assert!(said(&named(BYTES + 1)).contains("65537 bytes"), "{}", said(&named(BYTES + 1)));
        let patterned = |count| {
            let patterns: Value =
                (0..count).map(|i| (format!("^{i}$"), json!({}))).collect::<serde_json::Map<_, _>>().into();
            json!({"items": {"patternProperties": patterns}})
        };
        assert_eq!(said(&patterned(PATTERNS)), "");
        assert!(said(&patterned(PATTERNS + 1)).contains("33 `patternProperties`"));
        assert!(said(&json!([])).contains("expected a JSON schema"));
        assert!(said(&json!({"x-guidance": {"lenient": true}})).contains("`s.x-guidance`"));
    }
}
