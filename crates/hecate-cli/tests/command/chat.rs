//! Conversations with models that others released, and how these draw tokens.

use super::{
    harness::{Outcome, Workspace},
    released::with_words,
};
use serde_json::{Value, json};
use std::fs;

/// Words around what each says: the question of a conversation is `w2 … w9 w4`.
pub(super) const TEMPLATE: &str = "{% for message in messages %}{{ {'system': 'w1', 'user': 'w2', 'assistant': 'w4'}[message.role] }} \
                        {{ message.content }} w9 {% endfor %}{% if add_generation_prompt %}w4{{ opening }}{% endif %}";
/// Of a model that takes the likeliest word.
const GREEDY: [&str; 2] = ["--temperature", "0"];

/// A model with the template, and what its configurations say. Its words are `w0` to `w36`, its weights those of a small model
/// of the family `llama`, which learned nothing: what it says is as good as any other for telling texts apart.
fn model(tokenizer_config: Value, generation_config: &Value) -> Workspace {
    let workspace = Workspace::new();
    with_words(&workspace, None);
    let mut config = tokenizer_config;
    config["chat_template"] = TEMPLATE.into();
    fs::write(workspace.path("model/tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(workspace.path("model/generation_config.json"), generation_config.to_string()).unwrap();
    workspace
}

/// What `generate` writes after a prompt.
fn continued(workspace: &Workspace, prompt: &str, flags: &[&str]) -> String {
    let found = workspace.run(&[&["generate", "--model", "model", "--prompt", prompt], flags].concat());
    found.succeeded();
    found.stdout.strip_prefix(prompt).expect("the prompt").trim().to_owned()
}

/// What `chat` answers to lines.
fn chat(workspace: &Workspace, flags: &[&str], lines: &str) -> Outcome {
    workspace.run_fed(&[&["chat", "--model", "model"], flags].concat(), lines)
}

/// The answer to a line is what `generate` writes after the same text, whatever of it was read before.
#[test]
fn each_turn_is_answered_after_all_before_it() {
    let workspace = model(json!({}), &json!({}));
    let six = [&GREEDY[..], &["--tokens", "6"]].concat();
    let found = chat(&workspace, &[&six[..], &["--system", "w6 w6"]].concat(), "w3 w5\n\n  \nw7\n");
    found.succeeded();
    let answers: Vec<_> = found.stdout.lines().map(str::trim).collect();
    // Lines without a word are no turns.
    let first = "w1 w6 w6 w9 w2 w3 w5 w9 w4";
    assert_eq!(answers[0], continued(&workspace, first, &six), "{found:?}");
    assert_eq!(answers[0].split(' ').count(), 6);
    // The template writes the first answer as it was.
    let second = format!("{first} {} w9 w2 w7 w9 w4", answers[0]);
    assert_eq!(answers[1..], [continued(&workspace, &second, &six)], "{found:?}");
    assert_eq!(found.stderr.matches("cut off after 6 tokens").count(), 2);

    // The template is told how an answer opens, which later turns do not have.
    let told = chat(&workspace, &[&six[..], &["--tell", "opening=\" w8\""]].concat(), "w3 w5\nw7\n");
    told.succeeded();
    let answers: Vec<_> = told.stdout.lines().map(str::trim).collect();
    assert_eq!(answers[0], continued(&workspace, "w2 w3 w5 w9 w4 w8", &six));
    let second = format!("w2 w3 w5 w9 w4 {} w9 w2 w7 w9 w4 w8", answers[0]);
    assert_eq!(answers[1], continued(&workspace, &second, &six));
}

/// Tokens that end a text are those of `generation_config.json`, and the one that `tokenizer_config.json` names.
#[test]
fn an_answer_ends_at_the_tokens_that_end_texts() {
    let workspace = model(json!({}), &json!({}));
    let found = chat(&workspace, &[&GREEDY[..], &["--tokens", "20"]].concat(), "w3 w5\n");
    let words: Vec<_> = found.stdout.split_whitespace().collect();
    // A word that was not written before.
    let (at, end) = words.iter().enumerate().skip(1).find(|(i, word)| !words[..*i].contains(word)).unwrap();
    let number: u32 = end[1..].parse().unwrap();
    for workspace in [
        model(json!({}), &json!({ "eos_token_id": [36, number] })),
        model(json!({ "eos_token": end }), &json!({})),
        model(json!({ "eos_token": { "content": end } }), &json!({ "eos_token_id": 36 })),
    ] {
        let ended = chat(&workspace, &GREEDY, "w3 w5\n");
        ended.succeeded();
        assert_eq!(ended.stdout.split_whitespace().collect::<Vec<_>>(), words[..at], "{ended:?}");
        assert!(!ended.stderr.contains("cut off"), "{ended:?}");
    }
}

/// Flags, then `generation_config.json`, then Hecate's own.
#[test]
fn tokens_are_drawn_as_the_model_says_unless_flags_do() {
    let (own, greedy) = (model(json!({}), &json!({})), model(json!({}), &json!({ "do_sample": false })));
    let twelve = |workspace: &Workspace, flags: &[&str]| {
        continued(workspace, "w3 w5", &[&["--tokens", "12"][..], flags].concat())
    };
    let likeliest = twelve(&own, &GREEDY);
    // Whether the likeliest word is taken, the file says, and flags may say otherwise.
    assert_eq!(twelve(&greedy, &[]), likeliest);
    assert_ne!(twelve(&own, &["--temperature", "9", "--top-p", "1"]), likeliest);
    assert_ne!(twelve(&greedy, &["--temperature", "9"]), likeliest);
    // Of all words only the likeliest is as likely as itself.
    assert_eq!(twelve(&own, &["--temperature", "9", "--min-p", "1"]), likeliest);
    assert_eq!(twelve(&greedy, &["--temperature", "9", "--top-k", "1"]), likeliest);
    // With so large a penalty no word comes again before all others were there.
    let penalty = model(json!({}), &json!({ "do_sample": false, "repetition_penalty": 50 }));
    assert_ne!(twelve(&penalty, &[]), likeliest);
    assert_eq!(twelve(&penalty, &["--repetition-penalty", "1"]), likeliest);
    assert_eq!(twelve(&own, &["--repetition-penalty", "50", "--temperature", "0"]), twelve(&penalty, &[]));
    // Of four words that are always drawn, each costs more, or less, the more often it was there.
    let four = |penalties: &[&str]| {
        let biased = (11..15).map(|i| format!("--logit-bias={i}=1000"));
        let biased: Vec<String> = biased.chain(["--temperature=0".to_owned()]).collect();
        twelve(&own, &[&biased.iter().map(String::as_str).collect::<Vec<_>>(), penalties].concat())
    };
    let different = |text: &str| text.split(' ').collect::<std::collections::BTreeSet<_>>().len();
    let counts = [
        ["--presence-penalty", "2", "--frequency-penalty", "2"],
        ["--presence-penalty", "-2", "--frequency-penalty", "-2"],
    ]
    .map(|penalties| different(&four(&penalties)));
    assert!(counts == [4, 1], "{counts:?}");
    // A word with so large a bias is always drawn, and one with a bias of −∞ never.
    assert_eq!(twelve(&own, &["--logit-bias", "11=1000", "--temperature", "9"]), ["w11"; 12].join(" "));
    let first = likeliest.split(' ').next().unwrap();
    let without = twelve(&own, &["--temperature", "0", "--logit-bias", &format!("{}=-inf", &first[1..])]);
    assert!(!without.split(' ').any(|word| word == first), "{without}");

    let told = |workspace: &Workspace| workspace.run(&["info", "--model", "model"]).stdout;
    assert!(told(&own).contains("sampling    not told, so temperature 0.8, top-p 0.95"), "{}", told(&own));
    assert!(
        told(&penalty).contains("sampling    temperature 0, top-k 50, repetition penalty 50"),
        "{}",
        told(&penalty)
    );
    assert!(told(&own).contains("chat        by its own template"));
}

/// The tokenizer's own token for the beginning of a text.
#[test]
fn a_prompt_has_the_tokens_that_the_tokenizer_puts_around_it() {
    let plain = model(json!({}), &json!({ "do_sample": false }));
    let begun = model(json!({}), &json!({ "do_sample": false }));
    let path = begun.path("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing", "pair": [], "special_tokens": { "w1": { "id": "w1", "ids": [1], "tokens": ["w1"] } },
        "single": [{ "SpecialToken": { "id": "w1", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }]
    });
    fs::write(path, tokenizer.to_string()).unwrap();
    let six = ["--tokens", "6"];
    let (with, without) = (continued(&plain, "w1 w3 w5", &six), continued(&plain, "w3 w5", &six));
    assert_ne!(with, without);
    assert_eq!(continued(&begun, "w3 w5", &six), with);
    // Conversations have what their template writes.
    assert_eq!(chat(&begun, &six, "w3 w5\n").stdout, chat(&plain, &six, "w3 w5\n").stdout);
    // Lines are texts of their own, and go on without it.
    let lines = |workspace: &Workspace, flags: &[&str], input: &str| {
        let found =
            workspace.run_fed(&[&["generate", "--model", "model", "--interactive"], &six[..], flags].concat(), input);
        found.succeeded();
        found.stdout
    };
    assert_eq!(lines(&begun, &[], "w3 w5\nw7\n"), lines(&plain, &[], "w1 w3 w5\nw1 w7\n"));
    assert_eq!(lines(&begun, &["--continue"], "w3 w5\nw7\n"), lines(&plain, &["--continue"], "w1 w3 w5\nw7\n"));
}

/// A GGUF file with a template in it answers as `generate` goes on after the same text.
#[test]
fn a_gguf_file_converses() {
    let workspace = Workspace::new();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/released/gguf/blocks.gguf");
    let mut bytes = fs::read(path).unwrap();
    let converse = |bytes: &[u8]| {
        fs::write(workspace.path("model.gguf"), bytes).unwrap();
        workspace.run_fed(&["chat", "--model", "model.gguf", "--temperature", "0", "--tokens", "5"], "cat\n")
    };
    converse(&bytes).failed(1, &["model.gguf", "no chat template in this file"]);
    // Texts of the format have their lengths before them.
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let source = "{{ eos_token }}{% for m in messages %}the {{ m.content }}{% endfor %}";
    // A whole number of 32 bytes, so that arrays stay where they are in blocks of that length.
    let whole = (12 + text("tokenizer.chat_template").len() + source.len()).next_multiple_of(32);
    let source = format!("{source:<width$}", width = whole - 12 - text("tokenizer.chat_template").len());
    let entry = [text("tokenizer.chat_template"), 8u32.to_le_bytes().to_vec(), text(&source)].concat();
    // Otherwise all arrays would lie elsewhere.
    assert_eq!(entry.len() % 32, 0);
    // One entry more than the file says, in front of the others.
    bytes[16] += 1;
    bytes.splice(24..24, entry);
    let answered = converse(&bytes);
    answered.succeeded();
    // Blanks at the end of the template are a part of the text.
    let said = format!("<|im_end|>the cat{}", " ".repeat(source.len() - source.trim_end().len()));
    let flags = ["generate", "--model", "model.gguf", "--temperature", "0", "--tokens", "5", "--prompt", &said];
    let continued = workspace.run(&flags);
    continued.succeeded();
    assert_eq!(continued.stdout.strip_prefix(&said), Some(&answered.stdout[..]), "{answered:?}");
    assert!(!answered.stdout.trim().is_empty(), "{answered:?}");
}

/// Each mistake is told with the way out, before weights are read where that can be.
#[test]
fn what_cannot_be_a_conversation_is_refused() {
    let workspace = model(json!({}), &json!({}));
    let refused = |flags: &[&str], code: i32, told: &[&str]| chat(&workspace, flags, "w3\n").failed(code, told);
    // Numbers out of their ranges, by the names of flags.
    refused(&["--min-p", "2"], 1, &["min-p", "at most 1"]);
    refused(&["--repetition-penalty", "0"], 1, &["repetition penalty", "above 0"]);
    refused(&["--presence-penalty", "-2.5"], 2, &["--presence-penalty", "-2.5", "from -2 to 2"]);
    refused(&["--frequency-penalty", "nan"], 2, &["--frequency-penalty", "nan", "from -2 to 2"]);
    refused(&["--logit-bias", "37=1"], 1, &["--logit-bias", "37", "under 37"]);
    refused(&["--logit-bias", "much"], 2, &["--logit-bias", "42=-1.5"]);
    // What a template is told has a name, and a value in JSON.
    refused(&["--tell", "opening"], 2, &["--tell", "enable_thinking=false"]);
    refused(&["--tell", "opening=w8"], 1, &["opening", "JSON"]);
    workspace.run(&["chat", "--model", "nowhere"]).failed(1, &["nowhere", "no such folder"]);
    // A template may refuse what was said, in its own words.
    fs::write(workspace.path("model/chat_template.jinja"), "\n{{ raise_exception('not today') }}").unwrap();
    refused(&[], 1, &["chat_template.jinja", "refuses this conversation in line 2: not today"]);
    // Without one the model was taught no conversations.
    fs::remove_file(workspace.path("model/chat_template.jinja")).unwrap();
    fs::write(workspace.path("model/tokenizer_config.json"), "{}").unwrap();
    refused(&[], 1, &["no chat template", "continue texts"]);
}

/// Of an endless answer; the program goes on, and a line is answered after it.
#[cfg(unix)]
#[test]
fn ctrl_c_stops_an_answer_and_not_the_program() {
    use std::{
        io::{Read, Write},
        process::{Command, Stdio},
    };
    let workspace = model(json!({}), &json!({}));
    let mut command = workspace.command(&["chat", "--model", "model", "--temperature", "0", "--tokens", "100000000"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // By the system's own command: the standard library sends no such signal.
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let interrupt =
        || assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    // Until a line has so many bytes, after so many lines.
    let mut written = Vec::new();
    let mut read = |lines: usize| {
        let mut byte = [0];
        let long = |written: &[u8]| written.split(|byte| *byte == b'\n').nth(lines).is_some_and(|line| line.len() > 20);
        while !long(&written) {
            assert_eq!(output.read(&mut byte).unwrap(), 1, "it ended");
            written.push(byte[0]);
        }
    };
    input.write_all(b"w3 w5\n").unwrap();
    read(0);
    interrupt();
    // It waits until the answer before has ended.
    input.write_all(b"w7\n").unwrap();
    read(1);
    interrupt();
    // Where standard input ends, so does the conversation.
    drop(input);
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).map(|_| rest)
    });
    let ended = Outcome::new(child.wait_with_output().unwrap());
    ended.succeeded();
    assert!(rest.join().unwrap().unwrap().ends_with(b"\n"));
}
