//! Answers that are kept to a schema, by models that have learned nothing: whatever the weights are, the answer is one.
//!
//! What a schema asks for is written once more beside it, as a check of the parsed answer that knows nothing of schemas.

use super::harness::{Server, asked, expected, sampling, with};
use hecate_serve::{Plain, Settings};
use serde_json::{Value, json};
use std::{sync::Arc, thread, time::Instant};

/// Whether an answer is what its schema asks for.
type Check = fn(&Value) -> bool;

/// Names in their order, which is that of the schema.
fn names(value: &Value) -> Vec<&str> {
    value.as_object().map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default()
}

/// The first of the schemas: a text by its characters, a whole number, one of three texts, and a flag.
fn is_person(value: &Value) -> bool {
    let age = value["age"].as_f64().filter(|age| age.fract() == 0.0 && (0.0..=150.0).contains(age));
    names(value) == ["name", "age", "kind", "on"]
        && value["name"].as_str().is_some_and(|name| name.chars().count() <= 8)
        && age.is_some()
        && ["a", "bc", "ü"].iter().any(|kind| value["kind"] == *kind)
        && value["on"].is_boolean()
}

/// The second: one to three points, whose numbers have a bound and a step.
/// Points and numbers are definitions that others refer to.
fn is_path(value: &Value) -> bool {
    let is_number = |x: &Value| x.as_f64().is_some_and(|x| (-2.0..=2.0).contains(&x));
    let is_point = |point: &Value| names(point) == ["x", "y"] && is_number(&point["x"]) && is_number(&point["y"]);
    let points = value["points"].as_array().filter(|points| (1..=3).contains(&points.len()));
    names(value) == ["points"] && points.is_some_and(|points| points.iter().all(is_point))
}

/// The third: a value of three kinds, none of them an object.
fn is_choice(value: &Value) -> bool {
    value.is_null() || value == 7 || value.as_array().is_some_and(|list| *list == [json!(true), json!("z")])
}

/// Schemas that every answer to is short, with checks of their answers.
fn schemas() -> Vec<(Value, Check)> {
    let point = json!({"type": "object", "additionalProperties": false, "required": ["x", "y"], "properties": {
        "x": {"$ref": "#/$defs/number"}, "y": {"$ref": "#/$defs/number"}}});
    let number = json!({"type": "number", "minimum": -2, "maximum": 2, "multipleOf": 0.25});
    vec![
        (
            json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "kind", "on"], "properties": {
                "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "kind": {"enum": ["a", "bc", "ü"]}, "on": {"type": "boolean"}}}),
            is_person,
        ),
        (
            json!({"type": "object", "additionalProperties": false, "required": ["points"],
                "$defs": {"point": point, "number": number},
                "properties": {"points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 3}}}),
            is_path,
        ),
        (json!({"anyOf": [{"type": "null"}, {"const": 7}, {"const": [true, "z"]}]}), is_choice),
    ]
}

/// A request's field that asks for this schema.
/// Names and `strict` are as the official client sends them.
fn format(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}}})
}

/// A server of a model with a tokenizer of all bytes, and of pieces that JSON is written with; none in a build that reads none.
///
/// Pieces go from one part of an answer to another, and one is half a character.
fn with_tokenizer(seed: u64) -> Option<Server> {
    let pieces: [&[u8]; 9] =
        [b"{\"", b"\":", b"\",\"", b"\"}", b"name", b"true}", b" \"", b"0, ", &"aü".as_bytes()[..2]];
    Server::of_pieces(seed, &pieces, Arc::new(Plain))
}

/// With and without an end token, of bytes and of pieces, drawn in several ways, at once and token by token.
#[test]
fn every_answer_is_one_of_its_schema() {
    let mut count = 0;
    for seed in 0..2 {
        let bytes = [Vec::new(), vec![u32::from(b'~')]].map(|ends| Some(Server::of(seed, ends, Settings::default())));
        for (server, (schema, is_right)) in
            bytes.into_iter().chain([with_tokenizer(seed)]).flatten().flat_map(|server| {
                let server = Arc::new(server);
                schemas().into_iter().map(move |schema| (Arc::clone(&server), schema))
            })
        {
            for drawn in [
                json!({}),
                json!({"temperature": 0}),
                json!({"temperature": 8, "top_k": 5, "frequency_penalty": 2}),
                json!({"repetition_penalty": 50, "logit_bias": {"32": 100, "34": -100}, "logprobs": 0}),
            ] {
                let body = with(with(asked("to be", 1000, seed), format(&schema)), drawn.clone());
                let answer = server.post("/v1/completions", &body).succeeded();
                let choice = &answer["choices"][0];
                // Enough tokens for the longest of all answers, so that none is cut short.
                let (text, told) = (choice["text"].as_str().unwrap(), format!("{schema} {drawn} {choice}"));
                assert_eq!(choice["finish_reason"], "stop", "{told}");
                assert!(is_right(&serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {told}"))), "{told}");
                assert_eq!(text.trim(), text, "{told}");
                // The seed is the same, and so is the text.
                let (streamed, _) = server.post("/v1/completions", &with(body, json!({"stream": true}))).texts();
                assert_eq!(streamed, [(text.to_owned(), "stop".to_owned())], "{told}");
                count += 1;
            }
        }
    }
    assert!(count >= 48, "only {count} answers");
}

/// Several texts of a request are kept to it each by itself, also beside others that are not.
#[test]
fn continuations_and_conversations_are_kept_to_it_too() {
    let server = Server::start(Settings::default());
    let (schema, is_right) = schemas().remove(0);
    let messages = json!({"messages": [{"role": "user", "content": "hi"}], "n": 4, "seed": 3, "max_tokens": 1000});
    // A text beside them is drawn from all tokens, as if it were alone.
    let free = thread::scope(|scope| {
        let free = scope.spawn(|| server.complete(&asked("to be", 200, 1)));
        let answer = server.post("/v1/chat/completions", &with(messages, format(&schema))).succeeded();
        let texts: Vec<_> = (0..4).map(|i| answer["choices"][i]["message"]["content"].as_str().unwrap()).collect();
        for text in &texts {
            assert!(is_right(&serde_json::from_str(text).unwrap()), "{text}");
        }
        assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
        free.join().unwrap()
    });
    assert_eq!(free, expected("to be", 200, sampling(1)));
}

/// Objects of any names and values: those that end are whole, and of the others each is the beginning of one.
#[test]
fn an_answer_that_is_cut_short_is_the_beginning_of_one() {
    let server = Server::start(Settings::default());
    let (mut whole, mut cut) = (0, 0);
    for seed in 0..40 {
        let format =
            json!({"response_format": {"type": "json_object"}, "max_tokens": 2 + seed * 8, "temperature": 0.5});
        let answer = server.post("/v1/completions", &with(asked("to be", 0, seed), format)).succeeded();
        let (text, reason) = (answer["choices"][0]["text"].as_str().unwrap(), &answer["choices"][0]["finish_reason"]);
        match serde_json::from_str::<Value>(text) {
            Ok(value) => {
                assert!(value.is_object() && reason == "stop", "{text}");
                whole += 1;
            }
            // Half a character at the end is shown as one that stands for it.
            Err(error) => {
                assert!(error.is_eof() && reason == "length", "{error}: {text}");
                cut += 1;
            }
        }
    }
    assert!(whole > 3 && cut > 3, "{whole} whole, {cut} cut short");
}

/// A session has read the answer, and a next one goes on by its own schema or by none.
#[test]
fn a_session_goes_on_after_an_answer() {
    let server = Server::start(Settings::default());
    server.post("/v1/sessions", &json!({"name": "tale"})).succeeded();
    let mut read = 0;
    for (seed, (schema, is_right)) in (0..).zip(schemas()) {
        let body = with(with(asked("to be", 1000, seed), format(&schema)), json!({"session": "tale"}));
        let answer = server.post("/v1/completions", &body).succeeded();
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(is_right(&serde_json::from_str(text).unwrap()), "{text}");
        read += answer["usage"]["total_tokens"].as_u64().unwrap();
        assert_eq!(server.get("/v1/sessions/tale").succeeded()["position"], read, "{answer}");
    }
    // Nothing is left of the schemas before.
    let free = server.complete(&with(asked("to be", 200, 1), json!({"session": "tale"})));
    assert!(serde_json::from_str::<Value>(&free).is_err(), "{free}");
}

/// What comes before a stop text is told, also where that is in the middle of an answer.
#[test]
fn a_stop_text_cuts_an_answer_short() {
    let server = Server::start(Settings::default());
    let (schema, _) = schemas().remove(0);
    let whole = server.complete(&with(asked("to be", 1000, 4), format(&schema)));
    for stop in ["\"age", "\":", "}"] {
        let body = with(with(asked("to be", 1000, 4), format(&schema)), json!({"stop": stop}));
        // The text up to there is the one of the same seed without a stop text.
        let (before, _) = whole.split_once(stop).unwrap();
        let answer = server.post("/v1/completions", &body).succeeded();
        assert_eq!(answer["choices"][0]["text"], before, "{stop} in {whole}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

/// A number may always go on, so that an end token ends it; without one the number of tokens does.
#[test]
fn an_end_token_comes_where_the_answer_is_complete_alone() {
    let schema = json!({"type": "integer", "minimum": 100, "maximum": 999_999_999});
    let mut ended = 0;
    for seed in 0..12 {
        // Three digits are enough for the end.
        let server = Server::of(seed, vec![u32::from(b'!'), u32::from(b'?')], Settings::default());
        // The end tokens are by far the likeliest.
        let liked = json!({"logit_bias": {"33": 100, "63": 100}});
        let answer =
            server.post("/v1/completions", &with(with(asked("a", 1000, seed), format(&schema)), liked)).succeeded();
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(text.len() == 3 && (100..1000).contains(&text.parse::<u64>().unwrap()), "{answer}");
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("stop"), &json!(4))
        );
        ended += 1;
    }
    assert_eq!(ended, 12);
    // It is also no part of a text: without its letter there is no answer.
    let server = Server::of(0, vec![u32::from(b'u')], Settings::default());
    let refused =
        server.post("/v1/completions", &with(asked("a", 10, 0), format(&json!({"const": true})))).refused(400);
    assert!(refused.contains("no token"), "{refused}");
}

/// What is not understood is told with the place where it is; what is too large is told before it takes time.
///
/// Each schema is beside the parts of a message that name the place and the reason.
#[test]
fn schemas_that_cannot_be_kept_to_are_refused_with_the_place() {
    let server = Server::start(Settings::default());
    let deep = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"not": {"type": "null"}}}}});
    let defined =
        json!({"$ref": "#/$defs/b", "$defs": {"b": {"type": "object", "properties": {"c": {"type": "word"}}}}});
    let broken = json!({"properties": {"a": {"type": "string", "pattern": "(("}}});
    for (schema, expected) in [
        (deep, &["schema.properties.a.items`", "not"][..]),
        (defined, &["schema.$defs.b.properties.c`", "word"]),
        (broken, &["schema.properties.a`", "(("]),
        // No text meets it.
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), &["schema`"]),
        (json!({"$ref": "https://example.com/schema"}), &["schema`", "example.com"]),
        (json!({"x-guidance": {"lenient": true}}), &["schema.x-guidance`"]),
        // What is looked at before any work.
        (json!({"title": "x".repeat(70_000)}), &["schema`", "65536"]),
        (json!(true), &["schema`", "object"]),
    ] {
        // Both addresses read the field in the same way.
        for path in ["/v1/completions", "/v1/chat/completions"] {
            let asks = if path == "/v1/completions" {
                asked("a", 10, 0)
            } else {
                json!({"messages": [{"role": "user", "content": "a"}]})
            };
            let refused = server.post(path, &with(asks, format(&schema))).refused(400);
            for part in expected {
                assert!(refused.contains(part), "{schema} got {refused}");
            }
        }
    }
    for (format, expected) in [
        (json!({"type": "xml"}), "response_format.type"),
        (json!({"type": "json_schema"}), "response_format.json_schema`"),
        (json!({"type": "json_schema", "json_schema": {"name": "a"}}), "json_schema.schema`"),
        (json!({"type": "json_object", "planet": 9}), "`planet`"),
    ] {
        // Before the schema: the format itself.
        let refused =
            server.post("/v1/completions", &with(asked("a", 1, 0), json!({"response_format": format}))).refused(400);
        assert!(refused.contains(expected), "{refused}");
    }
    // None of it is left behind.
    assert_eq!(server.metric("hecate_texts_running"), 0.0);
    assert!(!server.complete(&asked("to be", 20, 1)).is_empty());
}

/// Definitions that lead to one another for long, and that double with each step: an answer or a reason, in a short time.
#[test]
fn schemas_that_grow_are_bounded() {
    let server = Server::start(Settings::default());
    let chain = |link: fn(usize) -> Value, count| {
        let mut all: serde_json::Map<_, _> = (0..count).map(|i| (i.to_string(), link(i + 1))).collect();
        all.insert(count.to_string(), json!({"type": "null"}));
        json!({"$ref": "#/$defs/0", "$defs": all})
    };
    // As long as 64 KiB hold.
    let long = chain(|i| json!({"$ref": format!("#/$defs/{i}")}), 1500);
    let answer = server.complete(&with(asked("a", 10, 0), format(&long)));
    assert_eq!(answer, "null");
    // Written out it would have 2^40 parts.
    let double = chain(
        |i| {
            let next = json!({"$ref": format!("#/$defs/{i}")});
            json!({"type": ["object", "null"], "anyOf": [next, next], "properties": {"a": next, "b": next}})
        },
        40,
    );
    // Each level is a thousand times the one inside; lists cannot be written with so many parts either.
    let [endless, endless_list] = [
        json!({"type": "string", "pattern": "^(((a{1000}){1000}){1000}){1000}$"}),
        json!({"type": "array", "items": {"type": "array", "minItems": 1_000_000_000}, "minItems": 1_000_000_000}),
    ];
    let began = Instant::now();
    for schema in [double, endless, endless_list] {
        let status = server.post("/v1/completions", &with(asked("a", 5, 0), format(&schema))).status;
        assert!([200, 400].contains(&status), "{status} for {schema}");
    }
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
