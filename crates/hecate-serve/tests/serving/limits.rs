//! What a server refuses, and what it lets go.
//!
//! A refusal is told by its status and by the part of its message that a client needs: the field, what was found, what is allowed.

use super::harness::{Server, asked, expected, sampling, with};
use hecate_serve::{Limits, Settings};
use serde_json::json;
use std::{
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

/// A server of these limits.
fn limited(limits: Limits) -> Server {
    Server::start(Settings { limits, ..Settings::default() })
}

/// A text that takes longer than any test.
/// A million tokens, which are told one by one.
fn endless() -> serde_json::Value {
    with(asked("ab", 1 << 20, 0), json!({"stream": true}))
}

/// Limits that let such a text run.
fn wide() -> Limits {
    Limits { tokens: 1 << 20, ..Limits::default() }
}

/// There is one place, so a text that went on unread would keep everybody out.
#[test]
fn a_reader_who_leaves_frees_the_place() {
    let server = limited(Limits { texts: 1, ..wide() });
    let mut stream = server.post("/v1/completions", &endless());
    assert!(stream.event().is_some());
    drop(stream);
    // The only place is free again, long before the text would have ended.
    assert_eq!(server.complete(&asked("ab", 5, 1)), expected("ab", 5, sampling(1)));
    assert_eq!(server.metric("hecate_texts_cancelled_total"), 1.0);
    // The same without a stream: nothing was answered yet.
    let body = asked("ab", 1 << 20, 0).to_string();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
    write!(stream, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n{body}").unwrap();
    server.wait_for("hecate_texts_running", 1.0);
    drop(stream);
    server.wait_for("hecate_texts_cancelled_total", 2.0);
    server.wait_for("hecate_texts_running", 0.0);
}

/// One text runs, one waits, and a third is told to come again; more than that nobody has to remember.
#[test]
fn a_full_server_says_when_to_come_again() {
    let server = limited(Limits { texts: 1, waiting: 1, ..wide() });
    let mut running = server.post("/v1/completions", &endless());
    assert!(running.event().is_some());
    // One waits, which has no answer yet.
    let body = endless().to_string();
    let mut waiting = TcpStream::connect(server.address).unwrap();
    let head = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
    write!(waiting, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n{body}").unwrap();
    server.wait_for("hecate_texts_waiting", 1.0);
    let reply = server.post("/v1/completions", &asked("ab", 1, 0));
    assert!(reply.head.contains("\r\nretry-after: 1\r\n"), "{}", reply.head);
    reply.refused(429);
    // More texts than ever run at once can't wait either.
    assert!(
        server
            .post("/v1/completions", &with(asked("ab", 1, 0), json!({"prompt": ["a", "b"]})))
            .refused(400)
            .contains("1 to 1")
    );
    drop(waiting);
    drop(running);
    server.wait_for("hecate_texts_running", 0.0);
    assert_eq!(server.complete(&asked("ab", 5, 1)), expected("ab", 5, sampling(1)));
}

/// Three times: for a place, for a body, and for a text.
#[test]
fn nobody_waits_for_ever() {
    let patience = Duration::from_millis(300);
    let server = limited(Limits { texts: 1, patience, longest: Duration::from_secs(2), ..wide() });
    let mut running = server.post("/v1/completions", &endless());
    assert!(running.event().is_some());
    assert!(server.post("/v1/completions", &asked("ab", 1, 0)).refused(503).contains("no place"));
    // A body that does not come.
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\nConnection: close";
    write!(stream, "POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n{{").unwrap();
    super::harness::Reply::read(stream).refused(408);
    // The text itself: its stream ends with an error object, as clients know it.
    let mut last = String::new();
    while let Some(data) = running.event() {
        last = data;
    }
    assert!(last.contains("\"error\"") && last.contains("not done within"), "{last}");
    assert!(server.post("/v1/completions", &asked("ab", 1 << 20, 0)).refused(504).contains("fewer tokens"));
}

/// Keys that are nearly right are wrong, and addresses that are not there are as closed as others.
#[test]
fn whoever_has_not_the_key_gets_nothing() {
    let server = Server::start(Settings { key: Some("secret".to_owned()), ..Settings::default() });
    let with_key = |path, key: &str| server.open("GET", path, &format!("Authorization: {key}\r\n"), "");
    for path in ["/v1/models", "/metrics", "/v1/sessions", "/nowhere"] {
        for key in
            ["Bearer secre", "Bearer secrets", "Bearer Secret", "Bearer  secret", "secret", "Basic secret", "Bearer "]
        {
            assert_eq!(with_key(path, key).status, 401, "{path} {key}");
        }
        server.get(path).refused(401);
    }
    // Not only what is read: nothing is written without the key either.
    server.post("/v1/completions", &asked("ab", 1, 0)).refused(401);
    assert_eq!(with_key("/v1/models", "Bearer secret").status, 200);
    // Nothing secret is there.
    assert_eq!([server.get("/health").status, server.get("/").status], [200, 200]);
}

/// Browsers name the page that asks, and the host as the page knows it.
#[test]
fn pages_of_other_sites_get_nothing() {
    let server = Server::start(Settings::default());
    let asks = |headers: &str| server.open("GET", "/v1/models", headers, "").status;
    // Browsers leave out no port but the usual one.
    let port = server.address.port();
    for host in [format!("127.0.0.1:{port}"), "localhost".to_owned(), format!("[::1]:{port}")] {
        assert_eq!(asks(&format!("Host: {host}\r\n")), 200, "{host}");
        assert_eq!(asks(&format!("Host: {host}\r\nOrigin: http://{host}\r\n")), 200, "{host}");
        assert_eq!(asks(&format!("Host: {host}\r\nOrigin: http://example.org\r\n")), 403);
        assert_eq!(asks(&format!("Host: {host}\r\nOrigin: null\r\n")), 403);
    }
    // A name that somebody else made lead here.
    for host in ["example.org", "localhost.example.org", "127.0.0.1.example.org", "127.0.0.10"] {
        assert_eq!(asks(&format!("Host: {host}\r\n")), 403, "{host}");
    }
    // What a browser sends anywhere without asking.
    let plain = server.open("POST", "/v1/completions", "Content-Type: text/plain\r\n", &asked("a", 1, 0).to_string());
    plain.refused(415);
}

/// Each limit is met by the longest that is allowed, and refused one beyond.
#[test]
fn bodies_and_prompts_have_an_end() {
    let server = limited(Limits { body: 500, prompt: 50, tokens: 20, ..Limits::default() });
    // The body is looked at before the prompt that is in it.
    assert!(server.post("/v1/completions", &asked(&"x".repeat(500), 1, 0)).refused(413).contains("500 bytes"));
    assert!(server.post("/v1/completions", &asked(&"x".repeat(51), 1, 0)).refused(400).contains("51 tokens"));
    assert!(server.post("/v1/completions", &asked("x", 21, 0)).refused(400).contains("`max_tokens` is 21"));
    assert_eq!(server.complete(&asked(&"x".repeat(50), 20, 0)), expected(&"x".repeat(50), 20, sampling(0)));
    // Without a length, in pieces.
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close";
    write!(stream, "POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
    let piece = " ".repeat(100);
    (0..9).for_each(|_| drop(write!(stream, "64\r\n{piece}\r\n")));
    super::harness::Reply::read(stream).refused(413);
}

/// Both kinds of request, by the name of the field in the message.
#[test]
fn what_would_change_the_answer_is_not_ignored() {
    let server = Server::start(Settings::default());
    let prompt = asked("a", 1, 0);
    for (field, value) in [
        ("suffix", json!("end")),
        ("best_of", json!(2)),
        ("planet", json!("Mars")),
        ("stream_options", json!({"planet": "Mars"})),
        ("tools", json!([{"type": "function"}])),
    ] {
        let message = server.post("/v1/completions", &with(prompt.clone(), json!({field: value}))).refused(400);
        assert!(message.contains(field) || message.contains("planet"), "{field}: {message}");
    }
    // What says that nothing changes, or who asks, is taken.
    let neutral =
        json!({"frequency_penalty": 0, "logit_bias": {}, "best_of": 1, "suffix": null, "user": "me", "stop": null});
    assert_eq!(server.complete(&with(prompt.clone(), neutral)), expected("a", 1, sampling(0)));
    for (field, value) in [
        ("prompt", json!([])),
        ("prompt", json!("")),
        ("prompt", json!([256])),
        ("prompt", json!([-1])),
        ("prompt", json!([[97], "b"])),
        ("prompt", json!({"text": "a"})),
        ("prompt", json!(null)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!("many")),
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("top_p", json!(0)),
        ("n", json!(0)),
        ("n", json!(65)),
        ("seed", json!(0.5)),
        ("stop", json!("")),
        ("stop", json!(["a", 5])),
        ("stop", json!(vec!["a"; 17])),
        ("stream", json!("yes")),
        ("model", json!(5)),
        ("logit_bias", json!([97])),
        ("logprobs", json!(true)),
    ] {
        let message = server.post("/v1/completions", &with(prompt.clone(), json!({field: value}))).refused(400);
        assert!(message.contains(&format!("`{field}`")), "{field} {value}: {message}");
    }
    // Conversations have fields of their own.
    let hello = json!({"role": "user", "content": "hello"});
    for (field, value) in [
        ("messages", json!([])),
        ("messages", json!("hello")),
        ("messages", json!([{"role": "user"}])),
        ("messages", json!([{"role": "a\nb", "content": "hello"}])),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
        ("response_format", json!({"type": "grammar"})),
        ("session", json!("a")),
        ("reasoning_effort", json!("high")),
    ] {
        let body = with(json!({"messages": [hello]}), json!({field: value}));
        let message = server.post("/v1/chat/completions", &body).refused(400);
        assert!(message.contains(field), "{field} {value}: {message}");
    }
    // An address that is not there, and one for another method.
    server.get("/v1/planets").refused(404);
    server.get("/v1/completions").refused(405);
}

/// Each by the field, what was found, and what is allowed.
#[test]
fn what_is_out_of_range_is_refused_with_the_range() {
    let server = Server::start(Settings::default());
    let hello = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1});
    let both = [("/v1/completions", asked("a", 1, 0)), ("/v1/chat/completions", hello.clone())];
    for (fields, found, allowed) in [
        (json!({"presence_penalty": 2.5}), "`presence_penalty` is 2.5", "from -2 to 2"),
        (json!({"presence_penalty": "much"}), "`presence_penalty` is \"much\"", "from -2 to 2"),
        (json!({"frequency_penalty": -2.01}), "`frequency_penalty` is -2.01", "from -2 to 2"),
        (json!({"min_p": 1.5}), "`min_p` is 1.5", "from 0 to 1"),
        (json!({"repetition_penalty": 0}), "`repetition_penalty` is 0", "from 0.001 to 1000"),
        (json!({"logit_bias": {"97": 101}}), "`logit_bias` is 101 for token 97", "from -100 to 100"),
        (json!({"logit_bias": {"97": null}}), "`logit_bias` is null for token 97", "from -100 to 100"),
        (json!({"logit_bias": {"256": 1}}), "`logit_bias` is of token \"256\"", "under 256"),
        (json!({"logit_bias": {"+97": 1}}), "`logit_bias` is of token \"+97\"", "under 256"),
    ] {
        for (path, body) in &both {
            let message = server.post(path, &with(body.clone(), fields.clone())).refused(400);
            assert!(message.contains(found) && message.contains(allowed), "{fields}: {message}");
        }
    }
    for (path, body, fields, found, allowed) in [
        (both[0].0, &both[0].1, json!({"logprobs": 6}), "`logprobs` is 6", "from 0 to 5"),
        (
            both[0].0,
            &both[0].1,
            json!({"logprobs": 2, "echo": true}),
            "`logprobs` is 2 beside `echo`",
            "one of the two",
        ),
        (both[1].0, &hello, json!({"logprobs": 2}), "`logprobs` is 2", "true or false"),
        (both[1].0, &hello, json!({"logprobs": true, "top_logprobs": 21}), "`top_logprobs` is 21", "from 0 to 20"),
        (both[1].0, &hello, json!({"top_logprobs": 3}), "`top_logprobs` is 3", "`logprobs` to true"),
    ] {
        let message = server.post(path, &with(body.clone(), fields.clone())).refused(400);
        assert!(message.contains(found) && message.contains(allowed), "{fields}: {message}");
    }
    // Ends of ranges belong to them.
    let ends =
        json!({"presence_penalty": 2, "frequency_penalty": -2, "min_p": 1, "logit_bias": {"255": -100}, "logprobs": 5});
    server.post(both[0].0, &with(both[0].1.clone(), ends)).succeeded();
    server.post(both[1].0, &with(hello, json!({"logprobs": true, "top_logprobs": 20}))).succeeded();
}

/// What runs has a while; what waits is told at once.
#[test]
fn a_server_that_stops_lets_texts_end_for_a_while() {
    let server = limited(Limits { texts: 1, grace: Duration::from_millis(500), ..wide() });
    let mut running = server.post("/v1/completions", &endless());
    assert!(running.event().is_some());
    let waiting = std::thread::spawn({
        let (address, body) = (server.address, asked("ab", 1, 0).to_string());
        move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let head = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
            write!(stream, "POST /v1/completions HTTP/1.0\r\n{head}\r\n\r\n{body}").unwrap();
            super::harness::Reply::read(stream).refused(503)
        }
    });
    server.wait_for("hecate_texts_waiting", 1.0);
    let began = Instant::now();
    server.stop.ask();
    assert!(waiting.join().unwrap().contains("stopping"));
    let mut last = String::new();
    while let Some(data) = running.event() {
        last = data;
    }
    assert!(last.contains("the server is stopping"), "{last}");
    server.end().unwrap();
    let took = began.elapsed();
    assert!((Duration::from_millis(500)..Duration::from_secs(20)).contains(&took), "{took:?}");
}

/// Ten tokens are ten rounds where nobody else is there.
#[test]
fn all_is_counted() {
    let server = Server::start(Settings::default());
    server.complete(&asked("abc", 10, 0));
    server.get("/nowhere").refused(404);
    assert_eq!(server.metric("hecate_tokens_read_total"), 3.0);
    assert_eq!(server.metric("hecate_tokens_written_total"), 10.0);
    assert_eq!(server.metric("hecate_first_token_seconds_count"), 1.0);
    assert_eq!(server.metric("hecate_step_seconds_count"), 10.0);
    assert_eq!(server.metric("hecate_requests_total{path=\"/v1/completions\",status=\"200\"}"), 1.0);
    assert_eq!(server.metric("hecate_requests_total{path=\"other\",status=\"404\"}"), 1.0);
}
