//! No output depends on a later token.

use super::{SEGMENT, TOKENS, all, tokens};
use crate::column::{Column, device, is_missing};
use hecate_models::LanguageModel;

const LENGTH: usize = 3 * SEGMENT + 1;

fn scores(model: &LanguageModel<Column>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let logits = model.infer(tokens, 1, &mut model.cache(1).expect("a cache")).expect("scores");
    logits.to_f32().expect("scores").chunks(TOKENS as usize).map(<[f32]>::to_vec).collect()
}

#[test]
fn later_tokens_do_not_reach_back() {
    if is_missing() {
        return;
    }
    let text = tokens(LENGTH, 9);
    for (name, config) in all() {
        let model = LanguageModel::new(&device(), &config, 11).expect("a model");
        let before = scores(&model, &text);
        // The first token, inside of a segment, and both sides of its end.
        for changed in [0, 2, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT - 1, LENGTH - 1] {
            let mut other = text.clone();
            other[changed] = (other[changed] + 1) % TOKENS;
            let after = scores(&model, &other);
            assert_eq!(before[..changed], after[..changed], "{name}: token {changed} changed an earlier score");
            assert_ne!(before[changed], after[changed], "{name}: token {changed} did not change its own score");
            // A neuron that fires has forgotten all that was before.
            if changed < SEGMENT && !name.contains("Lif") {
                let (before, after) = (&before[LENGTH - 1], &after[LENGTH - 1]);
                assert_ne!(before, after, "{name}: token {changed} was forgotten at once");
            }
        }
    }
}
