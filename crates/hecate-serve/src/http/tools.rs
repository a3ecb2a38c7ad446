//! `tools` and `tool_choice`: functions that a model may call, and whether it has to.
//!
//! A template tells the model of them, and it writes a call or not. Where a call is asked for, the answer is kept to a schema of
//! calls instead: that needs neither a template that knows tools nor a model that was taught them.

use super::{
    App,
    format::{Schema, Shape},
};
use crate::{
    fields::{Fields, shown},
    refusal::Refusal,
    template::Message,
};
use serde_json::{Map, Value, json};

/// Most tools of a request, as OpenAI has it.
const TOOLS: usize = 128;
/// Most letters of a function's name, as OpenAI has it.
const NAME: usize = 64;
/// What calls are written after in the form that is read, and what ends one.
pub(super) const OPENS: &str = "<tool_call>";
pub(super) const CLOSES: &str = "</tool_call>";
/// What templates tell of another form, whose calls are written in tags of their own.
const TAGS: &str = "<function=";

/// Whether an answer is to be a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// As the model likes.
    Auto,
    /// It is one.
    Required,
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// As OpenAI describes them.
    all: Vec<Value>,
    /// Names of those that may be called, with schemas of their arguments.
    functions: Vec<(String, Value)>,
    pub(super) choice: Choice,
}

/// Tools that may be called; none where there are none, or the request chooses none.
///
/// # Errors
/// 400 for what describes no function, and for a choice that is not known.
pub(super) fn tools(fields: &mut Fields, shape: Shape) -> Result<Option<Tools>, Refusal> {
    let mut all = fields.list("tools")?.unwrap_or_default();
    // Who allows one call at a time gets one where it is required, and asks the model otherwise.
    fields.flag("parallel_tool_calls")?;
    if all.len() > TOOLS {
        return Err(Refusal::field("tools", format!("{} tools", all.len()), format!("up to {TOOLS}")));
    }
    let functions = all.iter().enumerate().map(|(i, tool)| function(&format!("tools[{i}]"), tool, shape));
    let mut functions = functions.collect::<Result<Vec<_>, _>>()?;
    for (i, (name, _)) in functions.iter().enumerate() {
        if functions[..i].iter().any(|(other, _)| other == name) {
            return Err(Refusal::field("tools", format!("two of the name `{name}`"), "one of each name"));
        }
    }
    let choice = match fields.take("tool_choice") {
        None => Choice::Auto,
        Some(Value::String(choice)) if choice == "auto" => Choice::Auto,
        Some(Value::String(choice)) if choice == "none" => return Ok(None),
        Some(choice) => {
            let known = chosen(&choice, &functions, shape);
            functions = known.ok_or_else(|| {
                let expected = "`none`, `auto`, `required`, or the name of one of `tools`";
                Refusal::field("tool_choice", shown(&choice), expected)
            })?;
            Choice::Required
        }
    };
    // Templates know one form.
    if shape == Shape::Flat {
        all.iter_mut().for_each(nest);
    }
    Ok(if functions.is_empty() { None } else { Some(Tools { all, functions, choice }) })
}

/// The functions of which one has to be called: all, or the one that is named.
fn chosen(choice: &Value, functions: &[(String, Value)], shape: Shape) -> Option<Vec<(String, Value)>> {
    if choice == "required" {
        return Some(functions.to_vec()).filter(|functions| !functions.is_empty());
    }
    let described = if shape == Shape::Flat { Some(choice) } else { choice.get("function") };
    let name = described.filter(|_| choice["type"] == "function")?.get("name")?;
    functions.iter().find(|(other, _)| name == other).map(|found| vec![found.clone()])
}

/// Has a tool its function in an object of its own, as templates are told it.
fn nest(tool: &mut Value) {
    let fields = tool.as_object().into_iter().flatten().filter(|(name, _)| *name != "type");
    let function: Map<_, _> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    *tool = json!({"type": "function", "function": function});
}

/// The name of a function, and a schema of its arguments, which are an object.
fn function(whole: &str, tool: &Value, shape: Shape) -> Result<(String, Value), Refusal> {
    let refuse = |field: &str, found: &Value, expected: &str| Err(Refusal::field(field, shown(found), expected));
    let (described, field, expected) = match shape {
        Shape::Nested => {
            (&tool["function"], format!("{whole}.function"), "`{\"type\": \"function\", \"function\": {…}}`")
        }
        Shape::Flat => (tool, whole.to_owned(), "`{\"type\": \"function\", \"name\": …, \"parameters\": {…}}`"),
    };
    if tool["type"] != "function" || !described.is_object() {
        return refuse(whole, tool, expected);
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let is_name = |name: &&str| (1..=NAME).contains(&name.len()) && name.bytes().all(is_letter);
    let Some(name) = described["name"].as_str().filter(is_name) else {
        let expected = format!("1 to {NAME} letters of `a-z`, `A-Z`, `0-9`, `_` and `-`");
        return refuse(&format!("{field}.name"), &described["name"], &expected);
    };
    let mut parameters = match &described["parameters"] {
        // A function without arguments.
        Value::Null => Map::from_iter([("additionalProperties".to_owned(), false.into())]),
        Value::Object(parameters) => parameters.clone(),
        other => return refuse(&format!("{field}.parameters"), other, "a JSON schema: an object"),
    };
    let kind = parameters.entry("type").or_insert_with(|| "object".into());
    if kind != "object" {
        return refuse(&format!("{field}.parameters.type"), kind, "`object`");
    }
    Ok((name.to_owned(), Value::Object(parameters)))
}

impl Tools {
    /// The text that a model continues with an answer to these messages, or with a call.
    ///
    /// # Errors
    /// 400 where the model may call or not, and its template does not tell it of tools or has calls in a form that is not read.
    pub(super) fn prompt(&self, app: &App, messages: &[Message]) -> Result<String, Refusal> {
        let template = &*app.template;
        let (told, untold) = (template.render(messages, &self.all), template.render(messages, &[]));
        let way_out = "leave `tools` out, or ask for a call by `tool_choice`";
        let is_read = self.are_read(app);
        match (told, untold, self.choice) {
            // After its opening the model goes on as it was taught.
            (Ok(told), Ok(untold), Choice::Required) if told != untold && is_read => Ok(told + OPENS + "\n"),
            (Ok(told), _, Choice::Required) => Ok(told),
            (Err(_), untold, Choice::Required) => untold.map_err(Refusal::request),
            (Ok(told), Ok(untold), Choice::Auto) if told == untold => {
                Err(Refusal::request(format!("the model's chat template tells it of no tools; {way_out}")))
            }
            (Ok(told), _, Choice::Auto) if is_read => Ok(told),
            (Ok(_), _, Choice::Auto) => {
                let form = format!("in another form than {OPENS} with JSON in it, or its tag is a token without text");
                Err(Refusal::request(format!("the model was taught calls {form}, which is not read; {way_out}")))
            }
            (Err(why), _, Choice::Auto) => Err(Refusal::request(why)),
        }
    }

    /// Whether calls of the model are in the form that is read, as far as its template and its tokens tell.
    ///
    /// The conversation is another one, in which nobody writes of tags.
    fn are_read(&self, app: &App) -> bool {
        let asks = Message { role: "user".to_owned(), content: "?".to_owned(), ..Message::default() };
        let is_told = |text: String| text.contains(OPENS) && !text.contains(TAGS);
        // Special tokens have no text, so that their tags would be missing in the answer.
        let shown = app.vocabulary.encode(OPENS).and_then(|tokens| app.vocabulary.decode(&tokens));
        app.template.render(&[asks], &self.all).is_ok_and(is_told) && shown.is_ok_and(|text| text.contains(OPENS))
    }

    /// What an answer is kept to that has to be a call: an object with the function's `name` and its `arguments`.
    pub(super) fn schema(&self) -> Schema {
        // Each function's schema is a definition, so that what refers to its own parts has a place.
        let definitions = self.functions.iter().map(|(name, parameters)| {
            let mut parameters = parameters.clone();
            moved(&mut parameters, name);
            (name.clone(), parameters)
        });
        let definitions: Map<_, _> = definitions.collect();
        let call = |(name, _): &(String, Value)| {
            let properties = json!({"name": {"const": name}, "arguments": {"$ref": format!("#/$defs/{name}")}});
            json!({"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": false})
        };
        let calls: Vec<_> = self.functions.iter().map(call).collect();
        // Definitions come first: what is refused in one is told with its place there, not where it is referred to.
        Schema { value: json!({"$defs": definitions, "anyOf": calls}), field: "tools".to_owned() }
    }

    /// Whether there is such a function, and it may be called.
    pub(super) fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|(known, _)| known == name)
    }
}

/// Has a schema that became a definition of this name refer to its own parts where they are now.
fn moved(schema: &mut Value, name: &str) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(|part| moved(part, name)),
        Value::Object(fields) => {
            for (field, part) in fields {
                match part {
                    Value::String(way) if field == "$ref" && way.starts_with('#') => {
                        let rest = way[1..].trim_end_matches('/').to_owned();
                        *way = format!("#/$defs/{name}{rest}");
                    }
                    part => moved(part, name),
                }
            }
        }
        _ => {}
    }
}
