//! A server of a tiny model, and a client that knows nothing of how it is made.

use hecate_cpu::Cpu;
use hecate_models::{
    Config, Interrupt, LanguageModel, Vocabulary,
    generate::generate,
    sampling::{Sampler, Sampling},
};
use hecate_serve::{Plain, Result, Served, Settings, Template, serve};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Bytes, two layers of the delta rule, weights of this seed.
pub(crate) fn model(seed: u64) -> LanguageModel<Cpu> {
    LanguageModel::new(&Cpu::new(), &Config::uniform("delta", 2, 16, 2).unwrap(), seed).unwrap()
}

/// How requests of these tests draw unless they say otherwise.
pub(crate) fn sampling(seed: u64) -> Sampling {
    Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::default() }
}

/// What the library writes after a prompt.
pub(crate) fn expected(prompt: &str, tokens: usize, sampling: Sampling) -> String {
    let (model, prompt) = (model(0), Vocabulary::Bytes.encode(prompt).unwrap());
    let sampler = Sampler::new(sampling).unwrap().of(&Vocabulary::Bytes);
    let tokens = generate(&model, &prompt, sampler).unwrap().take(tokens).collect::<Result<Vec<u32>, _>>().unwrap();
    Vocabulary::Bytes.decode(&tokens).unwrap()
}

/// A server that ends with the test.
///
/// It is the library's own `serve` on a thread of the test, with a socket of the system's on a port that was free.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Interrupt,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Server {
    /// With these settings.
    pub(crate) fn start(settings: Settings) -> Self {
        Self::of(0, Vec::new(), settings)
    }

    /// Of weights of this seed, whose texts end at these tokens.
    pub(crate) fn of(seed: u64, ends: Vec<u32>, settings: Settings) -> Self {
        Self::with(move || model(seed), ends, settings)
    }

    /// Of the model that is made on the server's own thread.
    ///
    /// Devices of a model belong to that thread, so the model is not handed over.
    pub(crate) fn with<F>(model: F, ends: Vec<u32>, settings: Settings) -> Self
    where
        F: FnOnce() -> LanguageModel<Cpu> + Send + 'static,
    {
        let served = move || Served {
            model: model(),
            vocabulary: Vocabulary::Bytes,
            ends,
            id: "tiny".to_owned(),
            template: Arc::new(Plain),
        };
        Self::serving(served, settings)
    }

    /// Of all that is served, made on the server's own thread.
    pub(crate) fn serving(served: impl FnOnce() -> Served<Cpu> + Send + 'static, settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Interrupt::default());
        let asked = stop.clone();
        let thread = thread::spawn(move || serve(served(), listener, settings, &asked));
        Self { address, stop, thread: Some(thread) }
    }

    /// Of weights of this seed and a tokenizer of [`tokenizer`]; none in a build that reads none.
    pub(crate) fn of_pieces(seed: u64, pieces: &[&[u8]], template: Arc<dyn Template>) -> Option<Self> {
        let (file, end) = tokenizer(pieces);
        Self::of_tokenizer(seed, file, end, template)
    }

    /// The same, of a tokenizer's file whose end token has this number.
    pub(crate) fn of_tokenizer(seed: u64, file: String, end: u32, template: Arc<dyn Template>) -> Option<Self> {
        let served = move || {
            let vocabulary = Vocabulary::from_json("tokenizer.json".as_ref(), file.as_bytes()).unwrap();
            let config = Config { vocabulary_size: vocabulary.size(), ..Config::uniform("delta", 2, 16, 2).unwrap() };
            let model = LanguageModel::new(&Cpu::new(), &config, seed).unwrap();
            Served { model, vocabulary, ends: vec![end], id: "tiny".to_owned(), template }
        };
        Vocabulary::READS_TOKENIZERS.then(|| Self::serving(served, Settings::default()))
    }

    /// Stops it, and waits until it has.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stop.ask();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Sends a request and reads the answer's head.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        // Version 1.0: the answer ends where the connection does.
        write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n{headers}\r\n{body}").unwrap();
        Reply::read(stream)
    }

    /// An answer to a request without a body.
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.open("GET", path, "", "")
    }

    /// The same, to remove something.
    pub(crate) fn delete(&self, path: &str) -> Reply {
        self.open("DELETE", path, "", "")
    }

    /// An answer to a request with a body of JSON.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.open("POST", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    /// The only text of a completion that succeeds.
    pub(crate) fn complete(&self, body: &Value) -> String {
        let answer = self.post("/v1/completions", body).succeeded();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// A number of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Waits until a number of `/metrics` is this one.
    pub(crate) fn wait_for(&self, name: &str, expected: f64) {
        let began = Instant::now();
        while self.metric(name) != expected {
            assert!(began.elapsed() < Duration::from_secs(30), "{name} is {}, expected {expected}", self.metric(name));
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            // A second panic would hide the first.
            assert!(thread::panicking() || ended.is_ok_and(|ended| ended.is_ok()));
        }
    }
}

/// An answer whose head was read.
///
/// What follows is read when it is asked for: a stream may go on for as long as the test lets it.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    stream: BufReader<TcpStream>,
}

impl Reply {
    /// Reads a head; status 0 where the connection ends without one.
    pub(crate) fn read(stream: TcpStream) -> Self {
        let (mut stream, mut head) = (BufReader::new(stream), String::new());
        while stream.read_line(&mut head).unwrap_or(0) > 2 {}
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_lowercase(), stream }
    }

    /// The rest as text.
    ///
    /// The end of the connection is that of the text.
    pub(crate) fn body(mut self) -> String {
        let mut body = String::new();
        self.stream.read_to_string(&mut body).unwrap();
        body
    }

    /// The answer, which is none of an error.
    pub(crate) fn succeeded(self) -> Value {
        let status = self.status;
        let body = self.body();
        assert!((200..300).contains(&status), "{status} {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The message of an answer that is an error of this status, in the form that clients know.
    pub(crate) fn refused(self, expected: u16) -> String {
        let status = self.status;
        let body = self.body();
        assert_eq!(status, expected, "{body}");
        let value: Value = serde_json::from_str(&body).unwrap();
        let error = &value["error"];
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{body}");
        error["message"].as_str().filter(|message| message.len() > 5).unwrap().to_owned()
    }

    /// The next event of a stream, none at its end.
    pub(crate) fn event(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.stream.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.trim_end().to_owned());
            }
        }
    }

    /// Texts of a stream by their index with their reasons to end, then whatever has no choices. The stream ends as clients expect.
    pub(crate) fn texts(mut self) -> (Vec<(String, String)>, Vec<Value>) {
        assert_eq!(self.status, 200);
        assert!(self.head.contains("content-type: text/event-stream"), "{}", self.head);
        let (mut texts, mut rest): (Vec<(String, String)>, _) = (Vec::new(), Vec::new());
        loop {
            let data = self.event().expect("[DONE]");
            if data == "[DONE]" {
                assert_eq!(self.event(), None);
                return (texts, rest);
            }
            let value: Value = serde_json::from_str(&data).unwrap();
            let Some(choice) = value["choices"].get(0).cloned() else {
                rest.push(value);
                continue;
            };
            let index = choice["index"].as_u64().unwrap() as usize;
            texts.resize(texts.len().max(index + 1), Default::default());
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
            texts[index].0.push_str(text);
            if let Some(reason) = choice["finish_reason"].as_str() {
                texts[index].1.push_str(reason);
            }
        }
    }
}

/// A tokenizer's file of all bytes, then of these pieces from number 256 on; `</s>`, which has no text, is its last token. Text is
/// read as bytes alone.
pub(crate) fn tokenizer(pieces: &[&[u8]]) -> (String, u32) {
    let is_shown = |byte: &u32| (33..127).contains(byte) || (161..173).contains(byte) || (174..256).contains(byte);
    let (shown, hidden): (Vec<u32>, Vec<u32>) = (0..256).partition(is_shown);
    // Bytes that are no letters of their own are written as letters beyond, in their order.
    let letter = |byte: u8| match hidden.iter().position(|hidden| *hidden == u32::from(byte)) {
        Some(at) => char::from_u32(256 + at as u32).unwrap(),
        None => char::from(byte),
    };
    let bytes = shown.iter().chain(&hidden).map(|&byte| vec![byte as u8]);
    let words = bytes.chain(pieces.iter().map(|piece| piece.to_vec()));
    let vocab: serde_json::Map<_, _> =
        (0..).zip(words).map(|(token, word)| (word.into_iter().map(letter).collect(), Value::from(token))).collect();
    let end = vocab.len() as u32;
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": end, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    (file.to_string(), end)
}

/// Tokens read, written, and not read again, as answers tell them.
pub(crate) fn usage(read: usize, written: usize, cached: usize) -> Value {
    json!({"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached}})
}

/// A completion of this many tokens.
pub(crate) fn asked(prompt: &str, tokens: usize, seed: u64) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "seed": seed})
}

/// The same, with these fields besides.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
