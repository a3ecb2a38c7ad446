//! Every composition learns.

use super::{TOKENS, all};
use crate::column::{device, is_missing};
use hecate_models::{Config, LanguageModel};
use hecate_train::optimizer::{Constants, Moments, norm_squared};

const STEPS: u32 = 30;

#[test]
fn few_steps_lower_the_loss() {
    if is_missing() {
        return;
    }
    let text: Vec<u32> = (0..49).map(|i| (i * i + i / 7) % TOKENS).collect();
    for (name, config) in all() {
        // Memories that are large networks to begin with can be thrown off by the first steps.
        let config = Config { initializer_range: 0.1, ..config };
        let mut model = LanguageModel::new(&device(), &config, 5).expect("a model");
        let mut moments = Moments::new(&device(), model.parameters()).expect("moments");
        let mut losses = Vec::new();
        // Neurons fire or do not, so that a loss of theirs jumps by what others take many steps for.
        let steps = if name.contains("Lif") { 2 * STEPS } else { STEPS };
        for step in 1..=steps {
            let pass = model.loss_and_gradients(&text[..48], &text[1..], 2);
            let (loss, gradients) = pass.unwrap_or_else(|error| panic!("{name}: {error} after {losses:?}"));
            let squared = norm_squared(&device(), &gradients).expect("a norm");
            let constants = Constants { clip: Some(1.0), ..Constants::default() };
            moments.update(model.parameters_mut(), &gradients, &squared, &constants, (step, 0.01)).expect("a step");
            losses.push(loss);
        }
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        assert!(last < 0.9 * first, "{name}: {losses:.2?}");
    }
}
