//! Prompts that begin as others did: read once, and answered as if they were the only ones.
//!
//! What is compared is the text and the likelihoods of its tokens, which differ as soon as a bit of a score does.

use super::harness::{Server, asked, expected, sampling, with};
use hecate_cpu::Cpu;
use hecate_models::{Config, LanguageModel};
use hecate_serve::{Limits, Settings};
use serde_json::{Value, json};
use std::{sync::Barrier, thread};

/// A server that keeps states in this much memory, one every segment.
///
/// That is as often as one can be kept, so that short prompts have several.
fn kept(bytes: usize) -> Settings {
    Settings { limits: Limits { prefix_every: 512, prefix_bytes: bytes, ..Limits::default() }, ..Settings::default() }
}

/// Memory enough for all states of these tests.
const ALL: usize = 1 << 30;

/// A text of this many bytes. One with another number is another one from its first bytes on, but for chance.
fn tale(number: usize, length: usize) -> String {
    (0..)
        .flat_map(|i| format!("{} and ", (number + 7) * (i + 3) % 1009).into_bytes())
        .take(length)
        .map(char::from)
        .collect()
}

/// A completion and the number of tokens of its prompt that were not read again.
///
/// All texts of a request come in one list, each with its likelihoods where they were asked for.
fn completed(server: &Server, body: &Value) -> (Value, usize) {
    let answer = server.post("/v1/completions", body).succeeded();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (answer["choices"].clone(), cached as usize)
}

/// 64 prompts of 2,000 tokens that share all but the last 100, then 64 that share 100 fewer; each time all at once.
///
/// Three whole segments are shared in both cases, which is as near as a state can be.
#[test]
fn prompts_with_the_same_beginning_read_it_once() {
    let server = Server::start(kept(ALL));
    let (shared, together) = (tale(0, 1900), Barrier::new(64));
    let prompt = |share: usize, i: usize| format!("{}{}", &shared[..share], tale(i + 1, 2000 - share));
    for (share, first) in [(1900, 0), (1800, 1536)] {
        // The first to arrive is read first, and the others wait for their turn without reading anything.
        let ask = |i: usize| {
            together.wait();
            let (choices, cached) = completed(&server, &asked(&prompt(share, i), 4, i as u64));
            (choices[0]["text"].as_str().unwrap().to_owned(), cached)
        };
        let found: Vec<_> = thread::scope(|scope| {
            let asking: Vec<_> = (0..64).map(|i| scope.spawn(move || ask(i))).collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        // One of the first 64 had to read it all, whichever came first.
        let read_all = found.iter().filter(|(_, cached)| *cached == 0).count();
        assert_eq!(read_all, usize::from(first == 0));
        assert!(found.iter().all(|(_, cached)| [0, 1536].contains(cached)), "{found:?}");
        // Each is what the library writes, which has nothing to go on from.
        for (i, (text, _)) in found.iter().enumerate().step_by(9) {
            assert_eq!(*text, expected(&prompt(share, i), 4, sampling(i as u64)), "{i} of those that share {share}");
        }
    }
    assert_eq!(server.metric("hecate_prefix_hits_total"), 127.0);
    assert_eq!(server.metric("hecate_prefix_tokens_total"), 127.0 * 1536.0);
    assert_eq!(server.metric("hecate_tokens_read_total"), 128.0 * 2000.0 - 127.0 * 1536.0);
}

/// Lengths around the ends of segments, each twice and then with more behind; several kinds of memory, and frozen groups.
#[test]
fn answers_are_those_without_kept_states_to_the_bit() {
    for mixer in ["delta", "titans", "attention"] {
        let start = |bytes| {
            let model = || LanguageModel::new(&Cpu::new(), &Config::uniform(mixer, 2, 16, 2).unwrap(), 0).unwrap();
            Server::with(model, Vec::new(), kept(bytes))
        };
        let (with_states, without) = (start(ALL), start(0));
        let text = tale(3, 1100);
        let mut spared = Vec::new();
        for length in [700, 700, 512, 513, 1024, 1100, 1100, 1] {
            // The likeliest tokens, and draws by a seed with penalties that count the prompt.
            for fields in [json!({"temperature": 0}), json!({"n": 2, "repetition_penalty": 5, "frequency_penalty": 1})]
            {
                let body = with(with(asked(&text[..length], 6, 9), fields), json!({"logprobs": 5}));
                let ((found, cached), (expected, none)) = (completed(&with_states, &body), completed(&without, &body));
                assert_eq!((found, none), (expected, 0), "{mixer}: {length} {body}");
                spared.push(cached);
            }
        }
        // The first time by the longest beginning that ends where segments do, and the second time by all of it.
        let expected = [0, 700, 700, 700, 512, 512, 512, 513, 512, 1024, 1024, 1100, 1100, 1100, 0, 1];
        assert_eq!(spared, expected, "{mixer}");
        assert_eq!(without.metric("hecate_prefix_states"), 0.0);
        assert_eq!(without.metric("hecate_prefix_hits_total"), 0.0);
    }
}

/// One token is another, in the first place, in the last one of a segment, and in the last of all.
#[test]
fn a_beginning_that_differs_by_a_token_is_another_one() {
    let server = Server::start(kept(ALL));
    let text = tale(5, 1200);
    assert_eq!(completed(&server, &asked(&text, 5, 1)).1, 0);
    // What was read before the token is spared up to the last end of a segment, and nothing behind it.
    for (at, cached) in [(0, 0), (511, 0), (512, 512), (1023, 512), (1024, 1024), (1199, 1024)] {
        let mut other = text.clone();
        other.replace_range(at..=at, "#");
        let (choices, found) = completed(&server, &asked(&other, 5, 1));
        assert_eq!((&choices[0]["text"], found), (&json!(expected(&other, 5, sampling(1))), cached), "{at}");
    }
    // A state inside of a segment is one of its own prompt alone: with more behind it sums would be rounded otherwise.
    assert_eq!(completed(&server, &asked(&tale(6, 700), 5, 1)).1, 0);
    let longer = tale(6, 701);
    let (choices, cached) = completed(&server, &asked(&longer, 5, 1));
    assert_eq!((&choices[0]["text"], cached), (&json!(expected(&longer, 5, sampling(1))), 512));
}

/// A state between the ends of segments would be none of a longer prompt.
#[test]
fn states_are_as_far_apart_as_whole_segments() {
    let limits = Limits { prefix_every: 600, ..Limits::default() };
    let server = Server::start(Settings { limits, ..Settings::default() });
    assert_eq!(completed(&server, &asked(&tale(9, 1500), 1, 0)).1, 0);
    // Two segments are the least that is not fewer tokens than it was told.
    for (length, cached) in [(1400, 1024), (1000, 0)] {
        let (choices, found) = completed(&server, &asked(&tale(9, length), 5, 1));
        assert_eq!((&choices[0]["text"], found), (&json!(expected(&tale(9, length), 5, sampling(1))), cached));
    }
}

/// Those stay that were used last, and never more than there is room for.
#[test]
fn states_take_no_more_memory_than_they_may() {
    let of = |number| asked(&tale(number, 300), 1, 0);
    let one = Server::start(kept(ALL));
    completed(&one, &of(0));
    one.wait_for("hecate_prefix_states", 1.0);
    let bytes = one.metric("hecate_prefix_bytes") as usize;
    // Two layers with two heads of 8 × 8 numbers of 32 bits, and scores of 256 tokens.
    assert!(bytes >= 2 * 2 * 8 * 8 * 4 + 256 * 4, "{bytes}");
    let server = Server::start(kept(2 * bytes));
    // The third has room once the second is gone, since the first was used after it.
    for (number, cached) in [(0, 0), (1, 0), (0, 300), (2, 0), (0, 300), (1, 0), (0, 300), (2, 0)] {
        assert_eq!(completed(&server, &of(number)).1, cached, "{number}");
    }
    server.wait_for("hecate_prefix_bytes", 2.0 * bytes as f64);
    // One that has no room by itself is not kept, and is answered all the same.
    let small = Server::start(kept(bytes - 1));
    for _ in 0..2 {
        assert_eq!(completed(&small, &of(0)).1, 0);
    }
    assert_eq!(small.metric("hecate_prefix_states"), 0.0);
}

/// What a named session has read before is no part of its prompts, and its states are nobody else's.
#[test]
fn sessions_neither_take_nor_leave_states() {
    let server = Server::start(kept(ALL));
    server.post("/v1/sessions", &json!({"name": "tale"})).succeeded();
    let (text, two) = (tale(8, 600), format!("{}{}", tale(8, 600), tale(8, 600)));
    let plain = with(asked(&text, 5, 2), json!({"logprobs": 5}));
    let named = with(plain.clone(), json!({"session": "tale"}));
    let (first, cached) = completed(&server, &named);
    assert_eq!(cached, 0);
    assert_eq!(completed(&server, &plain), (first.clone(), 0));
    // The same prompt once more, after what the session has read and written: it is as likely to go on in other ways.
    let (second, cached) = completed(&server, &named);
    assert_eq!(cached, 0);
    assert_ne!(second, first);
    let (choices, cached) = completed(&server, &asked(&two, 20, 2));
    assert_eq!((&choices[0]["text"], cached), (&json!(expected(&two, 20, sampling(2))), 512));
}

/// A stream tells it in the end, where it tells the number of tokens.
#[test]
fn a_stream_tells_what_was_not_read_again() {
    let server = Server::start(kept(ALL));
    let body = with(asked(&tale(4, 600), 3, 2), json!({"stream": true, "stream_options": {"include_usage": true}}));
    for cached in [0, 600] {
        let (texts, rest) = server.post("/v1/completions", &body).texts();
        assert_eq!(texts[0].0, expected(&tale(4, 600), 3, sampling(2)));
        assert_eq!(rest[0]["usage"]["prompt_tokens_details"], json!({"cached_tokens": cached}));
    }
}
