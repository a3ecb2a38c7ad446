//! `response_format`: answers that are JSON, or JSON of one schema.
//!
//! What it says is read here and understood later: a request that is wrong elsewhere takes no work.

use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
};
use serde_json::{Value, json};

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
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.text("type")?.unwrap_or_default();
    let schema = match kind.as_str() {
        "text" => None,
        // Whatever is in it.
        "json_object" => Some(Schema { value: json!({"type": "object"}), field: "response_format".to_owned() }),
        "json_schema" => Some(schema(&mut format)?),
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(Refusal::field("response_format.type", shown(&Value::from(kind)), expected));
        }
    };
    format.finish()?;
    Ok(schema)
}

/// What `json_schema` of a format says.
fn schema(format: &mut Fields) -> Result<Schema, Refusal> {
    let field = "response_format.json_schema".to_owned();
    let missing = |field: &str| Refusal::field(field, "missing", "`{\"name\": …, \"schema\": {…}}`");
    let mut described = format.object("json_schema")?.ok_or_else(|| missing(&field))?;
    let field = format!("{field}.schema");
    let value = described.take("schema").ok_or_else(|| missing(&field))?;
    // Answers are kept to it in any case, and its name is for people.
    described.flag("strict")?;
    described.forget(&["name", "description"]);
    described.finish()?;
    Ok(Schema { value, field })
}
