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
/// Most digits of `multipleOf` after the point, and the largest one as a whole number: the library counts with 32 bits.
const DIGITS: u32 = 8;
const STEP: u64 = 100_000_000;
/// The largest multiple of several of them, whose square has to fit into 32 bits.
const MULTIPLE: u64 = 65_535;
/// Words that make one schema of several, and so one step of theirs.
const MERGES: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];
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
    if !has_room(&steps(schema), merges(schema)) {
        let expected = format!("numbers of up to {DIGITS} digits, whose least common multiple has up to 4");
        return Err(Refusal::field(field, "a schema with a `multipleOf` that cannot be counted with", expected));
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

/// Steps of numbers, anywhere. Others than positive ones are refused by the library.
fn steps(value: &Value) -> Vec<f64> {
    let own = value.get("multipleOf").and_then(Value::as_f64).filter(|step| *step > 0.0);
    own.into_iter().chain(inside(value).flat_map(steps)).collect()
}

/// Whether parts of a schema may have to be met together.
fn merges(value: &Value) -> bool {
    MERGES.iter().any(|word| value.get(word).is_some()) || inside(value).any(merges)
}

/// Whether the library can count with these steps, each by itself or with one another.
///
/// It makes whole numbers of them, and of two their product before their least common multiple. Beyond 32 bits it would go on
/// with other numbers.
fn has_room(steps: &[f64], are_merged: bool) -> bool {
    let Some(all) = steps.iter().map(|step| decimal(*step)).collect::<Option<Vec<_>>>() else { return false };
    if !are_merged || all.len() < 2 {
        return true;
    }
    let digits = all.iter().map(|(_, digits)| *digits).max().unwrap_or(0);
    let mut whole = all.iter().map(|(whole, own)| whole * 10_u64.pow(digits - own));
    let multiple = |all: u64, step| (all / gcd(all, step)).saturating_mul(step);
    whole.try_fold(1, |all, step| Some(multiple(all, step)).filter(|all| *all <= MULTIPLE)).is_some()
}

/// A step as a whole number and its digits after the point, found as the library finds them; none for one with too many.
fn decimal(mut step: f64) -> Option<(u64, u32)> {
    for digits in 0..=DIGITS {
        if step.fract() == 0.0 {
            return Some((step as u64, digits)).filter(|(whole, _)| *whole <= STEP);
        }
        step *= 10.0;
    }
    None
}

/// The greatest common divisor, of which at least one is not zero.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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
        assert!(said(&json!({"x-guidance": {"lenient": true}})).contains("`s.x-guidance`"));
        assert!(said(&json!([])).contains("expected a JSON schema"));
    }

    /// Steps by themselves, and such as have to be met together.
    /// What is refused would be other numbers for the library, or none.
    #[test]
    fn steps_are_those_that_can_be_counted_with() {
        let of = |step: &f64| json!({"multipleOf": step});
        let each = |steps: &[f64]| said(&json!({"items": steps.iter().map(of).collect::<Vec<_>>()}));
        let merged = |steps: &[f64]| said(&json!({"allOf": steps.iter().map(of).collect::<Vec<_>>()}));
        for steps in [
            &[0.01][..],
            &[1e8],
            &[0.01, 100.0],
            &[0.5, 0.25, 5.0, 100.0],
            &[3.0; 9],
            &[65_535.0; 2],
            &[0.0, -2.0],
            &[],
        ] {
            assert_eq!((each(steps), merged(steps)), Default::default(), "{steps:?}");
        }
        // The same one twice is a product too.
        for steps in [&[65_537.0, 65_539.0][..], &[65_537.0; 2], &[1e-5, 7.0], &[257.0, 255.0, 7.0]] {
            assert_eq!(each(steps), "", "{steps:?}");
            assert!(merged(steps).contains("`multipleOf`"), "{steps:?}");
        }
        // Too large, too fine, and none of decimal digits.
        // The last ones are whole or nearly nothing.
        for step in [1e8 + 1.0, 1e-10, 1.0 / 3.0, 1e300, 1e-320] {
            assert!(each(&[step]).contains("`multipleOf`"), "{step}");
        }
    }
}
