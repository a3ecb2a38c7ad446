//! Reading token by token is reading all at once, in constant memory.

use super::{GROUP, SEGMENT, TOKENS, all, tokens};
use crate::column::{Column, device, is_missing};
use hecate_conformance::{Array, error};
use hecate_models::{Cache, LanguageModel};

const LENGTH: usize = 4 * SEGMENT + 2;
const BATCH: usize = 2;

/// What rounding may change. Slots after a norm that forget are taught by steps as long as what is left of them: what
/// differs grows on from there.
fn limit(name: &str) -> f64 {
    if name.contains("Trellis") { 1e-3 } else { 1e-4 }
}

/// Scores of two texts, read in calls that end at `ends`, and what is remembered after them.
fn read(model: &LanguageModel<Column>, text: &[u32], ends: impl IntoIterator<Item = usize>) -> (Array, Cache<Column>) {
    let mut cache = model.cache(BATCH).expect("a cache");
    let (bytes, mut parts) = (cache.bytes(), Vec::new());
    for end in ends {
        let from = cache.position();
        let part: Vec<u32> = text.chunks(LENGTH).flat_map(|row| &row[from..end]).copied().collect();
        parts.push(Array::download(&model.infer(&part, BATCH, &mut cache).expect("scores")).expect("scores"));
        assert_eq!(cache.bytes(), bytes, "what is remembered grew");
    }
    (Array::join(&parts, 1), cache)
}

#[test]
fn in_parts_is_all_at_once() {
    if is_missing() {
        return;
    }
    let text = tokens(BATCH * LENGTH, 3);
    for (name, config) in all() {
        let model = LanguageModel::new(&device(), &config, 11).expect("a model");
        let (whole, last) = read(&model, &text, [LENGTH]);
        assert_eq!(whole.shape.axes(), [BATCH, LENGTH, TOKENS as usize], "{name}");
        let group = model.group();
        assert!(group == 1 || group == GROUP, "{name}: groups of {group}");
        let steps = (group..LENGTH).step_by(group).chain([LENGTH]);
        let uneven = [3, 9, 12, 21, LENGTH];
        for (what, (parts, end)) in
            [("group by group", read(&model, &text, steps)), ("in parts", read(&model, &text, uneven))]
        {
            let off = error(&whole.values, &parts.values);
            assert!(off <= limit(&name), "{name}, {what}: scores are off by {off:.1e}");
            for ((slot, one), (_, other)) in last.layers()[0].iter().zip(end.layers()[0].iter()) {
                let [one, other] = [one, other].map(|x| Array::download(x).expect("an array").values);
                let off = if one == other { 0.0 } else { error(&one, &other) };
                assert!(off <= limit(&name), "{name}, {what}: {slot} is off by {off:.1e}");
            }
        }
    }
}

#[test]
fn scores_are_those_of_the_loss() {
    if is_missing() {
        return;
    }
    let (inputs, targets) = (tokens(BATCH * LENGTH, 7), tokens(BATCH * LENGTH, 8));
    for (name, config) in all() {
        let model = LanguageModel::new(&device(), &config, 11).expect("a model");
        let scores = read(&model, &inputs, [LENGTH]).0;
        let surprise =
            |(row, &target): (&[f64], &u32)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[target as usize];
        let mean = scores.values.chunks(TOKENS as usize).zip(&targets).map(surprise).sum::<f64>() / inputs.len() as f64;
        // Without and with a record: no cache is kept then.
        let loss = model.loss(&inputs, &targets, BATCH).expect("a loss");
        let recorded = model.loss_and_gradients(&inputs, &targets, BATCH).expect("gradients").0;
        for loss in [loss, recorded] {
            assert!((loss - mean).abs() <= 1e-5 * mean, "{name}: loss {loss}, from scores {mean}");
        }
    }
}
