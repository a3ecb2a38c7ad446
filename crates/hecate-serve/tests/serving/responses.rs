//! `/v1/responses`: the same texts and calls as those of `/v1/chat/completions`, in another form.

use super::{
    harness::{Server, with},
    tools::{Keeping, conversation, tools, writing},
};
use hecate_serve::{Limits, Message, Settings};
use serde_json::{Value, json};
use std::time::Duration;

/// A question, with a seed.
/// Fields that tests add come over these.
fn asks() -> Value {
    json!({"input": "Rain?", "seed": 3, "max_output_tokens": 40})
}

/// The tools of the other tests in the form of this address, whose functions are beside `type`.
fn flat() -> Value {
    let flat = |tool: &Value| with(json!({"type": "function"}), tool["function"].clone());
    tools().as_array().unwrap().iter().map(flat).collect()
}

/// The only message of a response, as its text.
///
/// A message has one part, whatever it says.
fn text(response: &Value) -> &str {
    let output = response["output"].as_array().unwrap();
    assert!(output.len() == 1 && output[0]["type"] == "message", "{response}");
    output[0]["content"][0]["text"].as_str().unwrap()
}

/// These fields are there, with these values.
fn has(found: &Value, expected: Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&found[name], value, "{name} of {found}");
    }
}

/// Names of events with their values, each of which has its name and its number too; the last one's response.
fn events(server: &Server, body: &Value) -> (Vec<(String, Value)>, Value) {
    let mut reply = server.post("/v1/responses", &with(body.clone(), json!({"stream": true})));
    assert!(reply.status == 200 && reply.head.contains("text/event-stream"), "{}", reply.head);
    // There is no last word on the wire: the connection ends.
    let mut all = Vec::new();
    while let Some(data) = reply.event() {
        let value: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(value["sequence_number"], all.len(), "{value}");
        all.push((value["type"].as_str().unwrap().to_owned(), value));
    }
    let last = all.last().unwrap().1["response"].clone();
    (all, last)
}

/// The same without what is drawn anew each time: ids and times.
///
/// All else of two answers with one seed is equal.
fn lasting(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            ["id", "call_id", "item_id", "created_at"].iter().for_each(|name| drop(fields.remove(*name)));
            fields.iter_mut().for_each(|(_, value)| *value = lasting(value.take()));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| *value = lasting(value.take())),
        _ => {}
    }
    value
}

/// With the same seed; fields of the request are said once more.
#[test]
fn a_response_is_the_text_of_a_conversation() {
    let server = Server::start(Settings::default());
    // Instructions are a message of the system's before all others.
    let messages = json!([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Rain?"}]);
    let chat = json!({"messages": messages, "seed": 3, "max_tokens": 40});
    let expected = server.post("/v1/chat/completions", &chat).succeeded();
    let more = json!({"instructions": "Be short.", "metadata": {"a": "b"}, "model": "tiny", "store": false, "truncation": "disabled"});
    let response = server.post("/v1/responses", &with(asks(), more)).succeeded();
    assert_eq!(text(&response), expected["choices"][0]["message"]["content"]);
    let usage = &expected["usage"];
    let read = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(response["usage"]["input_tokens"], read);
    // The same prompt was read before.
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], read);
    has(&response["usage"], json!({"output_tokens": 40, "total_tokens": usage["total_tokens"]}));
    // What was asked for is told, and what was not has its default.
    has(
        &response,
        json!({"object": "response", "model": "tiny", "error": null, "instructions": "Be short.", "metadata": {"a": "b"}}),
    );
    has(
        &response,
        json!({"tools": [], "tool_choice": "auto", "temperature": 1.0, "text": {"format": {"type": "text"}}}),
    );
    // A model without an end token writes as much as it may.
    has(&response, json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}));
    assert_eq!(response["output"][0]["status"], "incomplete");
    for (prefix, id) in [("resp_", &response["id"]), ("msg_", &response["output"][0]["id"])] {
        assert!(id.as_str().is_some_and(|id| id.starts_with(prefix)), "{response}");
    }
}

/// Events tell one after another what the whole answer has at once.
#[test]
fn a_stream_tells_each_step() {
    let server = Server::start(Settings::default());
    // Both have the same seed.
    let whole = server.post("/v1/responses", &asks()).succeeded();
    let (events, last) = events(&server, &asks());
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).filter(|name| !name.ends_with("delta")).collect();
    let (begins, ends) =
        ("created in_progress output_item.added content_part.added", "output_text.done content_part.done");
    let expected = format!("{begins} {ends} output_item.done incomplete");
    assert_eq!(names, expected.split(' ').map(|name| format!("response.{name}")).collect::<Vec<_>>());
    let deltas: String = events
        .iter()
        .filter(|(name, _)| name == "response.output_text.delta")
        .map(|(_, value)| value["delta"].as_str().unwrap())
        .collect();
    // Parts together are the text, and none is told twice.
    assert_eq!(deltas, text(&whole));
    // The first event has a response in which nothing was said yet.
    let [created, ..] = &events[..] else { panic!("no event") };
    assert_eq!(
        (&created.1["response"]["status"], &created.1["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    assert_eq!(created.1["response"]["id"], last["id"]);
    // All of a prompt is read at the second time, and none of it at the first.
    let usage = json!({"usage": null});
    assert_eq!(lasting(with(last.clone(), usage.clone())), lasting(with(whole, usage)));
    // Parts name the item that they are of.
    let item = &last["output"][0]["id"];
    for (name, value) in &events {
        let of = value.get("item_id").or(value["item"].get("id"));
        assert!(of.is_none_or(|of| of == item), "{name}: {value}");
    }
    // All but the first two, the item's own two, and the last.
    assert_eq!(events.iter().filter(|(_, value)| value.get("item_id").is_some()).count(), events.len() - 5);
}

/// Whoever reads a stream is told in its last event; without one a status says so.
#[test]
fn what_takes_too_long_fails() {
    let limits = Limits { tokens: 1 << 20, longest: Duration::from_secs(1), ..Limits::default() };
    let server = Server::start(Settings { limits, ..Settings::default() });
    let (events, last) = events(&server, &json!({"input": "Rain?"}));
    assert_eq!(events.last().unwrap().0, "response.failed");
    has(&last, json!({"status": "failed", "output": [], "usage": null, "incomplete_details": null}));
    has(&last["error"], json!({"code": "server_error"}));
    assert!(last["error"]["message"].as_str().unwrap().contains("not done within"), "{last}");
    // Nothing was sent yet, so nothing of the text is told.
    // The same refusal is one of completions.
    server.post("/v1/responses", &json!({"input": "Rain?"})).refused(504);
}

/// Names of events stand before them, for clients that listen to some.
#[test]
fn events_have_their_names_on_the_wire() {
    let server = Server::start(Settings::default());
    let body = server.post("/v1/responses", &with(asks(), json!({"stream": true}))).body();
    // An event is two lines, and an empty one ends it.
    let mut count = 0;
    for event in body.split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        assert_eq!(serde_json::from_str::<Value>(data).unwrap()["type"], name, "{event}");
        count += 1;
    }
    assert!(count > 10, "{body}");
}

/// A schema has a place of its own here, and the answer is complete where its JSON is.
#[test]
fn a_response_is_kept_to_a_schema() {
    let server = Server::start(Settings::default());
    let schema = json!({"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"], "additionalProperties": false});
    for (format, is_right) in [
        (
            json!({"type": "json_schema", "name": "a", "strict": true, "schema": schema}),
            (|value| value["rain"].is_boolean()) as fn(&Value) -> bool,
        ),
        (json!({"type": "json_object"}), Value::is_object),
    ] {
        // Enough for the JSON to end by itself.
        let body = json!({"text": {"format": format}, "max_output_tokens": 2000, "temperature": 0.6});
        let response = server.post("/v1/responses", &with(asks(), body)).succeeded();
        let value: Value = serde_json::from_str(text(&response)).unwrap_or_else(|why| panic!("{why}: {response}"));
        assert!(is_right(&value), "{response}");
        assert_eq!((&response["status"], &response["incomplete_details"]), (&json!("completed"), &Value::Null));
        assert_eq!(response["text"], json!({"format": format}));
    }
}

/// What a model says comes as a message, and each call as an item of its own.
#[test]
fn calls_are_items() {
    let pieces = [
        "Let me look.<tool",
        "_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}",
        "</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
    ];
    let Some((server, mut fields)) = writing(&pieces) else { return };
    // The same field has another name here.
    let most = fields.as_object_mut().unwrap().remove("max_tokens").unwrap();
    let body = with(with(json!({"input": "Rain?", "tools": flat(), "max_output_tokens": most}), fields), json!({}));
    let response = server.post("/v1/responses", &body).succeeded();
    let (events, last) = events(&server, &body);
    let usage = json!({"usage": null});
    assert_eq!(lasting(with(last, usage.clone())), lasting(with(response.clone(), usage)));
    let output = response["output"].as_array().unwrap();
    // Text comes first, then calls in their order.
    let kinds: Vec<_> =
        output.iter().map(|item| (item["type"].as_str().unwrap(), item["status"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("message", "completed"), ("function_call", "completed"), ("function_call", "completed")]);
    assert_eq!(output[0]["content"][0]["text"], "Let me look.");
    assert_eq!((&output[1]["name"], &output[1]["arguments"]), (&json!("weather"), &json!("{\"city\":\"Bern\"}")));
    assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("now"), &json!("{}")));
    assert!(
        output[1]["call_id"].as_str().unwrap().starts_with("call_") && output[1]["call_id"] != output[2]["call_id"]
    );
    assert_eq!((&response["status"], &response["tools"]), (&json!("completed"), &flat()));
    // A stream tells arguments by the number of their item.
    let done = events.iter().filter(|(name, _)| name == "response.function_call_arguments.done");
    let done: Vec<_> = done.map(|(_, value)| (&value["output_index"], &value["arguments"])).collect();
    assert_eq!(done, [(&json!(1), &output[1]["arguments"]), (&json!(2), &output[2]["arguments"])]);
    // A call that is required is all that there is, and no empty message comes before it.
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let body =
            json!({"input": "Rain?", "tools": flat(), "tool_choice": choice, "seed": 1, "max_output_tokens": 1000});
        let response = server.post("/v1/responses", &body).succeeded();
        let output = response["output"].as_array().unwrap();
        assert!(output.len() == 1 && output[0]["type"] == "function_call", "{response}");
        assert!(choice == "required" || output[0]["name"] == "weather", "{response}");
    }
}

/// Items of a response are put into the next request, as the official client does, with what the tools gave.
#[test]
fn items_become_the_messages_of_a_conversation() {
    let Some(template) = Keeping::new() else { return };
    let Some(server) = Server::of_pieces(0, &[], template.clone()) else { return };
    // As a response has it, with an id and a status of its own.
    let call = |id: &str, city: &str| {
        let arguments = format!("{{\"days\": 2, \"city\": \"{city}\"}}");
        json!({"type": "function_call", "id": "fc_1", "status": "completed", "call_id": id, "name": "weather", "arguments": arguments})
    };
    let gave = json!({"type": "function_call_output", "call_id": "call_1", "output": "dry"});
    let input = json!([{"role": "user", "content": "Rain?"}, call("call_1", "Ulm"), gave]);
    server.post("/v1/responses", &json!({"input": input, "tools": flat(), "max_output_tokens": 1})).succeeded();
    // The same as of a conversation; the first time with the tools.
    let told = template.told.lock().unwrap().remove(0);
    assert_eq!(told, (conversation(), tools().as_array().unwrap().clone()));
    // Calls belong to what was said before them, and several are of one message.
    let said = json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}]});
    let input = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rain?"}]}, said,
        call("call_1", "Ulm"), call("call_2", "Bern"), gave]);
    template.told.lock().unwrap().clear();
    server
        .post("/v1/responses", &json!({"input": input, "instructions": "Be short.", "max_output_tokens": 1}))
        .succeeded();
    let (told, _) = template.told.lock().unwrap().remove(0);
    let says = |message: &Message| (message.role.clone(), message.content.clone(), message.calls.len());
    let expected =
        [("system", "Be short.", 0), ("user", "Rain?", 0), ("assistant", "Let me look.", 2), ("tool", "dry", 0)];
    assert_eq!(
        told.iter().map(says).collect::<Vec<_>>(),
        expected.map(|(role, said, calls)| (role.to_owned(), said.to_owned(), calls))
    );
}

/// Each with the field that is wrong, and what is kept nowhere with the way out.
#[test]
fn what_is_not_understood_is_refused_by_its_field() {
    let server = Server::start(Settings { limits: Limits { tokens: 50, ..Limits::default() }, ..Settings::default() });
    // A message that is right, and an item that is not.
    let items = |more: Value| json!({"input": [{"role": "user", "content": "a"}, more]});
    for (more, expected) in [
        // What is kept nowhere.
        (json!({"previous_response_id": "resp_1"}), &["`previous_response_id`", "whole conversation"][..]),
        (json!({"conversation": {"id": "c"}}), &["`conversation`", "whole conversation"]),
        (json!({"session": "a"}), &["`session`", "/v1/completions"]),
        (json!({"store": true}), &["`store`"]),
        // What would change the answer, or how it is told.
        (json!({"background": true}), &["`background`"]),
        (json!({"include": ["reasoning.encrypted_content"]}), &["`include`"]),
        (json!({"reasoning": {"effort": "low"}}), &["`reasoning`"]),
        (json!({"truncation": "auto"}), &["`truncation`"]),
        (json!({"n": 2}), &["`n`"]),
        // Names that other addresses have for the same.
        (json!({"max_tokens": 5}), &["`max_tokens`"]),
        (json!({"max_output_tokens": 51}), &["`max_output_tokens` is 51"]),
        (json!({"messages": []}), &["`messages`"]),
        (json!({"response_format": {"type": "json_object"}}), &["`response_format`", "`text.format`"]),
        // What the text is to be.
        (json!({"text": {"format": {"type": "xml"}}}), &["`text.format.type`"]),
        (json!({"text": {"format": {"type": "json_schema", "name": "a"}}}), &["`text.format.schema` is missing"]),
        (json!({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}), &["`text.format.schema`", "not"]),
        (json!({"text": {"verbosity": "low"}}), &["`verbosity`"]),
        // Functions, which have their fields beside `type`.
        (json!({"tools": [{"type": "web_search"}]}), &["`tools[0]`"]),
        (json!({"tools": [{"type": "function", "function": {"name": "a"}}]}), &["`tools[0].name`"]),
        (json!({"tools": flat(), "tool_choice": {"type": "function", "name": "b"}}), &["`tool_choice`"]),
        // Who says nothing, and who says it in another form.
        (json!({"input": null}), &["`input` is missing"]),
        (json!({"input": []}), &["`input`"]),
        (json!({"input": 5}), &["`input` is 5"]),
        (json!({"instructions": ["a"]}), &["`instructions`"]),
        (items(json!(7)), &["`input[1]`"]),
        // Items of other types.
        (items(json!({"type": "reasoning", "summary": []})), &["`input[1]`", "function_call_output"]),
        // Messages.
        (items(json!({"role": "user"})), &["`input[1]`", "`content`"]),
        (items(json!({"role": "a\nb", "content": "c"})), &["`input[1]`", "`role`"]),
        (items(json!({"role": "user", "content": [{"type": "input_image"}]})), &["`input[1]`"]),
        (items(json!({"role": "user", "content": "a", "name": "b"})), &["`input[1].name`"]),
        (
            items(json!({"type": "function_call", "call_id": "1", "name": "a", "arguments": {}})),
            &["`input[1]`", "`arguments`"],
        ),
        (items(json!({"type": "function_call_output", "output": "a"})), &["`input[1]`", "`call_id`"]),
    ] {
        let refused = server.post("/v1/responses", &with(asks(), more.clone())).refused(400);
        assert!(expected.iter().all(|part| refused.contains(part)), "{more} got {refused}");
    }
    // What is not there: another model, and a response that was not kept.
    server.post("/v1/responses", &with(asks(), json!({"model": "other"}))).refused(404);
    server.get("/v1/responses/resp_1").refused(404);
}
