//! Sessions: texts that go on in a later request, a later server, or twice.

use super::harness::{Server, asked, model, with};
use hecate_models::{
    Vocabulary,
    generate::generate,
    sampling::{Sampler, Sampling},
};
use hecate_serve::{Limits, Settings};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Settings with a folder for sessions, and room for so many in memory.
fn kept(folder: &Path, sessions: usize) -> Settings {
    let limits = Limits { sessions, tokens: 1 << 20, ..Limits::default() };
    Settings { limits, sessions: Some(folder.to_owned()), ..Settings::default() }
}

/// Continues a session with the likeliest tokens.
fn go_on(session: &str, prompt: &str, tokens: usize) -> Value {
    with(asked(prompt, tokens, 0), json!({"session": session, "temperature": 0}))
}

/// What the library writes where it reads these prompts one after another, and so many tokens after each.
fn expected(prompts: &[(&str, usize)]) -> Vec<String> {
    let (model, bytes) = (model(0), Vocabulary::Bytes);
    let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }).unwrap().of(&bytes);
    // One text, which reads on where a session would.
    let mut generation = generate(&model, &bytes.encode(prompts[0].0).unwrap(), sampler).unwrap();
    let texts = prompts.iter().enumerate().map(|(i, (prompt, tokens))| {
        if i > 0 {
            generation.read_on(&bytes.encode(prompt).unwrap()).unwrap();
        }
        let tokens: Vec<u32> = generation.by_ref().take(*tokens).collect::<Result<_, _>>().unwrap();
        bytes.decode(&tokens).unwrap()
    });
    texts.collect()
}

/// Makes a session.
fn create(server: &Server, name: &str) -> Value {
    let reply = server.post("/v1/sessions", &json!({"name": name}));
    assert_eq!(reply.status, 201);
    reply.succeeded()
}

/// What a session reads and writes in three requests is what the library does in one text.
#[test]
fn a_session_goes_on_where_it_stands() {
    let server = Server::start(Settings::default());
    let made = create(&server, "a");
    assert_eq!((&made["id"], &made["position"], &made["place"]), (&json!("a"), &json!(0), &json!("memory")));
    let texts = expected(&[("to be ", 9), ("or not", 7), ("!", 8)]);
    assert_eq!(server.complete(&go_on("a", "to be ", 9)), texts[0]);
    // Six letters were read and nine written.
    let fork = server.post("/v1/sessions/a/fork", &json!({"name": "b"})).succeeded();
    assert_eq!((&fork["id"], &fork["position"]), (&json!("b"), &json!(15)));
    // Both go on by themselves.
    for session in ["a", "b"] {
        assert_eq!(server.complete(&go_on(session, "or not", 7)), texts[1]);
    }
    let streamed = server.post("/v1/completions", &with(go_on("a", "!", 8), json!({"stream": true}))).texts().0;
    assert_eq!(streamed[0].0, texts[2]);
    let listed = server.get("/v1/sessions").succeeded();
    let positions: Vec<_> = listed["data"].as_array().unwrap().iter().map(|one| one["position"].clone()).collect();
    assert_eq!(positions, [37, 28]);
    assert_eq!(server.delete("/v1/sessions/a").succeeded()["deleted"], true);
    server.get("/v1/sessions/a").refused(404);
    assert_eq!(server.get("/v1/sessions/b").succeeded()["position"], 28);
}

/// Nothing is on the disk before it has to be, and all of it when the server has ended.
#[test]
fn stopped_and_started_a_session_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let texts = expected(&[("to be ", 9), ("or not", 40)]);
    let folder = folder.path().join("made/for/it");
    let server = Server::start(kept(&folder, 9));
    for name in ["a", "b", "c"] {
        create(&server, name);
        assert_eq!(server.complete(&go_on(name, "to be ", 9)), texts[0]);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    assert_eq!(server.post("/v1/sessions/c/save", &json!({})).succeeded()["saved"], true);
    server.delete("/v1/sessions/c").succeeded();
    server.end().unwrap();
    let server = Server::start(kept(&folder, 9));
    let listed = server.get("/v1/sessions").succeeded();
    let places: Vec<_> = listed["data"].as_array().unwrap().iter().map(|one| [&one["id"], &one["place"]]).collect();
    assert_eq!(places, [[&json!("a"), &json!("disk")], [&json!("b"), &json!("disk")]]);
    for name in ["a", "b"] {
        assert_eq!(server.complete(&go_on(name, "or not", 40)), texts[1]);
    }
}

/// Five sessions take turns where two have room: every request but the first ones brings one back from its file.
#[test]
fn sessions_without_room_in_memory_go_to_the_disk_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(kept(folder.path(), 2));
    let names = ["a", "b", "c", "d", "e"];
    let rounds = [("to be ", 5), ("or not", 4), ("!", 6)];
    names.iter().for_each(|name| drop(create(&server, name)));
    for (round, text) in expected(&rounds).iter().enumerate() {
        for name in names {
            let (prompt, tokens) = rounds[round];
            assert_eq!(&server.complete(&go_on(name, prompt, tokens)), text, "{name} {round}");
        }
    }
    // Two have room, whichever were used last.
    server.wait_for("hecate_sessions_in_memory", 2.0);
    assert_eq!(server.metric("hecate_sessions_on_disk"), 3.0);
    // A fork of one on the disk.
    assert_eq!(server.post("/v1/sessions/a/fork", &json!({"name": "f"})).succeeded()["position"], 28);
}

/// A session that cannot go to the disk is not thrown away for another one.
#[test]
fn without_a_folder_there_is_an_end() {
    let limits = Limits { sessions: 2, ..Limits::default() };
    let server = Server::start(Settings { limits, ..Settings::default() });
    ["a", "b"].iter().for_each(|name| drop(create(&server, name)));
    assert!(server.post("/v1/sessions", &json!({"name": "c"})).refused(507).contains("--sessions"));
    assert!(server.post("/v1/sessions/a/fork", &json!({"name": "c"})).refused(507).contains("--sessions"));
    assert!(server.post("/v1/sessions/a/save", &json!({})).refused(400).contains("--sessions"));
    // One that is forgotten makes room.
    server.delete("/v1/sessions/a").succeeded();
    create(&server, "c");
}

/// A text that is left in its middle, while others try to get at its session.
#[test]
fn a_request_that_comes_to_nothing_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(kept(folder.path(), 9));
    create(&server, "a");
    let texts = expected(&[("to be ", 9), ("or not", 7)]);
    server.complete(&go_on("a", "to be ", 9));
    let mut stream = server.post("/v1/completions", &with(go_on("a", "x", 1 << 20), json!({"stream": true})));
    assert!(stream.event().is_some());
    // Meanwhile nobody else writes in it, nor takes it away; a fork is of what it was before.
    assert!(server.post("/v1/completions", &go_on("a", "or not", 7)).refused(409).contains("fork"));
    server.delete("/v1/sessions/a").refused(409);
    assert_eq!(server.post("/v1/sessions/a/fork", &json!({"name": "b"})).succeeded()["position"], 15);
    drop(stream);
    server.wait_for("hecate_texts_running", 0.0);
    for name in ["a", "b"] {
        assert_eq!(server.complete(&go_on(name, "or not", 7)), texts[1]);
    }
}

/// Names of others' files, also written as addresses may be.
#[test]
fn no_other_names_and_files_are_touched() {
    let folder = tempfile::tempdir().unwrap();
    // Beside the folder, where no session may reach.
    fs::write(folder.path().join("secret.safetensors"), "none").unwrap();
    fs::write(folder.path().join("Other.safetensors"), "none").unwrap();
    let sessions = folder.path().join("sessions");
    let server = Server::start(kept(&sessions, 9));
    for name in ["../secret", "..", "", "A", "a.b", "a/b", "/tmp/a", &"x".repeat(65)] {
        server.post("/v1/sessions", &json!({"name": name})).refused(400);
        server.post("/v1/completions", &go_on(name, "a", 1)).refused(400);
    }
    for path in ["/v1/sessions/..%2Fsecret", "/v1/sessions/%2e%2e%2fsecret", "/v1/sessions/%ff", "/v1/sessions/a%00"] {
        server.delete(path).refused(400);
        server.get(path).refused(400);
    }
    assert!(server.get("/v1/sessions/secret").refused(404).contains("secret"));
    server.post("/v1/completions", &go_on("secret", "a", 1)).refused(404);
    create(&server, "a");
    server.post("/v1/sessions", &json!({"name": "a"})).refused(409);
    server.post("/v1/sessions", &json!({"name": "b", "from": "a"})).refused(400);
    server.post("/v1/sessions", &json!({})).refused(400);
    server.post("/v1/completions", &with(go_on("a", "x", 1), json!({"n": 2}))).refused(400);
    server.end().unwrap();
    let files: Vec<_> = fs::read_dir(&sessions).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["a.safetensors"]);
    assert_eq!(fs::read(folder.path().join("secret.safetensors")).unwrap(), b"none");
}

/// Weights of another seed have the same shapes: only the hash tells them apart.
#[test]
fn a_damaged_file_and_one_of_another_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(kept(folder.path(), 9));
    create(&server, "a");
    server.complete(&go_on("a", "to be ", 9));
    server.end().unwrap();
    fs::write(folder.path().join("b.safetensors"), "none").unwrap();
    let server = Server::start(kept(folder.path(), 9));
    // Paths are for the log.
    let message = server.post("/v1/completions", &go_on("b", "a", 1)).refused(500);
    assert!(message.contains("`b` cannot be read") && !message.contains('/'), "{message}");
    server.get("/v1/sessions/b").succeeded();
    server.delete("/v1/sessions/b").succeeded();
    server.end().unwrap();
    // Weights of another seed.
    let server = Server::of(1, Vec::new(), kept(folder.path(), 9));
    server.post("/v1/completions", &go_on("a", "a", 1)).refused(500);
}
