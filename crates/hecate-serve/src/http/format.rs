//! What answers are to be: JSON of any form, or of one schema.
//!
//! What a request says is read here and understood later: one that is wrong elsewhere takes no work.

use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
};
use serde_json::{Value, json};

/// Where a request has what it describes: a schema, or a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// In an object of its own beside `type`, as completions and conversations have it.
    Nested,
    /// Beside `type`, as responses have it.
    Flat,
}

/// A schema that answers are kept to, and where the request has it.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    pub(super) value: Value,
    pub(super) field: String,
}

/// The schema of `response_format`; none for text.
///
/// # Errors
/// 400 for another kind of format, and for a field that is not known.
pub(super) fn response_format(fields: &mut Fields) -> Result<Option<Schema>, Refusal> {
    format(fields.object("response_format")?, "response_format", Shape::Nested)
}

/// The schema of `text.format`; none for text.
///
/// # Errors
/// As [`response_format`].
pub(super) fn text_format(fields: &mut Fields) -> Result<Option<Schema>, Refusal> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let found = format(text.object("format")?, "text.format", Shape::Flat)?;
    text.finish()?;
    Ok(found)
}

/// The schema of a format in this field of the request.
fn format(format: Option<Fields>, field: &str, shape: Shape) -> Result<Option<Schema>, Refusal> {
    let Some(mut format) = format else { return Ok(None) };
    let kind = format.text("type")?.unwrap_or_default();
    let schema = match kind.as_str() {
        "text" => None,
        // Whatever is in it.
        "json_object" => Some(Schema { value: json!({"type": "object"}), field: field.to_owned() }),
        "json_schema" if shape == Shape::Flat => Some(schema(&mut format, field)?),
        "json_schema" => {
            let field = format!("{field}.json_schema");
            let mut described = format.object("json_schema")?.ok_or_else(|| missing(&field))?;
            let found = schema(&mut described, &field)?;
            described.finish()?;
            Some(found)
        }
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(Refusal::field(&format!("{field}.type"), shown(&Value::from(kind)), expected));
        }
    };
    format.finish()?;
    Ok(schema)
}

/// A schema with what is said of it.
fn schema(described: &mut Fields, field: &str) -> Result<Schema, Refusal> {
    let field = format!("{field}.schema");
    let value = described.take("schema").ok_or_else(|| missing(&field))?;
    // Answers are kept to it in any case, and its name is for people.
    described.flag("strict")?;
    described.forget(&["name", "description"]);
    Ok(Schema { value, field })
}

/// 400: there is no schema.
fn missing(field: &str) -> Refusal {
    Refusal::field(field, "missing", "`\"name\": …, \"schema\": {…}`")
}
