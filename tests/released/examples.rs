//! Examples to learn from, in lines of JSON: what is read of them, what has a loss, and what is refused.

use hecate_models::{
    Packed, Result, Vocabulary,
    text::{Examples, Identity},
};
use std::path::Path;

fn read(lines: &str, longest: usize) -> Result<Examples> {
    Examples::new(Path::new("lines.jsonl"), lines, &Vocabulary::Bytes, Some(0), longest)
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
    let examples = read(lines, 9).expect("examples");
    let expected: [(&[u8], &[bool]); 2] =
        [(b"abcd\0", &[false, false, true, true, true]), (b"xy\0", &[true, true, true])];
    assert_eq!(examples.packed(&[0, 1]), packed(&expected));
    // Of the first the token after `b` and those after it; of the second all but the first.
    assert_eq!((examples.len(), examples.tokens(), examples.bytes(&[0, 1])), (2, [6, 5], 4));
    assert_eq!(examples.packed(&[1, 0]).losses(), 5);
    assert_eq!(examples.identity(), &Identity::of(lines));
}

#[test]
fn long_texts_are_cut_and_long_completions_refused() {
    let examples = read("{\"text\": \"abcdefg\"}", 3).expect("examples");
    let all = &[true; 4];
    assert_eq!(examples.packed(&[0, 1, 2]), packed(&[(b"abcd", all), (b"defg", all), (b"g\0", all)]));
    // Every token but the first is predicted once.
    assert_eq!((examples.tokens(), examples.bytes(&[0, 1, 2])), ([7, 7], 7));
    let told = read("{\"prompt\": \"abc\", \"completion\": \"d\"}", 3).expect_err("a refusal").to_string();
    assert!(told.contains("line 1: 4 tokens, expected at most 3"), "{told}");
    assert!(read("{\"prompt\": \"ab\", \"completion\": \"d\"}", 3).is_ok());
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
        ("{\"messages\": []}", "chat template, which is not built yet"),
        ("{\"text\": \"\"}", "no token to learn"),
    ] {
        let error = read(&format!("{{\"text\": \"fine\"}}\n{line}\n"), 9).expect_err("a refusal").to_string();
        assert!(error.starts_with("lines.jsonl: line 2: ") && error.contains(told), "{error}");
    }
    assert!(read("\n", 9).expect_err("a refusal").to_string().contains("no example in it"));
}
