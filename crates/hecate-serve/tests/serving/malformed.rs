//! Requests that nobody should send.
//!
//! Damage is drawn with a seed, so what fails once fails again.

use super::harness::{Reply, Server, asked, with};
use hecate_models::Random;
use hecate_serve::{Limits, Settings};
use serde_json::{Value, json};
use std::{
    io::Write,
    net::{Shutdown, TcpStream},
    time::Duration,
};

/// A server whose texts are short, so that all that is asked for is done soon.
fn server() -> Server {
    let limits = Limits { tokens: 8, texts: 4, patience: Duration::from_secs(2), ..Limits::default() };
    Server::start(Settings { limits, ..Settings::default() })
}

/// Requests that are understood.
///
/// Together they have every field that is read, so that damage reaches each of them.
fn requests() -> Vec<(&'static str, Value)> {
    let options = json!({"n": 2, "stop": ["a", "bc"], "top_p": 0.5, "top_k": 3, "temperature": 0.9, "echo": true});
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": true,
        "logprobs": true, "top_logprobs": 2, "logit_bias": {"97": 1.5}, "presence_penalty": 0.5, "min_p": 0.1});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {
        "type": "object", "$defs": {"b": {"enum": ["x", 1]}}, "required": ["c"], "additionalProperties": false, "properties": {
            "c": {"type": "string", "pattern": "^(a|b){2,3}$", "maxLength": 5}, "d": {"$ref": "#/$defs/b"},
            "e": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]}}}}});
    let call = json!({"id": "1", "type": "function", "function": {"name": "a", "arguments": "{\"b\": 1}"}});
    // A call before, what it gave, and one that is required.
    let tools = json!({
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]}],
        "tools": [{"type": "function", "function": {"name": "a", "description": "c", "strict": true, "parameters": {
            "type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": false}}}],
        "tool_choice": {"type": "function", "function": {"name": "a"}}, "parallel_tool_calls": false, "max_tokens": 4});
    // Items of all types, and a schema in its other place.
    let responses = json!({
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "call_id": "1", "name": "a", "arguments": "{\"b\": 1}"},
            {"type": "function_call_output", "call_id": "1", "output": "2"}],
        "instructions": "short", "max_output_tokens": 3, "truncation": "disabled", "stream": true, "metadata": {"d": "e"},
        "text": {"format": {"type": "json_schema", "name": "f", "strict": true, "schema": {"enum": ["x", 1]}}},
        "tools": [{"type": "function", "name": "a", "parameters": {"properties": {}}}], "tool_choice": "none"});
    vec![
        ("/v1/completions", with(asked("to be", 3, 5), options)),
        ("/v1/completions", json!({"prompt": [[97, 98], [99]], "max_tokens": 2, "session": null})),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", tools),
        ("/v1/responses", responses),
        ("/v1/sessions", json!({"name": "abc"})),
        ("/v1/completions", with(asked("to be", 3, 5), json!({"session": "abc", "stream": true}))),
        ("/v1/completions", with(asked("to be", 3, 5), json!({"response_format": format}))),
    ]
}

/// The same bytes, a few of which are others, missing, or twice there.
///
/// Letters of JSON are put in more often than others: damage that is nearly right goes deeper.
fn mutated(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4).unwrap() {
        let at = random.below(bytes.len()).unwrap();
        match random.below(5).unwrap() {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] = b"0123456789{}[]\",:-+.eE\\/nulltrue"[random.below(32).unwrap()],
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, bytes[at]),
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// Whatever is answered is no failure of the server's.
/// A status of 5 would be a failure of the server, whatever was sent.
fn check(reply: Reply, sent: &[u8]) -> u16 {
    let (status, sent) = (reply.status, String::from_utf8_lossy(sent).into_owned());
    // No answer at all is one to bytes that are no request.
    assert!(status == 0 || (200..500).contains(&status), "{status} for {sent}");
    let is_json = reply.head.contains("content-type: application/json");
    let body = if status == 0 { String::new() } else { reply.body() };
    if status >= 400 && is_json {
        // A damaged body may end early: what is left is a request of its own, with an answer of its own.
        let mut answers = serde_json::Deserializer::from_str(&body).into_iter::<Value>();
        let value = answers.next().unwrap().unwrap();
        assert!(value["error"]["message"].as_str().is_some_and(|message| message.len() > 5), "{body} for {sent}");
    }
    status
}

/// Bodies alone are damaged, so that all of them reach the reading of fields.
#[test]
fn bodies_that_are_damaged_are_answered_with_a_reason() {
    let (server, mut random) = (server(), Random::new(1));
    let (mut taken, mut refused) = (0, 0);
    for i in 0..3000 {
        let (path, body) = &requests()[i % requests().len()];
        let body = mutated(&mut random, body.to_string().as_bytes());
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        write!(stream, "POST {path} HTTP/1.0\r\n{head}\r\n\r\n").unwrap();
        stream.write_all(&body).unwrap();
        let reply = Reply::read(stream);
        assert!(reply.status >= 400 || reply.status / 100 == 2, "{}", reply.status);
        if check(reply, &body) < 400 { taken += 1 } else { refused += 1 }
    }
    // Both happen, or the test would test nothing.
    assert!(taken > 30 && refused > 1000, "{taken} {refused}");
    server.complete(&asked("a", 1, 0));
}

/// Any byte of a request may be damaged, also in its head and in what says how long it is.
#[test]
fn bytes_that_are_no_request_end_nothing() {
    let (server, mut random) = (server(), Random::new(2));
    for i in 0..2000 {
        let (path, body) = &requests()[i % requests().len()];
        let body = body.to_string();
        let head = format!("Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        let whole = format!("POST {path} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n{body}");
        let sent = mutated(&mut random, whole.as_bytes());
        let mut stream = TcpStream::connect(server.address).unwrap();
        // The server may have answered and left already.
        let _ = stream.write_all(&sent);
        let _ = stream.shutdown(Shutdown::Write);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        check(Reply::read(stream), &sent);
    }
    server.complete(&asked("a", 1, 0));
}

/// What takes a parser's stack, a number's range, or a message's room.
#[test]
fn what_is_deep_long_or_large_is_refused() {
    let server = server();
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    let cases = [
        deep,
        String::new(),
        "[]".to_owned(),
        "null".to_owned(),
        "\u{feff}{}".to_owned(),
        "{\"prompt\": \"a\", \"temperature\": 1e999}".to_owned(),
        "{\"prompt\": \"a\", \"max_tokens\": 99999999999999999999999}".to_owned(),
        "{\"prompt\": \"\\ud800\"}".to_owned(),
        format!("{{\"{}\": 1, \"prompt\": \"a\"}}", "x".repeat(100_000)),
    ];
    for body in cases {
        let message = server.open("POST", "/v1/completions", "Content-Type: application/json\r\n", &body).refused(400);
        // Nothing of any length comes back.
        assert!(message.len() < 300, "{message}");
    }
    let long = format!("/v1/models/{}", "x".repeat(10_000));
    assert!(server.get(&long).refused(404).len() < 300);
}
