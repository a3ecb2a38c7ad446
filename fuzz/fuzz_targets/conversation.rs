//! Chat templates, which end or are stopped; and lines of examples, which are read or refused with their number.
#![no_main]

use hecate_models::{
    ChatTemplate, Message, Vocabulary,
    text::{ExampleForm, Examples, Template},
};

libfuzzer_sys::fuzz_target!(|input: (&str, &str, &str)| {
    let (template, content, lines) = input;
    let messages = [Message::new("user", content)];
    let template = ChatTemplate::new("chat_template.jinja".as_ref(), template, &[("eos_token", "</s>")]);
    if let Ok(template) = &template {
        let _ = template.prompt(&messages);
    }
    let template = template.as_ref().map(|template| template as &dyn Template).map_err(ToString::to_string);
    let form = ExampleForm { vocabulary: &Vocabulary::Bytes, end: None, longest: 64, template };
    let _ = Examples::new("a.jsonl".as_ref(), lines, &form);
});
