//! Chat templates, which end or are stopped; and lines of examples, which are read or refused with their number.
#![no_main]

use hecate_models::{ChatTemplate, Message, Vocabulary, text::Examples};

libfuzzer_sys::fuzz_target!(|input: (&str, &str, &str)| {
    let (template, content, lines) = input;
    let messages = [Message::new("user", content)];
    if let Ok(template) = ChatTemplate::new("chat_template.jinja".as_ref(), template, &[("eos_token", "</s>")]) {
        let _ = template.prompt(&messages);
    }
    let _ = Examples::new("a.jsonl".as_ref(), lines, &Vocabulary::Bytes, None, 64);
});
