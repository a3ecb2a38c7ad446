//! What released models are told and taught: templates, turns, stop texts, examples and adapters that need not make sense.

use crate::{device, hold, sizes::size, sound};
use hecate_models::{
    ChatTemplate, Config, LanguageModel, Lora, Message, Opened, Reading, Vocabulary,
    generate::Stops,
    sampling::{Sampler, Sampling},
    text::{ExampleForm, Examples, Template},
};
use hecate_train::{Trainer, checkpoint::Run, evaluate::evaluate_examples};
use proptest::{collection::vec, prelude::*};
use std::{fs, ops::ControlFlow, path::Path};

/// Parts of templates, in any order.
const PARTS: [&str; 14] = [
    "{% for m in messages %}",
    "{% endfor %}",
    "{{ m.content }}",
    "{{ messages[0]['role'] | upper }}",
    "{% if add_generation_prompt %}",
    "{% endif %}",
    "{% set x = [x, x] %}",
    "{{ x | tojson }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ raise_exception('no') }}",
    "{{ 'a' * 100000000 }}",
    "{%-",
    "}}",
    "{# ",
];

#[test]
fn conversations_are_written_or_refused() {
    let parts = vec(prop_oneof![4 => prop::sample::select(&PARTS[..]).prop_map(str::to_owned), 1 => "\\PC{0,8}"], 0..9);
    hold(100, &(parts, vec(("\\PC{0,5}", "\\PC{0,9}"), 0..3)), |(parts, said)| {
        let messages: Vec<_> = said.iter().map(|(role, content)| Message::new(role, content)).collect();
        let source = parts.concat();
        let told =
            |made: hecate_models::Result<ChatTemplate>| match made.and_then(|template| template.prompt(&messages)) {
                Ok(_) => {}
                Err(error) => assert!(error.to_string().len() > 10, "{error}"),
            };
        sound("ChatTemplate::new", || told(ChatTemplate::new("a.jinja".as_ref(), &source, &[("eos_token", "<e>")])))?;
        let folder = tempfile::tempdir().expect("a folder");
        let name = if source.len() % 2 == 0 { "chat_template.jinja" } else { "tokenizer_config.json" };
        fs::write(folder.path().join(name), &source).expect("room");
        sound("ChatTemplate::open", || told(ChatTemplate::open(folder.path())))?;
        Ok(())
    });
}

#[test]
fn turns_are_read_or_refused() {
    let config = Config { vocabulary_size: 7, ..Config::uniform("delta", 1, 8, 2).expect("a configuration") };
    let model = LanguageModel::new(&device(), &config, 1).expect("a model");
    let turn = vec(prop_oneof![20 => 0..7u32, 1 => any::<u32>()], 0..9);
    hold(100, &vec((turn, size(), 0..4usize), 0..5), |turns| {
        let mut reading = sound("Reading::new", || Reading::new(&model))?;
        for (turn, lasting, count) in turns {
            let penalty = Sampling { repetition_penalty: 1.5, ..Sampling::default() };
            let mut sampler = Sampler::new(penalty).expect("a sampler");
            sound("Sampler::read", || sampler.read(&turn))?;
            let Ok(mut answer) = sound("Reading::read", || reading.read(&turn, lasting, sampler))? else { continue };
            let drawn: Vec<u32> = answer.by_ref().take(count).flatten().collect();
            let _ = sound("Reading::keep", || reading.keep(answer, &drawn))?;
        }
        Ok(())
    });
}

/// No part of a stop text is shown, wherever it is cut.
#[test]
fn texts_end_before_their_stops() {
    hold(200, &(vec("[ab]{0,3}", 0..3), vec("[abc]{0,4}", 0..6)), |(stops, pieces)| {
        let mut stopping = sound("Stops::new", || Stops::new(stops.clone()))?;
        let mut shown = Vec::new();
        for piece in &pieces {
            if !stopping.met() {
                shown.extend(sound("Stops::push", || stopping.push(piece.as_bytes()))?);
            }
        }
        if !stopping.met() {
            shown.extend(sound("Stops::finish", || stopping.finish())?);
        }
        let (shown, whole) = (String::from_utf8(shown).expect("letters"), pieces.concat());
        prop_assert!(whole.starts_with(&shown));
        prop_assert!(stops.iter().all(|stop| stop.is_empty() || !shown.contains(stop)), "{} {:?}", shown, stops);
        Ok(())
    });
}

#[test]
fn examples_are_read_or_refused() {
    let model = LanguageModel::new(&device(), &Config::uniform("delta", 1, 8, 2).expect("a configuration"), 1)
        .expect("a model");
    let line = prop_oneof![
        3 => "[a-z\"\\\\]{0,9}".prop_map(|text| serde_json::json!({ "text": text }).to_string()),
        2 => ("[a-z]{0,5}", "[a-z]{0,5}")
            .prop_map(|(prompt, completion)| serde_json::json!({ "prompt": prompt, "completion": completion }).to_string()),
        1 => "\\PC{0,20}",
        3 => vec((prop::sample::select(&["user", "assistant", "b"][..]), "[a-z]{0,3}", 0..3u32), 0..4).prop_map(|said| {
            let said = said.iter().map(|(role, content, weight)| {
                serde_json::json!({ "role": role, "content": content, "weight": weight })
            });
            serde_json::json!({ "messages": said.collect::<Vec<_>>() }).to_string()
        }),
    ];
    let template = vec(prop::sample::select(&PARTS[..]), 0..9).prop_map(|parts| parts.concat());
    let draws = (vec(line, 0..4), template, any::<Option<u32>>(), size(), size());
    hold(100, &draws, |(lines, source, end, longest, segment)| {
        let lines = lines.join("\n");
        // One that is not understood is as none.
        let template = ChatTemplate::new("a.jinja".as_ref(), &source, &[]).map_err(|error| error.to_string());
        let template = template.as_ref().map(|template| template as &dyn Template).map_err(String::clone);
        let form = ExampleForm { vocabulary: &Vocabulary::Bytes, end, longest, template };
        let made = sound("Examples::new", || Examples::new("a".as_ref(), &lines, &form))?;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        fs::write(&path, &lines).expect("room");
        let read = sound("Examples::open", || Examples::open(&[path], &form))?;
        prop_assert_eq!(read.is_ok(), made.is_ok(), "{:?} {:?}", read.err(), made.err());
        if let Ok(examples) = made {
            let measure = || evaluate_examples(&model, &examples, segment, |_| ControlFlow::Continue(())).map(|_| ());
            let measured = sound("evaluate_examples", measure)?;
            prop_assert!(measured.is_ok() || end.is_some_and(|end| end > 255), "{:?}", measured);
        }
        Ok(())
    });
}

#[test]
fn adapters_are_made_and_read_or_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("released/models/llama");
    let opened = Opened::open(&device(), &path).expect("a model");
    let target = prop::sample::select(vec!["q_proj", "mlp.up_proj", "lm_head", "", "model"]);
    let json = prop_oneof![3 => Just(None), 1 => "\\PC{0,30}".prop_map(Some)];
    let draws = (size(), any::<f32>(), vec(target, 0..3), json);
    hold(20, &draws, |(rank, alpha, targets, json)| {
        let targets = targets.into_iter().map(str::to_owned).collect();
        let lora = Lora { alpha, targets, ..sound("Lora::of_rank", || Lora::of_rank(rank))? };
        let model = opened.model().expect("a model");
        let adapted = sound("Opened::adapt", || opened.adapt(model, &lora, 1).map(|_| ()))?;
        prop_assert!(adapted.is_err() || (rank > 0 && alpha > 0.0));
        let folder = tempfile::tempdir().expect("a folder");
        let config =
            serde_json::json!({ "peft_type": "LORA", "r": rank, "lora_alpha": 1, "target_modules": ["q_proj"] });
        fs::write(folder.path().join("adapter_config.json"), json.unwrap_or(config.to_string())).expect("room");
        let model = opened.model().expect("a model");
        prop_assert!(sound("Opened::read_adapter", || opened.read_adapter(model, folder.path()))?.is_err());
        let run = Run::new(folder.path());
        let resumed = sound("Trainer::resume_with", || {
            Trainer::resume_with(&device(), &run, &|_, _, _| opened.model()).map(|_| ())
        })?;
        prop_assert!(resumed.is_err());
        Ok(())
    });
}
