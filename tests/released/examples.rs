//! Examples to learn from, in lines of JSON: what is read of them, what has a loss, and what is refused.

use hecate_models::{
    ChatTemplate, Packed, Result, Vocabulary,
    text::{ExampleForm, Examples, Identity, Template},
};
use serde_json::{Value, json};
use std::path::Path;

/// Who speaks, what is said, and an end of it.
const PLAIN: &str = "{% for m in messages %}{{ {'user': 'U', 'assistant': 'A', 'system': 'S', 'tool': 'T'}[m.role] }}:{{ m.content }};\
                     {% endfor %}{% if add_generation_prompt %}A:{% endif %}";

/// The examples of these lines, a byte a token; conversations are written by a template, where there is one.
fn read(lines: &str, longest: usize, source: Option<&str>) -> Result<Examples> {
    read_by(&Vocabulary::Bytes, lines, longest, source)
}

fn read_by(vocabulary: &Vocabulary, lines: &str, longest: usize, source: Option<&str>) -> Result<Examples> {
    let template = source.map(|source| ChatTemplate::new("t.jinja".as_ref(), source, &[]).expect("a template"));
    let template = template.as_ref().map(|template| template as &dyn Template).ok_or_else(|| "no such file".to_owned());
    let form = ExampleForm { vocabulary, end: Some(0), longest, template };
    Examples::new(Path::new("lines.jsonl"), lines, &form)
}

/// What is read and what has a loss, by hand.
fn packed(texts: &[(&[u8], &[bool])]) -> Packed {
    let mut packed = Packed::default();
    for (text, learned) in texts {
        packed.push(&text.iter().map(|&byte| byte.into()).collect::<Vec<_>>(), learned);
    }
    packed
}

#[test]
fn completions_are_learned_and_prompts_are_not() {
    let lines = "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n\n {\"text\": \"xy\", \"other\": 1}\r\n";
    let examples = read(lines, 9, None).expect("examples");
    let expected: [(&[u8], &[bool]); 2] =
        [(b"abcd\0", &[false, false, true, true, true]), (b"xy\0", &[true, true, true])];
    assert_eq!(examples.packed(&[0, 1]), packed(&expected));
    // Of the first the token after `b` and those after it; of the second all but the first.
    assert_eq!((examples.len(), examples.tokens(), examples.bytes(&[0, 1])), (2, [6, 5], 4));
    assert_eq!(examples.packed(&[1, 0]).losses(), 5);
    // The lines, and what they became: tokens, and which of them are learned.
    let found = examples.identity();
    assert_eq!(Identity { tokens: None, ..found.clone() }, Identity::of(lines));
    assert!(found.tokens.is_some() && read(lines, 9, None).expect("examples").identity() == found);
    let split = read(&lines.replace("\"ab\", \"completion\": \"cd\"", "\"abc\", \"completion\": \"d\""), 9, None);
    assert_ne!(split.expect("examples").identity().tokens, found.tokens);
}

#[test]
fn long_texts_are_cut_and_long_completions_refused() {
    let examples = read("{\"text\": \"abcdefg\"}", 3, None).expect("examples");
    let all = &[true; 4];
    assert_eq!(examples.packed(&[0, 1, 2]), packed(&[(b"abcd", all), (b"defg", all), (b"g\0", all)]));
    // Every token but the first is predicted once.
    assert_eq!((examples.tokens(), examples.bytes(&[0, 1, 2])), ([7, 7], 7));
    let told = read("{\"prompt\": \"abc\", \"completion\": \"d\"}", 3, None).expect_err("a refusal").to_string();
    assert!(told.contains("line 1: 4 tokens, expected at most 3"), "{told}");
    assert!(read("{\"prompt\": \"ab\", \"completion\": \"d\"}", 3, None).is_ok());
}

#[test]
fn bad_lines_are_told_by_file_line_and_field() {
    for (line, told) in [
        ("{", "no JSON"),
        ("[1]", "no object"),
        ("{}", "no field `text`; there are none"),
        ("{\"texts\": 1}", "no field `text`; there are texts"),
        ("{\"text\": 1}", "`text` is no text"),
        ("{\"prompt\": \"a\"}", "no field `completion`; there are prompt"),
        ("{\"prompt\": null, \"completion\": \"a\"}", "`prompt` is no text"),
        ("{\"messages\": []}", "need a chat template, and there is none (no such file); put it into"),
        ("{\"text\": \"\"}", "no token to learn"),
    ] {
        let error = read(&format!("{{\"text\": \"fine\"}}\n{line}\n"), 9, None).expect_err("a refusal").to_string();
        assert!(error.starts_with("lines.jsonl: line 2: ") && error.contains(told), "{error}");
    }
    assert!(read("\n", 9, None).expect_err("a refusal").to_string().contains("no example in it"));
}

/// A message.
fn said(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// Messages as a line, with more fields.
fn line(messages: &[Value], more: &[(&str, Value)]) -> String {
    let mut line = json!({ "messages": messages });
    more.iter().for_each(|(name, value)| line[name] = value.clone());
    line.to_string()
}

/// Whether each byte of a text is between brackets, and the text without them.
fn marked(text: &str) -> (Vec<u8>, Vec<bool>) {
    let mut learned = false;
    let bytes = text.bytes().filter_map(|byte| match byte {
        b'[' | b']' => {
            learned = byte == b'[';
            None
        }
        byte => Some((byte, learned)),
    });
    bytes.unzip()
}

/// The one example of a line is this text, of which what is between brackets has a loss.
#[track_caller]
fn teaches(line: &str, source: &str, text: &str) {
    let examples = read(line, 99, Some(source)).expect("an example");
    let (bytes, learned) = marked(text);
    assert_eq!(examples.packed(&[0]), packed(&[(&bytes, &learned)]), "{line}");
    let count = learned.iter().filter(|learned| **learned).count();
    assert_eq!((examples.len(), examples.bytes(&[0])), (1, count), "{line}");
}

#[test]
fn answers_are_learned_as_the_template_writes_them() {
    let [ask, answer, more, last] =
        [said("user", "q"), said("assistant", "é."), said("user", "r"), said("assistant", "s t")];
    // What the assistant says, and what ends it, but not what opens it. No end token comes after that.
    let all = [ask.clone(), answer.clone(), more.clone(), last.clone()];
    teaches(&line(&all, &[]), PLAIN, "U:q;A:[é.;]U:r;A:[s t;]");
    // What comes after the last answer teaches nothing; a system's words are read.
    let from_system = [&[said("system", "x")][..], &all[..3]].concat();
    teaches(&line(&from_system, &[]), PLAIN, "S:x;U:q;A:[é.;]");
    // Two answers in a row, of which the first has no weight.
    let mut light = answer.clone();
    light["weight"] = 0.into();
    let mut heavy = last.clone();
    heavy["weight"] = 1.into();
    teaches(&line(&[ask.clone(), light.clone(), heavy.clone()], &[]), PLAIN, "U:q;A:é.;A:[s t;]");
    // A template that opens an answer otherwise than it writes it in the end, as those of models that think do.
    let thinking = "{% for m in messages %}{{ m.role[0] }}{{ '<>' if loop.last and m.role == 'assistant' }}{{ m.content }};\
                    {% endfor %}{% if add_generation_prompt %}a<{% endif %}";
    teaches(&line(&all[..2], &[]), thinking, "uq;a<[>é.;]");
    teaches(&line(&[ask, light, more, heavy], &[]), thinking, "uq;aé.;ur;a<[>s t;]");
    // What else a line says is told, in its own order; whether an answer is opened is not the line's to say.
    let tools = "{{ tools[0] | list | join }}{% for m in messages %}{{ m.content or m.tool_calls[0].name }};{% endfor %}\
                 {{ 'A' if add_generation_prompt }}";
    let call = json!({ "role": "assistant", "content": null, "tool_calls": [{ "name": "Af" }] });
    let calling = line(&[said("user", "q"), call], &[("add_generation_prompt", true.into())]);
    teaches(&calling.replacen('{', "{\"tools\": [{\"z\": 1, \"a\": 2}],", 1), tools, "zaq;A[f;]");
}

/// Tokens are those of the whole text. One that begins before an answer and ends in it is learned, one that ends before is not.
#[test]
fn tokens_that_end_in_an_answer_are_learned() {
    let words = json!({ "?": 0, "q;A": 1, ":": 2, "U": 3, "x;": 4, ";": 5 });
    let file = json!({
        "version": "1.0", "added_tokens": [], "decoder": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "q;A|x;|." }, "behavior": "Isolated", "invert": false },
        "model": { "type": "WordLevel", "unk_token": "?", "vocab": words }
    });
    let vocabulary = Vocabulary::from_json("t.json".as_ref(), file.to_string().as_bytes()).expect("a tokenizer");
    let line = line(&[said("user", "q"), said("assistant", "x")], &[]);
    let taught = |source: &str| read_by(&vocabulary, &line, 99, Some(source)).expect("an example").packed(&[0]);
    let mut expected = Packed::default();
    expected.push(&[3, 2, 1, 2, 4], &[false, false, false, false, true]);
    assert_eq!(taught(PLAIN), expected);
    // What opens the answer is the `q;` before `A`, so that the answer begins within a token.
    let mut expected = Packed::default();
    expected.push(&[3, 2, 1, 2, 4], &[false, false, true, true, true]);
    assert_eq!(taught(&PLAIN.replace("%}A:{%", "%}{%")), expected);
}

/// The error of a line, after one that is well.
#[track_caller]
fn refused(line: &str, source: &str, told: &[&str]) {
    let error = read(&format!("{{\"text\": \"fine\"}}\n{line}\n"), 30, Some(source)).expect_err(line);
    assert!(matches!(error, hecate_models::Error::Text { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.starts_with("lines.jsonl: line 2: "), "{error}");
    told.iter().for_each(|told| assert!(error.contains(told), "{error}\nwithout {told}"));
}

#[test]
fn what_is_no_conversation_is_refused_by_its_line() {
    let [ask, answer] = [said("user", "q"), said("assistant", "a")];
    for (messages, told) in [
        (json!([]), &["no list of objects"][..]),
        (json!("q"), &["no list of objects"]),
        (json!([3]), &["message 1: 3 is no object"]),
        (json!([ask, {}]), &["message 2: no field `role`"]),
        (json!([said("bot", "a")]), &["message 1: `role` is \"bot\"", "assistant"]),
        (json!([{ "role": 1, "content": "a" }]), &["`role` is 1"]),
        (json!([{ "role": "user" }]), &["message 1: no field `content`"]),
        (json!([{ "role": "user", "content": ["a"] }]), &["`content` is no text"]),
        (json!([ask, said("assistant", " \n")]), &["message 2: `content` is empty"]),
        (json!([ask, answer, said("user", "")]), &["message 3: `content` is empty"]),
        (json!([ask]), &["no message of the role `assistant` to learn"]),
        (json!([ask, { "role": "assistant", "content": "a", "weight": 0 }]), &["no message of the role `assistant`"]),
        (json!([{ "role": "assistant", "content": "a", "weight": 0.5 }]), &["`weight` is 0.5, expected 0 or 1"]),
        (json!([ask, said("assistant", &"a".repeat(30))]), &["36 tokens, expected at most 30"]),
    ] {
        refused(&json!({ "messages": messages }).to_string(), PLAIN, told);
    }
}

/// Templates that refuse, and those that write earlier turns otherwise later on: what they write then was never asked for.
#[test]
fn templates_that_take_words_back_are_refused_by_line_and_message() {
    let [ask, answer] = [said("user", "q"), said("assistant", "a")];
    let (one, two) =
        (line(&[ask.clone(), answer.clone()], &[]), line(&[ask.clone(), answer.clone(), ask, answer], &[]));
    refused(&one, "\n{{ raise_exception('not today') }}", &["message 2: t.jinja", "line 2: not today"]);
    // Only the last message has a mark.
    let marks = "{% for m in messages %}{{ '<>' if loop.last }}{{ m.content }}{% endfor %}";
    refused(&one, marks, &["message 2", "before this answer otherwise", "\"weight\": 0"]);
    let thinks = "{% for m in messages %}{{ m.role[0] }}{{ '<>' if loop.last and m.role == 'assistant' }}{{ m.content }}\
                  {% endfor %}{{ 'a' if add_generation_prompt }}";
    teaches(&one, thinks, "uqa[<>a]");
    refused(&two, thinks, &["message 4", "an earlier answer", "weight"]);
    refused(&one, "{{ messages[0].content }}", &["message 2: the chat template writes nothing of it"]);
}
