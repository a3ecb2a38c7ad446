//! Texts: what the library writes, however it is asked for.

use super::harness::{Server, asked, expected, sampling, usage, with};
use hecate_models::{Random, sampling::Sampling};
use hecate_serve::Settings;
use serde_json::{Value, json};
use std::{sync::Barrier, thread};

/// With the model, the settings and the seed of `generate`, whose text is the measure of all tests here.
#[test]
fn a_completion_is_what_the_library_writes() {
    let server = Server::start(Settings::default());
    let answer = server.post("/v1/completions", &asked("to be ", 40, 7)).succeeded();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], expected("to be ", 40, sampling(7)));
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("length"), &json!(0)));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("tiny")));
    assert_eq!(answer["usage"], usage(6, 40, 0));
    // Each setting reaches the sampler.
    let settings = json!({"temperature": 0.5, "top_p": 0.7, "top_k": 5});
    let found = server.complete(&with(asked("to be ", 40, 7), settings));
    assert_eq!(
        found,
        expected("to be ", 40, Sampling { temperature: 0.5, top_p: 0.7, top_k: 5, seed: 7, ..Sampling::default() })
    );
    // Without a seed each text is another one, and 16 tokens long.
    let two = [0, 1].map(|_| server.post("/v1/completions", &json!({"prompt": "to be "})).succeeded());
    assert_ne!(two[0]["choices"], two[1]["choices"]);
    assert_eq!(two[0]["usage"]["completion_tokens"], 16);
}

/// Segments begin where the library has them begin, or sums would be rounded otherwise.
#[test]
fn a_prompt_of_several_segments_is_read_as_the_library_reads_it() {
    let server = Server::start(Settings::default());
    let prompt: String = (0..400).map(|i| format!("{} plus ", i % 7)).collect();
    assert!(prompt.len() > 5 * 512);
    assert_eq!(server.complete(&asked(&prompt, 30, 1)), expected(&prompt, 30, sampling(1)));
}

/// Texts and their tokens are the same prompts, and a list is as many requests.
#[test]
fn prompts_may_be_tokens_and_several() {
    let server = Server::start(Settings::default());
    let each = [expected("ab", 9, sampling(3)), expected("c", 9, sampling(3))];
    // The second time both are known.
    for (prompts, cached) in [(json!(["ab", "c"]), 0), (json!([[97, 98], [99]]), 3)] {
        let answer = server.post("/v1/completions", &with(asked("", 9, 3), json!({"prompt": prompts}))).succeeded();
        let texts: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
        assert_eq!(texts, each);
        assert_eq!(answer["usage"], usage(3, 18, cached));
    }
    assert_eq!(server.complete(&with(asked("", 9, 3), json!({"prompt": [97, 98]}))), each[0]);
}

/// Six texts of two prompts. The first of each prompt has the request's own seed, so it is what it would be alone.
#[test]
fn several_texts_of_a_prompt_have_a_seed_each() {
    let server = Server::start(Settings::default());
    let body = with(asked("ab", 20, 5), json!({"n": 3, "prompt": ["ab", "c"]}));
    let answer = server.post("/v1/completions", &body).succeeded();
    for (i, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        // Seeds follow from the request's own by the number of the text.
        let seed = if i % 3 == 0 { 5 } else { Random::stream(5, i as u64 % 3).bits() };
        let prompt = ["ab", "c"][i / 3];
        assert_eq!((&choice["text"], &choice["index"]), (&json!(expected(prompt, 20, sampling(seed))), &json!(i)));
    }
    assert_eq!(answer["choices"].as_array().unwrap().len(), 6);
    // A prompt is read once, however many texts go on with it.
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(server.metric("hecate_tokens_read_total"), 3.0);
}

/// Without a stream the same text is compared above.
#[test]
fn a_stream_is_the_text() {
    let server = Server::start(Settings::default());
    let body = with(asked("ab", 30, 5), json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}}));
    let (texts, rest) = server.post("/v1/completions", &body).texts();
    let seeds = [5, Random::stream(5, 1).bits()];
    assert_eq!(texts, seeds.map(|seed| (expected("ab", 30, sampling(seed)), "length".to_owned())));
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0]["usage"], usage(2, 60, 0));
    // Unasked, no usage comes.
    let (_, rest) = server.post("/v1/completions", &with(asked("ab", 3, 5), json!({"stream": true}))).texts();
    assert_eq!(rest, [Value::Null; 0]);
}

/// The first token is there long before the last.
#[test]
fn tokens_come_while_the_text_is_written() {
    let server = Server::start(Settings::default());
    let mut reply = server.post("/v1/completions", &with(asked("ab", 16384, 5), json!({"stream": true})));
    assert!(reply.event().is_some());
    assert_eq!(server.metric("hecate_texts_running"), 1.0);
}

/// A part of a stop text that is shown could not be taken back, so the sum of all parts would be longer.
#[test]
fn texts_end_before_a_stop_text_and_show_no_part_of_it() {
    let server = Server::start(Settings::default());
    let whole: Vec<char> = expected("ab", 200, sampling(2)).chars().collect();
    for at in (0..150).step_by(10) {
        // Of several tokens, of which each is a byte.
        let stop: String = whole[at..at + 3].iter().collect();
        let text: String = whole.iter().collect();
        let before = &text[..text.find(&stop).unwrap()];
        let body = with(asked("ab", 200, 2), json!({"stop": [stop, "never in there"]}));
        let answer = server.post("/v1/completions", &body).succeeded();
        let choice = &answer["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(before), &json!("stop")), "{stop:?}");
        let streamed = server.post("/v1/completions", &with(body, json!({"stream": true}))).texts().0;
        assert_eq!(streamed, [(before.to_owned(), "stop".to_owned())]);
    }
    // What is held back for a stop text that does not come is shown in the end.
    let stop: String = whole[whole.len() - 5..].iter().chain(&['!'; 9]).collect();
    let found = server.post("/v1/completions", &with(asked("ab", 200, 2), json!({"stop": stop, "stream": true})));
    assert_eq!(found.texts().0, [(whole.iter().collect(), "length".to_owned())]);
}

/// The first character that comes once only, and not at the very beginning.
#[test]
fn an_end_token_ends_a_text_and_is_not_shown() {
    let text = expected("ab", 60, sampling(2));
    let (at, end) = text.char_indices().find(|(at, c)| *at > 3 && c.is_ascii() && text.find(*c) == Some(*at)).unwrap();
    // Without it the text is the same up to there.
    let server = Server::of(0, vec![end as u32], Settings::default());
    let answer = server.post("/v1/completions", &asked("ab", 60, 2)).succeeded();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text[..at]), &json!("stop")));
}

/// Of tokens too, which become text again.
#[test]
fn an_echo_has_the_prompt_before_the_text() {
    let server = Server::start(Settings::default());
    let text = format!("ab{}", expected("ab", 9, sampling(3)));
    for prompt in [json!("ab"), json!([97, 98])] {
        let body = with(asked("", 9, 3), json!({"prompt": prompt, "echo": true}));
        assert_eq!(server.complete(&body), text);
        let streamed = server.post("/v1/completions", &with(body, json!({"stream": true}))).texts().0;
        assert_eq!(streamed[0].0, text);
    }
}

/// Texts that share a round must not see each other, whoever joins and leaves.
#[test]
fn many_streams_at_once_are_what_each_is_alone() {
    let server = Server::start(Settings::default());
    let (texts, together) = (64, Barrier::new(64));
    // Of different lengths, so that they join and leave all the time.
    let asked_for = |i: usize| ("to be or not ".repeat(1 + i % 9), 20 + 3 * (i % 11), i as u64);
    thread::scope(|scope| {
        let (server, together) = (&server, &together);
        let stream = move |i: usize| {
            let (prompt, tokens, seed) = asked_for(i);
            together.wait();
            server.post("/v1/completions", &with(asked(&prompt, tokens, seed), json!({"stream": true}))).texts().0
        };
        let streams: Vec<_> = (0..texts).map(|i| scope.spawn(move || stream(i))).collect();
        for (i, stream) in streams.into_iter().enumerate() {
            let (prompt, tokens, seed) = asked_for(i);
            let alone = expected(&prompt, tokens, sampling(seed));
            assert_eq!(stream.join().unwrap(), [(alone, "length".to_owned())], "{i}");
        }
    });
    server.wait_for("hecate_texts_running", 0.0);
}

/// The form that docs/serving.md has for models that were taught none.
#[test]
fn a_conversation_is_a_prompt_of_its_lines() {
    let server = Server::start(Settings::default());
    // A content of parts is their texts one after another.
    let parts = json!([{"type": "text", "text": "to "}, {"type": "text", "text": "be?"}]);
    let messages = json!([{"role": "system", "content": "Be short."}, {"role": "user", "content": parts}]);
    let body = json!({"model": "tiny", "messages": messages, "max_completion_tokens": 30, "seed": 4});
    let text = expected("system: Be short.\nuser: to be?\nassistant:", 30, sampling(4));
    let answer = server.post("/v1/chat/completions", &body).succeeded();
    assert_eq!(answer["choices"][0]["message"], json!({"role": "assistant", "content": text, "refusal": null}));
    assert_eq!(answer["object"], "chat.completion");
    let mut reply = server.post("/v1/chat/completions", &with(body.clone(), json!({"stream": true})));
    let first: Value = serde_json::from_str(&reply.event().unwrap()).unwrap();
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(reply.texts().0, [(text, "length".to_owned())]);
}

/// Clients list models before anything else, and name one in every request.
#[test]
fn the_model_is_known_by_its_name() {
    let server = Server::start(Settings::default());
    assert_eq!(server.get("/health").succeeded(), json!({"status": "ok"}));
    let models = server.get("/v1/models").succeeded();
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
    assert_eq!(models["data"][0], server.get("/v1/models/tiny").succeeded());
    // Another name is told with the right one.
    assert!(server.get("/v1/models/gpt").refused(404).contains("`tiny`"));
    assert!(
        server.post("/v1/completions", &with(asked("a", 1, 0), json!({"model": "gpt"}))).refused(404).contains("gpt")
    );
}
