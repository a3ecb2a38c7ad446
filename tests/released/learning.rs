//! Released models that learn more: texts packed in a row, and an adapter that learns examples, stops and goes on.

use crate::{MODELS, folder};
use hecate_conformance::error;
use hecate_cpu::Cpu;
use hecate_models::{
    ChatTemplate, LanguageModel, Lora, Opened, Packed, Vocabulary,
    text::{ExampleForm, Examples, Tokens},
};
use hecate_train::{RunPlan, Settings, Trainer, checkpoint::Run, evaluate::evaluate_examples, schedule::Schedule};
use safetensors::SafeTensors;
use std::{fs, ops::ControlFlow, path::Path};

/// The same sums in another order.
const SAME: f64 = 1e-5;

fn open(name: &str) -> Opened<Cpu> {
    on(&Cpu::new(), name)
}

fn on(device: &Cpu, name: &str) -> Opened<Cpu> {
    Opened::open(device, &folder(name)).expect("a folder of a model")
}

/// Tokens under 37, of which none follows from the one before alone.
fn text(length: usize, seed: usize) -> Vec<u32> {
    (0..length).map(|i| ((i * i + seed * (i + 3)) % 37) as u32).collect()
}

/// Gradients of the mean loss, all of them in a row.
fn flat(gradients: &hecate_models::Gradients<Cpu>) -> Vec<f64> {
    let all = gradients.iter().flatten().map(|gradient| gradient.to_f32().expect("values"));
    all.flatten().map(f64::from).collect()
}

/// Texts of one token, shorter than a convolution, and longer than a chunk: each as if it were alone.
#[test]
fn packed_texts_start_afresh() {
    let texts = [2, 3, 70, 9].map(|length| text(length, length));
    for name in MODELS {
        let model = open(name).model().expect("a model");
        let mut packed = Packed::default();
        texts.iter().for_each(|text| packed.push(text, &vec![true; text.len()]));
        let (mut loss, mut gradients) = (0.0, vec![0.0; model.parameters().elements()]);
        for text in &texts {
            let (inputs, targets) = (&text[..text.len() - 1], &text[1..]);
            let (own, of_own) = model.loss_and_gradients(inputs, targets, 1).expect("gradients");
            let share = inputs.len() as f64 / packed.losses() as f64;
            loss += share * own;
            gradients.iter_mut().zip(flat(&of_own)).for_each(|(sum, x)| *sum += share * x);
        }
        let pass = model.pass_packed(&packed).expect("a pass");
        let sum: f32 = pass.loss.to_f32().expect("a loss").iter().sum();
        let found = f64::from(sum) / pass.count as f64;
        assert!((found - loss).abs() <= SAME * loss, "{name}: {found} and {loss}");
        let apart = error(&gradients, &flat(&pass.gradients));
        assert!(apart <= SAME, "{name}: gradients by {apart:.1e}");
        let whole = model.packed_loss(&packed).expect("a loss");
        assert!((whole - loss * packed.losses() as f64).abs() <= SAME * whole, "{name}: {whole}");
    }
}

/// Losses are those of the completion alone, whatever the prompt costs.
#[test]
fn prompts_are_read_and_not_learned() {
    let model = open("llama").model().expect("a model");
    let (text, mut packed) = (text(20, 1), Packed::default());
    let learned: Vec<bool> = (0..20).map(|i| i >= 12).collect();
    packed.push(&text, &learned);
    let rows: Vec<u32> = (11..19).collect();
    let (expected, gradients) = model.answer_loss_and_gradients(&text[..19], 1, &rows, &text[12..]).expect("gradients");
    let pass = model.pass_packed(&packed).expect("a pass");
    let found = pass.loss.to_f32().expect("a loss")[0] / 8.0;
    assert!((f64::from(found) - expected).abs() <= SAME * expected, "{found} and {expected}");
    assert!(error(&flat(&gradients), &flat(&pass.gradients)) <= SAME);
    let told = model.pass_packed(&Packed::default()).expect_err("nothing").to_string();
    assert!(told.contains("`tokens with a loss` is 0"), "{told}");
}

/// Words of four characters that the small models have tokens for.
const LINES: &str = "{\"prompt\": \"!!\", \"completion\": \"## ##\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"$ $\"}, \
                     {\"role\": \"assistant\", \"content\": \"  $$\"}]}\n\
                     {\"text\": \"#!#!#!#!#!#\"}";
/// A sign ends what each says.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}!{% endfor %}";

fn examples() -> Examples {
    let template = ChatTemplate::new("t.jinja".as_ref(), TEMPLATE, &[]).expect("a template");
    let form = ExampleForm { vocabulary: &Vocabulary::Bytes, end: Some(2), longest: 64, template: Ok(&template) };
    Examples::new(Path::new("lines"), LINES, &form).expect("examples")
}

fn settings(steps: u64) -> Settings {
    let schedule = Schedule { peak: 0.02, floor: 0.01, warmup: 1, steps };
    Settings { batch: 2, tokens: 64, schedule, ..Settings::over(steps) }
}

fn adapted(opened: &Opened<Cpu>, rank: usize) -> LanguageModel<Cpu> {
    opened.adapt(opened.model().expect("a model"), &Lora::of_rank(rank), 3).expect("an adapter")
}

fn trainer(opened: &Opened<Cpu>, examples: &Examples) -> Trainer<Cpu> {
    let plan = RunPlan::of(examples.identity().clone(), 12);
    Trainer::from_model(adapted(opened, 2), settings(12), plan, None).expect("a trainer")
}

fn values(model: &LanguageModel<Cpu>) -> Vec<Vec<f32>> {
    model.parameters().iter().map(|parameter| parameter.value.to_f32().expect("values")).collect()
}

#[test]
fn an_adapter_learns_examples_stops_and_goes_on() {
    let (opened, examples) = (open("qwen3_5"), examples());
    let score = |model: &LanguageModel<Cpu>| {
        evaluate_examples(model, &examples, 8, |_| ControlFlow::Continue(())).expect("a score")
    };
    let mut whole = trainer(&opened, &examples);
    let before = score(whole.model());
    // Each example by itself: 6, 5 and 11 tokens, and 5, 5 and 11 bytes. No end token follows the conversation.
    assert_eq!((before.tokens, before.bytes), (22, 21.0));
    while !whole.finished() {
        let report = whole.step(&examples).expect("a step");
        assert!(report.tokens >= 10 && report.tokens <= 22 && report.bytes.is_some(), "{report:?}");
    }
    let after = score(whole.model());
    assert!(after.loss() < 0.8 * before.loss(), "{} and {}", before.loss(), after.loss());

    let folder = tempfile::tempdir().expect("a folder");
    let (run, mut stopped) = (Run::new(folder.path()), trainer(&opened, &examples));
    for _ in 0..5 {
        stopped.step(&examples).expect("a step");
    }
    stopped.save(&run).expect("room");
    // Neither weights nor moments of what is frozen are kept.
    for file in ["model.safetensors", "training.safetensors"] {
        let bytes = fs::read(run.checkpoint(5).join(file)).expect("a file");
        let file = SafeTensors::deserialize(&bytes).expect("a whole file");
        assert!(file.names().iter().all(|name| name.contains(".lora_")), "{:?}", file.names());
    }
    let blank = |device: &Cpu, _: &Path, _: &[u8]| Ok(adapted(&on(device, "qwen3_5"), 2));
    let mut resumed = Trainer::resume_with(&Cpu::new(), &run, &blank).expect("a checkpoint");
    while !resumed.finished() {
        resumed.step(&examples).expect("a step");
    }
    assert_eq!(values(resumed.model()), values(whole.model()));
    let other = |device: &Cpu, _: &Path, _: &[u8]| Ok(adapted(&on(device, "qwen3_5"), 3));
    let told = Trainer::resume_with(&Cpu::new(), &run, &other).expect_err("another rank").to_string();
    assert!(told.contains("lora_A.weight") && told.contains("shape"), "{told}");
}

/// All of a model learns, and is written as it came: a text, and what carries no examples.
#[test]
fn a_whole_model_learns_and_is_written_back() {
    let opened = open("qwen3_5_text");
    let tokens = Tokens::from(text(200, 5));
    let plan = RunPlan::of(examples().identity().clone(), 12);
    let model = opened.model().expect("a model");
    let mut learning = Trainer::from_model(model, settings(12), plan.clone(), None).expect("a trainer");
    let first = learning.step(&tokens).expect("a step").loss;
    let mut last = first;
    while !learning.finished() {
        last = learning.step(&tokens).expect("a step").loss;
    }
    assert!(last < 0.9 * first, "{first} and {last}");
    let written = tempfile::tempdir().expect("a folder");
    fs::create_dir(written.path().join("training")).expect("a folder");
    opened.save(learning.model(), written.path()).expect("room");
    let again = Opened::open(&Cpu::new(), written.path()).expect("a folder of a model");
    assert_eq!((again.types(), again.files()), (opened.types(), opened.files()));
    // Files of 16 bits round what was learned.
    let text = text(40, 2);
    let loss = |model: &LanguageModel<Cpu>| model.loss(&text[..39], &text[1..], 1).expect("a loss");
    let (learned, read) = (loss(learning.model()), loss(&again.model().expect("a model")));
    assert!((learned - read).abs() < 0.05 * learned && learned != first, "{learned} and {read}");
    let carrying = Settings { carry: 2, ..settings(12) };
    let mut carrying = Trainer::from_model(opened.model().expect("a model"), carrying, plan, None).expect("a trainer");
    let told = carrying.step(&examples()).expect_err("carried").to_string();
    assert!(told.contains("`carry` is 2"), "{told}");
}
