//! Calls of tools: out of what a model writes, and into what it reads.
//!
//! Models here have learned nothing. One that calls a tool is made of a tokenizer's pieces, each of which it writes once, in the
//! order of their biases.

use super::harness::{Reply, Server, tokenizer, with};
use hecate_models::ChatTemplate;
use hecate_serve::{Call, Message, Settings, Template};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// A template that tells a model of tools, in the form of calls that is read.
///
/// A line end after a tag is none of the text, so those that are meant are written in words.
pub(crate) const HERMES: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools> Call: <tool_call>{…}</tool_call>{{ '\n' }}{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% for call in m.tool_calls %}<tool_call>{{ call.function.name }} {{ call.function.arguments.city }} {{ call.id }}</tool_call>\
    {% endfor %}{% if m.tool_call_id %} ({{ m.tool_call_id }}){% endif %}{{ '\n' }}{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

/// Two tools, as clients describe them.
pub(crate) fn tools() -> Value {
    let city = json!({"type": "string", "maxLength": 6});
    let weather = json!({"type": "object", "additionalProperties": false, "required": ["city", "days"], "properties": {
        "city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "$defs": {"city": city}});
    json!([
        {"type": "function", "function": {"name": "weather", "description": "It tells.", "parameters": weather}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

/// What a user asks, beside those tools.
/// Fields that tests add come over these.
fn asks() -> Value {
    json!({"messages": [{"role": "user", "content": "Rain?"}], "tools": tools()})
}

/// A template of this source; none in a build that reads none.
fn template(source: &str) -> Option<Arc<dyn Template>> {
    Some(Arc::new(ChatTemplate::new("template.jinja".as_ref(), source, &[]).ok()?))
}

/// A server of a model that writes these pieces and then ends, with the fields by which it does.
///
/// A bias leads to the first piece. Once it is drawn it is divided by far more than the next one's is smaller.
pub(crate) fn writing(pieces: &[&str]) -> Option<(Server, Value)> {
    let bytes: Vec<_> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    let server = Server::of_pieces(0, &bytes, template(HERMES)?)?;
    // The end token has the number after the last piece.
    let bias: serde_json::Map<_, _> =
        (0..=pieces.len()).map(|i| ((256 + i).to_string(), json!(100.0 - 2.0 * i as f64))).collect();
    Some((server, json!({"temperature": 0, "repetition_penalty": 1000, "logit_bias": bias, "max_tokens": 50})))
}

/// What the deltas of a stream's only choice are together: text, calls, and the reason of the end.
fn streamed(mut reply: Reply) -> (String, Vec<Value>, String) {
    let (mut text, mut calls, mut reason) = (String::new(), Vec::new(), String::new());
    while let Some(data) = reply.event().filter(|data| data != "[DONE]") {
        let choice = serde_json::from_str::<Value>(&data).unwrap()["choices"][0].clone();
        assert_eq!(reason, "", "nothing comes after the end");
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        calls.extend(choice["delta"]["tool_calls"].as_array().into_iter().flatten().cloned());
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    (text, calls, reason)
}

/// Names and arguments of calls in whatever form.
fn called(calls: &[Value]) -> Vec<(&str, &str)> {
    let function = |call: &'_ Value| {
        assert!(call["type"] == "function" && call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    };
    calls.iter().for_each(function);
    calls
        .iter()
        .map(|call| &call["function"])
        .map(|of| (of["name"].as_str().unwrap(), of["arguments"].as_str().unwrap()))
        .collect()
}

/// Tags and JSON come in any pieces, and what is said before them is shown.
///
/// Arguments are a text for clients, with names in the order in which the model wrote them.
#[test]
fn calls_that_a_model_writes_come_back_as_calls() {
    let pieces = [
        "Let me look.<to",
        "ol_call>\n{\"name\": \"weather\", ",
        "\"arguments\": {\"city\": \"Bern\", \"at\": 7}}\n</tool",
        "_call>\n",
        "<tool_call>{\"arguments\": {}, \"name\": \"now\"}</tool_call>",
    ];
    let Some((server, fields)) = writing(&pieces) else { return };
    let answer = server.post("/v1/chat/completions", &with(asks(), fields.clone())).succeeded();
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let expected = [("weather", r#"{"city":"Bern","at":7}"#), ("now", "{}")];
    assert_eq!(called(calls), expected);
    // What a tool gives is told by its call's id.
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("Let me look."), &json!("tool_calls"))
    );
    let reply = server.post("/v1/chat/completions", &with(with(asks(), fields.clone()), json!({"stream": true})));
    // A stream has the same text, calls and reason.
    let (text, calls, reason) = streamed(reply);
    assert_eq!((text.as_str(), called(&calls), reason.as_str()), ("Let me look.", expected.to_vec(), "tool_calls"));
    assert_eq!((&calls[0]["index"], &calls[1]["index"]), (&json!(0), &json!(1)));
    // Who has no tools, or wants none called, reads what the model writes.
    for more in [json!({"tools": []}), json!({"tool_choice": "none"})] {
        let answer = server.post("/v1/chat/completions", &with(with(asks(), fields.clone()), more)).succeeded();
        assert_eq!(answer["choices"][0]["message"]["content"], pieces.concat());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

/// Unknown functions, damaged JSON, a call that has no end, and text after one or between two.
///
/// Nothing that a model wrote is lost, whatever it meant by it.
#[test]
fn what_is_no_call_is_shown_as_it_is() {
    for pieces in [
        &["<tool_call>", "{\"name\": \"rain\", \"arguments\": {}}", "</tool_call>"][..],
        &["A <tool_call>", "{\"name\": \"now\", \"arguments\": [}", "</tool_call>"],
        &["<tool_call>", "{\"name\": \"now\", \"arguments\": \"{}\"}", "</tool_call>"],
        &["<tool_call>", "{\"name\": \"now\", \"arguments\": {}}"],
        &["<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", " and more"],
        &[
            "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            " or ",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        ],
        &["1 < 2 <<", "tool_", " <tool_cal"],
    ] {
        let Some((server, fields)) = writing(pieces) else { return };
        let body = with(asks(), fields);
        let answer = server.post("/v1/chat/completions", &body).succeeded();
        let message = &answer["choices"][0]["message"];
        assert_eq!((&message["content"], message.get("tool_calls")), (&json!(pieces.concat()), None), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let found = streamed(server.post("/v1/chat/completions", &with(body, json!({"stream": true}))));
        assert_eq!(found, (pieces.concat(), Vec::new(), "stop".to_owned()));
    }
}

/// A call that was cut short is none; one that is whole is, and the reason still says that more was to come.
#[test]
fn an_answer_that_is_cut_short_says_so() {
    let pieces = ["Oh <tool_call>", "{\"name\": \"now\", \"arguments\": {}}", "</tool_call>", "\n\n"];
    let Some((server, fields)) = writing(&pieces) else { return };
    for (tokens, content, calls) in [(2, pieces[..2].concat(), 0), (3, "Oh ".to_owned(), 1)] {
        let body = with(with(asks(), fields.clone()), json!({"max_tokens": tokens}));
        let answer = server.post("/v1/chat/completions", &body).succeeded();
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().map_or(0, Vec::len), calls, "{answer}");
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(content), &json!("length")));
    }
}

/// Whether it is a call of `weather` with arguments of its schema.
fn is_weather((name, arguments): (&str, &str)) -> bool {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let names: Vec<_> = arguments.as_object().unwrap().keys().collect();
    name == "weather"
        && names == ["city", "days"]
        && arguments["city"].as_str().is_some_and(|city| city.chars().count() <= 6)
        && arguments["days"].as_f64().is_some_and(|days| (1.0..=9.0).contains(&days))
}

/// Whatever a model has learned, with or without a template that knows tools.
///
/// The second model has pieces that reach over parts of a call: it is kept to the schema by its bytes.
#[test]
fn a_call_that_is_required_is_one() {
    let known =
        template(HERMES).and_then(|template| Server::of_pieces(0, &[b"{\"name\": \"", b"now\"", b"}}"], template));
    for server in [Some(Server::start(Settings::default())), known].into_iter().flatten() {
        let mut names = Vec::new();
        for seed in 0..8 {
            let named = json!({"type": "function", "function": {"name": "weather"}});
            for choice in [json!("required"), named] {
                let body = with(asks(), json!({"tool_choice": choice, "seed": seed, "n": 2, "max_tokens": 1000}));
                let answer = server.post("/v1/chat/completions", &body).succeeded();
                for i in 0..2 {
                    let found = &answer["choices"][i];
                    let calls = found["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
                    let calls = called(calls);
                    assert!(calls.len() == 1 && (calls == [("now", "{}")] || is_weather(calls[0])), "{calls:?}");
                    assert!(choice == "required" || calls[0].0 == "weather", "{calls:?}");
                    assert_eq!(
                        (&found["message"]["content"], &found["finish_reason"]),
                        (&Value::Null, &json!("tool_calls"))
                    );
                    names.push(calls[0].0.to_owned());
                }
                // The first text of several has the request's own seed.
                let body = with(body, json!({"stream": true, "n": 1}));
                let (text, calls, reason) = streamed(server.post("/v1/chat/completions", &body));
                assert_eq!((text.as_str(), reason.as_str()), ("", "tool_calls"));
                let whole = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
                assert_eq!(called(&calls), called(whole), "seed {seed}");
            }
        }
        // Both are called by some seed, or the test would say nothing of the choice.
        assert!(names.contains(&"now".to_owned()) && names.contains(&"weather".to_owned()), "{names:?}");
    }
}

/// A template that keeps what it was told.
pub(crate) struct Keeping {
    pub(crate) told: Mutex<Vec<(Vec<Message>, Vec<Value>)>>,
    template: Arc<dyn Template>,
}

impl Keeping {
    /// Before the first conversation; none in a build that reads no template.
    pub(crate) fn new() -> Option<Arc<Self>> {
        Some(Arc::new(Self { told: Mutex::default(), template: template(HERMES)? }))
    }
}

impl Template for Keeping {
    fn render(&self, messages: &[Message], tools: &[Value]) -> Result<String, String> {
        self.told.lock().unwrap().push((messages.to_vec(), tools.to_vec()));
        self.template.render(messages, tools)
    }
}

/// A question, a call, and what it gave.
/// The call's arguments are not in the order of their names.
pub(crate) fn conversation() -> Vec<Message> {
    let says = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
        ..Message::default()
    };
    let arguments = json!({"days": 2, "city": "Ulm"}).as_object().unwrap().clone();
    let call = Call { id: "call_1".to_owned(), name: "weather".to_owned(), arguments };
    vec![
        says("user", "Rain?"),
        Message { calls: vec![call], ..says("assistant", "") },
        Message { call_id: Some("call_1".to_owned()), ..says("tool", "dry") },
    ]
}

/// Tools, calls and what tools gave, as a template is told them and as that of a released model writes them.
#[test]
fn a_model_is_told_of_tools_and_of_calls_before() {
    let Some(template) = Keeping::new() else { return };
    let Some(server) = Server::of_pieces(0, &[], template.clone()) else { return };
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"days\": 2, \"city\": \"Ulm\"}"}});
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "dry"}]},
    ]);
    let answer = server.post("/v1/chat/completions", &json!({"messages": messages, "tools": tools()})).succeeded();
    // The first time with the tools, then without, to see whether that is another text.
    let told = template.told.lock().unwrap().clone();
    let tools = tools().as_array().unwrap().clone();
    assert_eq!(told[..2], [(conversation(), tools.clone()), (conversation(), Vec::new())]);
    let prompt = template.template.render(&conversation(), &tools).unwrap();
    let (described, rest) = prompt.strip_prefix("<tools>").unwrap().split_once("</tools>").unwrap();
    assert_eq!(serde_json::from_str::<Value>(described).unwrap(), Value::from(tools.clone()));
    let expected = " Call: <tool_call>{…}</tool_call>\nuser: Rain?\nassistant: <tool_call>weather Ulm call_1</tool_call>\n\
                    tool: dry (call_1)\nassistant: ";
    assert_eq!(rest, expected);
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    // A call that is required goes on where the model was taught to write one.
    let required = json!({"messages": messages, "tools": tools, "tool_choice": "required", "max_tokens": 1});
    let answer = server.post("/v1/chat/completions", &required).succeeded();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len() + "<tool_call>\n".len());
    // Who writes of tags changes nothing of how calls are read.
    let asks =
        json!({"messages": [{"role": "user", "content": "What is <function=a>?"}], "tools": tools, "max_tokens": 1});
    server.post("/v1/chat/completions", &asks).succeeded();
}

/// Each with the field that is wrong.
#[test]
fn tools_that_are_not_understood_are_refused_by_their_field() {
    let server = Server::start(Settings::default());
    // Parts of requests that are right but for what is added.
    let function = |more: Value| json!([{"type": "function", "function": with(json!({"name": "a"}), more)}]);
    let message = |more: Value| json!([{"role": "user", "content": "a"}, more]);
    let call =
        |arguments: &str| json!([{"id": "1", "type": "function", "function": {"name": "a", "arguments": arguments}}]);
    let required = json!({"tool_choice": "required"});
    for (more, expected) in [
        // Tools, each with its number.
        (json!({"tools": {"a": 1}}), "`tools`"),
        (json!({"tools": [{"type": "web_search"}]}), "`tools[0]`"),
        (json!({"tools": function(json!({"name": "a b"}))}), "`tools[0].function.name`"),
        (json!({"tools": function(json!({"name": "x".repeat(65)}))}), "`tools[0].function.name`"),
        (json!({"tools": function(json!({"parameters": []}))}), "`tools[0].function.parameters`"),
        (json!({"tools": function(json!({"parameters": {"type": "array"}}))}), "`tools[0].function.parameters.type`"),
        (json!({"tools": [tools()[1], tools()[1]]}), "two of the name `now`"),
        (json!({"tools": vec![tools()[1].clone(); 129]}), "129 tools"),
        // What is to be called.
        (json!({"tool_choice": "rain"}), "`tool_choice`"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "rain"}}}), "`tool_choice`"),
        (json!({"tools": [], "tool_choice": "required"}), "`tool_choice`"),
        (json!({"parallel_tool_calls": 1}), "`parallel_tool_calls`"),
        // This model's template knows no tools, so that it calls one only if it has to.
        (json!({}), "no tools"),
        (
            with(
                required.clone(),
                json!({"tools": function(json!({"parameters": {"properties": {"b": {"not": {}}}}}))}),
            ),
            "tools.$defs.a.properties.b`",
        ),
        (with(required, json!({"response_format": {"type": "json_object"}})), "`response_format`"),
        // Messages: one that says nothing and calls nothing, and fields that another role has.
        (json!({"messages": message(json!({"role": "assistant"}))}), "`messages[1]`"),
        (
            json!({"messages": message(json!({"role": "assistant", "tool_calls": call("{")}))}),
            "`messages[1].tool_calls`",
        ),
        (
            json!({"messages": message(json!({"role": "assistant", "tool_calls": call("[]")}))}),
            "`messages[1].tool_calls`",
        ),
        (
            json!({"messages": message(json!({"role": "user", "content": "", "tool_calls": call("{}")}))}),
            "`messages[1].tool_calls`",
        ),
        (
            json!({"messages": message(json!({"role": "user", "content": "", "tool_call_id": "1"}))}),
            "`messages[1].tool_call_id`",
        ),
        (
            json!({"messages": message(json!({"role": "tool", "content": "", "tool_call_id": 1}))}),
            "`messages[1].tool_call_id`",
        ),
    ] {
        let refused = server.post("/v1/chat/completions", &with(asks(), more.clone())).refused(400);
        assert!(refused.contains(expected), "{more} got {refused}");
    }
    // A tokenizer whose tag is a special token, which is no part of a text.
    let (file, end) = tokenizer(&[]);
    let file = file.replace("</s>", "<tool_call>");
    let Some(server) = template(HERMES).and_then(|template| Server::of_tokenizer(0, file, end, template)) else {
        return;
    };
    let refused = server.post("/v1/chat/completions", &asks()).refused(400);
    assert!(refused.contains("token without text"), "{refused}");
    // A template whose calls have another form, and one that says nothing of tools.
    let other = "{% if tools %}<tool_call><function=a></function></tool_call>{% endif %}{{ messages[0].content }}";
    for (source, expected) in [(other, "another form"), ("{{ messages[0].content }}", "tells it of no tools")] {
        let Some(server) = template(source).and_then(|template| Server::of_pieces(0, &[], template)) else { return };
        let refused = server.post("/v1/chat/completions", &asks()).refused(400);
        assert!(refused.contains(expected), "{refused}");
    }
}
