//! Elements that are not finite are told of with the place where they appeared first.

use super::fixtures::*;
use hecate_core::Tensor;
use hecate_cpu::Cpu;
use hecate_models::{At, Config, Error, LanguageModel, NonFinite, Place};
use hecate_train::{PUBLISHED, Trainer, checkpoint::Run};
use std::path::Path;

/// Three heads of width 8 in two blocks.
fn three_heads(mixer: &str) -> LanguageModel<Cpu> {
    LanguageModel::new(&Cpu::new(), &Config::uniform(mixer, 2, 24, 3).unwrap(), 1).unwrap()
}

/// Changes a parameter's values.
fn change(model: &mut LanguageModel<Cpu>, name: &str, change: impl Fn(usize, f32) -> f32) {
    let parameter = model.parameters_mut().iter_mut().find(|p| p.name == name).unwrap();
    let values = parameter.value.to_f32().unwrap().into_iter().enumerate().map(|(i, x)| change(i, x)).collect();
    parameter.value = Tensor::from_f32(parameter.value.device(), parameter.value.shape().clone(), values).unwrap();
}

fn finding(model: &LanguageModel<Cpu>) -> Option<NonFinite> {
    let text = corpus().train.tokens.to_vec().unwrap();
    model.first_non_finite(&text[..32], &text[1..33], 2, None).unwrap()
}

#[test]
fn what_is_sound_is_not_told_of() {
    for mixer in ["hebbian", "delta", "titans", "dgd", "attention"] {
        assert_eq!(finding(&three_heads(mixer)), None, "{mixer}");
    }
}

#[test]
fn a_factor_of_zero_is_sound() {
    let mut model = three_heads("delta");
    // A memory that forgets everything: log a = −∞.
    change(&mut model, "model.layers.0.attn.A_log", |i, x| if i == 1 { 88.7 } else { x });
    change(&mut model, "model.layers.0.attn.dt_bias", |i, x| if i == 1 { 100.0 } else { x });
    assert_eq!(finding(&model), None);
}

#[test]
fn the_block_and_the_head_are_named() {
    // Rows of a projection belong to heads, eight to each; one row of a gate's.
    let cases = [
        ("delta", "q_proj.weight", 8 * 24, "`q` of delta"),
        ("delta", "k_proj.weight", 8 * 24, "`k` of delta"),
        ("titans", "v_proj.weight", 8 * 24, "`v` of titans"),
        ("delta", "b_proj.weight", 24, "`theta` of delta"),
        ("titans", "eta_proj.bias", 1, "`log_eta` of titans"),
        ("hebbian", "A_log", 1, "`log_a` of hebbian"),
        ("dgd", "erase_proj.bias", 1, "`beta` of dgd"),
        ("attention", "k_proj.weight", 8 * 24, "`k` of attention"),
    ];
    for (mixer, name, head, expected) in cases {
        let mut model = three_heads(mixer);
        change(&mut model, &format!("model.layers.1.attn.{name}"), |i, x| if i / head == 2 { f32::NAN } else { x });
        let found = finding(&model).unwrap_or_else(|| panic!("{name} of {mixer}"));
        assert_eq!((found.what.as_str(), found.place), (expected, Place { layer: Some(1), head: Some(2) }), "{name}");
        assert!(found.found.is_nan());
    }
}

#[test]
fn what_has_no_heads_is_named_with_its_block() {
    let cases = [
        ("model.embeddings.weight", None, "the embedding of a token"),
        ("model.layers.0.attn.o_proj.weight", Some(0), "the output of the mixer"),
        ("model.layers.1.mlp.up_proj.weight", Some(1), "the output of the MLP"),
        ("model.norm.weight", None, "the score of a token"),
    ];
    for (name, layer, expected) in cases {
        let mut model = three_heads("delta");
        change(&mut model, name, |_, _| f32::INFINITY);
        let found = finding(&model).unwrap();
        assert_eq!((found.what.as_str(), found.place), (expected, Place { layer, head: None }), "{name}");
    }
}

#[test]
fn gradients_are_gone_through_backward() {
    let mut model = three_heads("delta");
    // Scores are finite still, but what they send back is not.
    change(&mut model, "model.norm.weight", |_, x| x * 1e37);
    change(&mut model, "model.layers.1.mlp.up_proj.weight", |_, x| x * 1e6);
    change(&mut model, "model.layers.1.mlp.down_proj.weight", |_, x| x * 1e-6);
    let found = finding(&model).unwrap();
    assert!(found.what.starts_with("the gradient of `model.layers.1."), "{found:?}");
    assert_eq!(found.place, Place { layer: Some(1), head: None });
}

/// A run whose only checkpoint holds a model with this change.
fn run_with(folder: &Path, name: &str, to: impl Fn(usize, f32) -> f32) -> Run {
    let run = Run::new(folder);
    trainer("delta", settings()).save(&run).unwrap();
    let mut changed = model("delta");
    change(&mut changed, name, to);
    let shapes: Vec<_> = changed
        .parameters()
        .iter()
        .map(|p| {
            let bytes: Vec<u8> = p.value.to_f32().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
            (p.name.clone(), p.value.shape().axes().to_vec(), bytes)
        })
        .collect();
    let views = shapes.iter().map(|(name, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let (_, mut files) = run.open(&PUBLISHED).unwrap();
    files.insert("model.safetensors".to_owned(), safetensors::serialize(views, None).unwrap().into());
    run.replace(0, &files, &PUBLISHED, &[]).unwrap();
    run
}

#[test]
fn a_step_that_cannot_be_done_says_where_and_saves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // Head 1 of two, of block 1.
    let run = run_with(folder.path(), "model.layers.1.attn.b_proj.bias", |i, x| if i == 1 { f32::NAN } else { x });
    let mut trainer = Trainer::resume(&Cpu::new(), &run).unwrap();
    let error = trainer.step(&corpus().train.tokens).unwrap_err();
    let Error::NonFinite { place, at, .. } = &error else { panic!("{error}") };
    assert_eq!((*place, *at), (Place { layer: Some(1), head: Some(1) }, At::Step(1)));
    let message = error.to_string();
    for part in ["`theta` of delta", "layer 1, head 1", "NaN", "step 1", "checkpoint", "learning rate"] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert!(trainer.save(&run).is_err());
    assert_eq!(run.latest().unwrap(), Some(0));
}
