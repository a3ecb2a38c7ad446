//! Conversations as templates write them, and what is put around prompts: as transformers does both (`conversations.py`).

use crate::copy;
use hecate_cpu::Cpu;
use hecate_models::{ChatTemplate, Error, Message, Opened, Vocabulary};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Special tokens that `conversations.py` tells templates of.
const TOKENS: [(&str, &str); 2] = [("bos_token", "<s>"), ("eos_token", "</s>")];

/// A file beside this one.
fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("released").join(name);
    fs::read_to_string(path).expect("a file of the tests")
}

/// What `conversations.py` found.
fn found(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&file("conversations.json")).expect("JSON");
    all[part].as_array().expect("a list").clone()
}

/// What a template of these lines makes of a conversation, or what it is refused with.
fn rendered(source: &str, conversation: &str) -> Result<String, String> {
    let template = ChatTemplate::new("t.jinja".as_ref(), source, &TOKENS);
    template.and_then(|template| template.render(conversation)).map_err(|error| {
        assert!(matches!(error, Error::Checkpoint { .. } | Error::Config { .. }), "{error:?}");
        error.to_string()
    })
}

#[test]
fn texts_are_those_of_transformers() {
    let (mut same, mut refused) = (0, 0);
    for case in found("conversations") {
        let (name, conversation) = (case["template"].as_str().unwrap(), case["conversation"].as_str().unwrap());
        let text = rendered(&file(&format!("templates/{name}")), conversation);
        match case["text"].as_str() {
            Some(expected) => {
                assert_eq!(text.as_deref(), Ok(expected), "{name}: {conversation}");
                same += 1;
            }
            None => {
                assert!(text.is_err(), "{name}: {conversation}: {text:?}");
                refused += 1;
            }
        }
    }
    assert!(same >= 55 && refused >= 8, "{same} texts and {refused} refusals");
}

/// What only this language writes so, each beside the text of Python's.
#[test]
fn json_and_dates_are_written_as_python_does() {
    let hello = r#"{"messages":[{"role":"user","content":"a\u007f\u2028é"}],"tools":[{"b":1,"a":-0.0}]}"#;
    for (source, text) in [
        ("{{ messages[0].content | tojson(ensure_ascii=true) }}", r#""a\u007f\u2028\u00e9""#),
        ("{{ messages[0].content | tojson }}", "\"a\u{7f}\u{2028}é\""),
        ("{{ tools | tojson }}", r#"[{"b": 1, "a": -0.0}]"#),
        ("{{ {1: true, none: 2, 1.5: [], true: {}} | tojson }}", r#"{"1": {}, "null": 2, "1.5": []}"#),
        ("{{ [[], {}, [1]] | tojson(indent=1) }}", "[\n [],\n {},\n [\n  1\n ]\n]"),
        ("{{ strftime_now('%Y') | length }} {{ strftime_now('%d %B') | length > 5 }}", "4 True"),
    ] {
        assert_eq!(rendered(source, hello).as_deref(), Ok(text), "{source}");
    }
}

/// What a template says, does not say rightly, or does without end. Each is told with its line.
#[test]
fn a_template_that_fails_says_why() {
    let none = r#"{"messages":[]}"#;
    let refusing = "{% macro m() %}\n{{ raise_exception('roles must alternate') }}\n{% endmacro %}\n{{ m() }}";
    for (source, told) in [
        ("a\n{{ raise_exception('roles must alternate') }}", &["refuses", "line 2", "roles must alternate"][..]),
        (refusing, &["refuses this conversation", "roles must alternate"]),
        ("a\n\n{% for %}", &["t.jinja: the chat template is not understood in line 3"]),
        ("{{ 'a'.nothing() }}", &["fails in line 1", "nothing"]),
        ("{{ messages[0].role }}", &["fails in line 1"]),
        ("{{ 1 | tojson(default=1) }}", &["default"]),
        ("{{ strftime_now('%Q') }}", &["no such format"]),
        ("{% include 'other' %}", &["t.jinja"]),
    ] {
        let found = rendered(source, none).expect_err(source);
        told.iter().for_each(|told| assert!(found.contains(told), "{source}: {found}"));
    }
    for wrong in ["[]", "{}", "{", r#"{"messages": 3}"#, r#"{"messages": [3]}"#] {
        assert!(rendered("x", wrong).expect_err(wrong).contains("`conversation`"), "{wrong}");
    }
}

/// Templates are anybody's: none takes all time, all memory or all of the stack.
#[test]
fn a_template_takes_no_more_than_its_share() {
    let none = r#"{"messages":[]}"#;
    let nested = |inside: &str, end: &str| {
        format!(
            "{{% set ns = namespace(a=[]) %}}{{% for i in range(99000) %}}{{% set ns.a = {inside} %}}{{% endfor %}}{end}"
        )
    };
    let unrolled = format!("{{% set a = [] %}}{}", "{% set a = [a] %}".repeat(50_000));
    let cases = [
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}".to_owned(),
            Some("steps"),
        ),
        // A text that is doubled.
        (nested("ns.a ~ ns.a ~ 'a'", ""), Some("steps")),
        // The same list in all places of another: little memory, and endless JSON.
        (nested("[ns.a, ns.a]", "{{ ns.a | tojson }}").replace("99000", "60"), Some("steps")),
        (nested("[ns.a]", "{{ ns.a | tojson }}").replace("99000", "200"), Some("deep")),
        ("{% set a = 'a' * 90000000 %}{{ a | length }}".to_owned(), Some("steps")),
        ("{{ 'a' | indent(90000000) | length }}".to_owned(), None),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(), Some("recursion")),
        // Let go by recursion, a list in a list.
        (nested("[ns.a]", "done"), Some("done")),
        (nested("{1: ns.a}", "done"), Some("done")),
        (unrolled, Some("")),
    ];
    for (source, told) in cases {
        let text = rendered(&source, none);
        let text = text.unwrap_or_else(|refused| refused);
        let start: String = source.chars().take(120).collect();
        assert!(told.is_none_or(|told| text.contains(told)) && text.len() < 1000, "{start}: {text}");
    }
    let wide = "x".repeat(2 << 20);
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("chat_template.jinja"), &wide).expect("room");
    assert!(ChatTemplate::open(folder.path()).expect_err("too large").to_string().contains("at most 1048576"));
}

#[test]
fn a_folder_has_its_template_in_one_of_two_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || -> Result<String, String> {
        let template = ChatTemplate::open(folder.path()).and_then(|template| template.told("mood", "[\"calm\"]"));
        template.and_then(|template| template.prompt(&[Message::new("user", "Hi")])).map_err(|error| error.to_string())
    };
    assert!(open().expect_err("none").contains("no chat template"));
    let config = |text: &str| fs::write(folder.path().join("tokenizer_config.json"), text).expect("room");
    config(
        r#"{"chat_template":"{{ bos_token }}{{ mood[0] }}{{ eos_token }}","bos_token":"<s>","eos_token":{"content":"</s>"}}"#,
    );
    assert_eq!(open().as_deref(), Ok("<s>calm</s>"));
    assert_eq!(ChatTemplate::open(folder.path()).expect("a template").end(), Some("</s>"));
    config(r#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#);
    assert_eq!(open().as_deref(), Ok("d"));
    fs::write(folder.path().join("chat_template.jinja"), "own {{ messages[0].content }}\n").expect("room");
    assert_eq!(open().as_deref(), Ok("own Hi"));
    fs::write(folder.path().join("chat_template.jinja"), b"\xff").expect("room");
    assert!(open().expect_err("no text").contains("UTF-8"));
    config("{");
    assert!(open().expect_err("damaged").contains("tokenizer_config.json"));
    let template = ChatTemplate::new("t".as_ref(), "x", &[]).expect("a template");
    assert!(template.told("mood", "calm").expect_err("no JSON").to_string().contains("`mood`"));
}

/// A model's folder with this tokenizer.
fn with_tokenizer(tokenizer: &Value, config: &Value) -> tempfile::TempDir {
    let copy = copy("llama");
    fs::write(copy.path().join("tokenizer.json"), tokenizer.to_string()).expect("room");
    fs::write(copy.path().join("tokenizer_config.json"), config.to_string()).expect("room");
    copy
}

fn vocabulary(tokenizer: &Value, config: &Value) -> Vocabulary {
    let folder = with_tokenizer(tokenizer, config);
    Opened::open(&Cpu::new(), folder.path()).and_then(|opened| opened.vocabulary()).expect("a vocabulary")
}

#[test]
fn prompts_have_the_tokens_around_them_that_transformers_puts_there() {
    let all = found("prompts");
    for case in &all {
        let vocabulary = vocabulary(&case["tokenizer"], &case["config"]);
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).expect("tokens");
        let (config, processor) = (&case["config"], &case["tokenizer"]["post_processor"]);
        assert_eq!(vocabulary.encode_prompt("w3 w5").expect("tokens"), expected, "{config} {processor}");
        // What is learned, and what a template wrote, is as it is.
        assert_eq!(vocabulary.encode("w3 w5").expect("tokens"), [3, 5]);
    }
    assert!(all.len() >= 15);
}

/// A damaged part that only prompts need is told of where there is a prompt.
#[test]
fn what_is_put_around_prompts_is_known_or_refused() {
    let mut tokenizer = found("prompts")[0]["tokenizer"].clone();
    let piece = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let template = |single: Vec<Value>| json!({ "type": "TemplateProcessing", "single": single, "special_tokens": { "s": { "ids": [1, 1] } } });
    let many = json!({ "type": "Sequence", "processors": vec![template(vec![piece("s"), text.clone()]); 1000] });
    for (processor, told) in [
        (json!({ "type": "Other" }), "\"Other\""),
        (template(vec![text.clone(), text.clone()]), "2 times"),
        (template(vec![]), "0 times"),
        (template([vec![piece("s"); 40], vec![text.clone()]].concat()), "66 tokens"),
        (many, "twice"),
        (json!({ "type": "BertProcessing", "cls": ["a", -1], "sep": ["b", 2] }), "-1"),
    ] {
        tokenizer["post_processor"] = processor;
        let vocabulary = vocabulary(&tokenizer, &json!({}));
        let refused = vocabulary.encode_prompt("w3").expect_err(told).to_string();
        assert!(refused.contains(told) && refused.contains("tokenizer.json"), "{refused}");
        assert_eq!(vocabulary.encode("w3").expect("tokens"), [3]);
    }
}

/// Templates with a part that is missing or that is there twice: a text or an error, and nothing that gives up.
#[test]
fn damaged_templates_are_texts_or_errors() {
    let conversation = found("conversations")[3]["conversation"].as_str().unwrap().to_owned();
    let (mut texts, mut errors) = (0, 0);
    for name in ["plain", "tools", "thinking", "refusing", "parts", "python"] {
        let source: Vec<char> = file(&format!("templates/{name}.jinja")).chars().collect();
        for at in (0..source.len() - 9).step_by(13) {
            let (before, part, after) = (&source[..at], &source[at..at + 9], &source[at + 9..]);
            for damaged in [[before, &part[at % 9..], after].concat(), [before, part, part, after].concat()] {
                match rendered(&damaged.iter().collect::<String>(), &conversation) {
                    Ok(_) => texts += 1,
                    Err(error) => {
                        assert!(!error.contains("gave up"), "{name} at {at}: {error}");
                        errors += 1;
                    }
                }
            }
        }
    }
    assert!(texts > 100 && errors > 100, "{texts} texts and {errors} errors");
}
