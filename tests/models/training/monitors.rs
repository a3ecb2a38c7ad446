//! What is recorded of memories is what their arrays say, computed once more here.

use super::fixtures::*;
use crate::column::Column;
use approx::assert_relative_eq;
use hecate_models::{LanguageModel, text::Stream};
use hecate_train::{
    evaluate::{evaluate, evaluate_and_monitor},
    metrics::{Metrics, Record, read_metrics},
    monitor::SlotMonitor,
};
use std::{fs, ops::ControlFlow};

fn monitored(model: &LanguageModel<Column>, stream: &Stream) -> Vec<SlotMonitor> {
    let go_on = |_| ControlFlow::Continue(());
    let (score, states) = evaluate_and_monitor(model, stream, 16, go_on).unwrap();
    assert_eq!(score, evaluate(model, stream, 16, go_on).unwrap());
    states
}

/// Root of the sum of squares of a head's elements of `[1,2,..]`.
fn norm(array: &[f32], head: usize) -> f64 {
    let half = array.len() / 2;
    array[head * half..][..half].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn figures_are_those_of_the_arrays() {
    let stream = corpus().held_out.head(101);
    // A trained start: in a fresh model both heads may be alike.
    let mut trainer = trainer("titans_mlp", settings());
    train_to(&mut trainer, 5);
    let model = trainer.model();
    let found = monitored(model, &stream);
    let mut cache = model.cache(1).unwrap();
    model.infer(&stream.tokens.to_vec().unwrap()[..100], 1, &mut cache).unwrap();
    let names: Vec<_> = found.iter().map(|state| (state.layer, state.slot.as_str())).collect();
    let of_layer = ["w0", "s0", "w1", "s1"];
    assert_eq!(names, of_layer.iter().map(|&slot| (0, slot)).chain(of_layer.map(|slot| (1, slot))).collect::<Vec<_>>());
    for state in &found {
        let array = |name: &str| cache.layers()[state.layer].get(name).unwrap().to_f32().unwrap();
        let x = array(&state.slot);
        let figure = |heads: &[Option<f32>], head: usize| f64::from(heads[head].unwrap());
        for head in 0..2 {
            let rms = norm(&x, head) / (x.len() as f64 / 2.0).sqrt();
            assert!(rms > 0.0);
            assert_relative_eq!(figure(&state.rms, head), rms, max_relative = 1e-4);
            if let Some(memory) = state.slot.strip_prefix('s') {
                let ratio = norm(&x, head) / norm(&array(&format!("w{memory}")), head);
                assert_relative_eq!(figure(state.over_memory.as_ref().unwrap(), head), ratio, max_relative = 1e-4);
                assert_eq!(state.from_start, None);
                continue;
            }
            let name = format!("model.layers.{}.attn.initial.{}", state.layer, state.slot);
            let start = model.parameters().iter().find(|parameter| parameter.name == name).unwrap();
            let start = start.value.to_f32().unwrap();
            let apart: Vec<f32> = x.iter().zip(&start).map(|(x, b)| x - b).collect();
            let distance = norm(&apart, head) / norm(&start, head);
            assert_relative_eq!(figure(state.from_start.as_ref().unwrap(), head), distance, max_relative = 1e-3);
            assert_eq!(state.over_memory, None);
        }
    }
}

/// What has no start has no distance from it, what has no momentum no share of it, and attention has no memory.
#[test]
fn every_mixer_says_what_it_has() {
    let stream = corpus().held_out.head(70);
    for (mixer, slots) in [
        ("attention", vec![]),
        ("delta", vec!["m"]),
        ("titans", vec!["m", "s"]),
        ("atlas", vec!["m", "s"]),
        ("lattice", vec!["s"]),
        ("trellis", vec!["sk", "sv"]),
        ("yaad", vec!["w0", "w1"]),
        ("hope", vec!["m"]),
        // A level, a local memory or a copy each.
        ("cms", vec!["m"; 3]),
        ("mag", vec!["m"]),
        ("mac", vec!["m"; 2]),
        ("tnt", vec!["m"; 2]),
    ] {
        let found = monitored(&model(mixer), &stream);
        let first: Vec<_> = found.iter().filter(|state| state.layer == 0).collect();
        assert_eq!(first.iter().map(|state| state.slot.as_str()).collect::<Vec<_>>(), slots, "{mixer}");
        for state in &first {
            assert!(state.rms.len() == 2 && state.rms.iter().all(Option::is_some), "{mixer}: {state:?}");
            // That of mag starts from what learned tokens wrote.
            let starts = matches!(mixer, "lattice" | "trellis" | "yaad" | "hope" | "mag");
            assert_eq!(state.from_start.is_some(), starts, "{mixer}: {state:?}");
            assert_eq!(
                state.over_memory.is_some(),
                matches!(mixer, "titans" | "atlas") && state.slot == "s",
                "{mixer}"
            );
        }
        let memories = first.iter().filter(|state| state.over_memory.is_none());
        assert!(memories.enumerate().all(|(i, state)| state.part == if slots[0] == "m" { i } else { 0 }), "{mixer}");
    }
}

/// Lines of before have no memories in them, lines of now may have figures that are not finite.
#[test]
fn records_are_read_with_and_without_memories() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    fs::write(&path, "{\"step\":1,\"loss\":2.5,\"held_out_loss\":2.0}\n").unwrap();
    let states = vec![SlotMonitor {
        layer: 1,
        part: 0,
        slot: "w0".to_owned(),
        rms: vec![Some(0.5), None],
        from_start: None,
        over_memory: None,
    }];
    let second = Record { step: 2, states, ..Record::default() };
    Metrics::resume(&path, 1).unwrap().add(&second).unwrap();
    let found = read_metrics(&path).unwrap();
    assert_eq!((found[0].loss, found[0].states.len()), (Some(2.5), 0));
    assert_eq!(found[1], second);
    assert!(fs::read_to_string(&path).unwrap().ends_with("{\"layer\":1,\"slot\":\"w0\",\"rms\":[0.5,null]}]}\n"));
}
