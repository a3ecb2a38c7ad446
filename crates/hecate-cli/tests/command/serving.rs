//! `hecate serve` as a process: what it says, what it answers, and how it ends.

use super::harness::{Outcome, Workspace};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

/// A server that was started as users start it.
struct Server {
    /// The process, which ends by a signal.
    child: Child,
    /// Host and port, as it said them.
    address: String,
}

impl Server {
    /// With these flags besides, on a port that is free.
    fn start(mut command: Command) -> Self {
        let mut child = command.args(["--port", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Its first line comes once connections are taken.
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        // Where it ended instead, it said why.
        let Some((_, address)) = line.trim_end().split_once(" on http://") else {
            panic!("{line} {:?}", Outcome::new(child.wait_with_output().unwrap()));
        };
        Self { child, address: address.to_owned() }
    }

    /// Status and body of an answer.
    fn post(&self, path: &str, key: &str, body: &Value) -> (String, Value) {
        let (mut stream, body) = (TcpStream::connect(&self.address).unwrap(), body.to_string());
        let head = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        // A connection of HTTP 1.0 ends with its answer.
        write!(stream, "POST {path} HTTP/1.0\r\n{head}\r\nAuthorization: Bearer {key}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        // The status stands in the first line of the head.
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str(body).unwrap())
    }

    /// The text of a completion.
    fn complete(&self, body: &Value) -> String {
        let (status, answer) = self.post("/v1/completions", "", body);
        assert_eq!(status, "200", "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Asks it to end, and waits.
    fn end(self, signal: Signal) -> Outcome {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        Outcome::new(self.child.wait_with_output().unwrap())
    }
}

/// A folder with a run.
fn trained() -> Workspace {
    let workspace = Workspace::new();
    workspace.train(&["--device", "cpu", "--steps", "20", "--out", "runs/text"]).succeeded();
    workspace
}

/// Byte for byte, with the same settings and seed.
#[test]
fn a_server_writes_what_generate_writes() {
    let workspace = trained();
    let server = Server::start(workspace.command(&["serve", "--device", "cpu"]));
    let flags = "generate --device cpu --raw --tokens 60 --temperature 0.9 --top-p 0.95 --top-k 40";
    for seed in ["0", "7", "123456789"] {
        let flags: Vec<_> = flags.split(' ').chain(["--prompt", "3 plus ", "--seed", seed]).collect();
        let outcome = workspace.command(&flags).output().unwrap();
        // Bytes that are no text are shown alike by both.
        let written = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let body = json!({
            "model": "text", "prompt": "3 plus ", "max_tokens": 60, "temperature": 0.9, "top_p": 0.95, "top_k": 40,
            "seed": seed.parse::<u64>().unwrap(),
        });
        assert_eq!(written, format!("3 plus {}\n", server.complete(&body)));
    }
    // Nothing went wrong meanwhile.
    let outcome = server.end(Signal::SIGINT);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(130), ""));
}

/// A session and its fork are files once the server is gone, and go on alike after it.
#[test]
fn a_termination_saves_sessions() {
    let workspace = trained();
    let serve = || Server::start(workspace.command(&["serve", "--device", "cpu", "--sessions", "kept"]));
    // A seed makes both write the same.
    let go_on = |prompt: &str| json!({"session": "a", "prompt": prompt, "max_tokens": 40, "seed": 3});
    let server = serve();
    assert_eq!(server.post("/v1/sessions", "", &json!({"name": "a"})).0, "201");
    server.complete(&go_on("3 plus "));
    assert_eq!(server.post("/v1/sessions/a/fork", "", &json!({"name": "b"})).0, "201");
    let outcome = server.end(Signal::SIGTERM);
    assert_eq!(outcome.code, Some(143), "{outcome:?}");
    let read = |name: &str| fs::read(workspace.path("kept").join(name)).unwrap();
    // The fork is the same text, so its file is the same to the bit.
    assert_eq!(read("a.safetensors"), read("b.safetensors"));
    // Started again, the first goes on where both were; saved again, it differs from the other.
    let server = serve();
    let text = server.complete(&go_on(" and "));
    assert_eq!(server.end(Signal::SIGTERM).code, Some(143));
    assert_ne!(read("a.safetensors"), read("b.safetensors"));
    // The other one goes on to the same text, and its file becomes the same.
    let server = serve();
    let other = json!({"session": "b", "prompt": " and ", "max_tokens": 40, "seed": 3});
    assert_eq!(server.complete(&other), text);
    assert_eq!(server.end(Signal::SIGTERM).code, Some(143));
    assert_eq!(read("a.safetensors"), read("b.safetensors"));
}

/// A flag would show the key to everybody who lists processes.
#[test]
fn a_key_comes_from_the_environment() {
    let workspace = trained();
    let mut command = workspace.command(&["serve", "--device", "cpu"]);
    command.env("HECATE_API_KEY", "secret");
    let server = Server::start(command);
    let body = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", "other", &body).0, "401");
    assert_eq!(server.post("/v1/completions", "secret", &body).0, "200");
    server.end(Signal::SIGTERM);
    // An empty one protects nothing: whoever set it meant another.
    workspace.run_with(&["serve"], ("HECATE_API_KEY", "")).failed(1, &["HECATE_API_KEY is empty", "unset it"]);
}

/// Ports that are taken, folders that are none, and numbers that serve nobody.
#[test]
fn what_cannot_be_served_is_told() {
    let workspace = trained();
    let server = Server::start(workspace.command(&["serve", "--device", "cpu"]));
    // A second server cannot have the port of the first.
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    workspace.run(&["serve", "--device", "cpu", "--port", &port]).failed(1, &["--port", &port, "name another"]);
    server.end(Signal::SIGTERM);
    workspace.run(&["serve", "--run", "runs/none"]).failed(1, &["runs/none", "no such folder"]);
    workspace.run(&["serve", "--sessions", "text.txt"]).failed(1, &["--sessions", "is a file"]);
    workspace.run(&["serve", "--texts", "0"]).failed(2, &["from 1 to"]);
    workspace.run(&["serve", "--run", "runs/text", "--model", "m"]).failed(2, &["cannot be used with"]);
}
