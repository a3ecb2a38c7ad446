//! Passes that somebody stops: a GPU does not go on with what it was given before. A GPU in software is not asked, as it
//! computes before a call returns.

use crate::column::{device, is_missing};
use hecate_core::Device;
use hecate_models::{Config, Error, Interrupt, LanguageModel, Result};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A second, and what machines that do much else take besides.
const SOON: Duration = Duration::from_millis(2500);

/// A model whose every block takes a small part of the pass; a rule that goes token by token makes it a slow one.
fn model() -> LanguageModel<crate::Column> {
    let config = Config::uniform("moneta", 24, 128, 2).expect("a configuration");
    LanguageModel::new(&device(), &config, 0).expect("a model")
}

/// A pass over `tokens` tokens, and how long it took with all that it queued.
fn pass(model: &LanguageModel<crate::Column>, tokens: usize) -> (Result<()>, Duration) {
    let text: Vec<u32> = (0..=tokens as u32).map(|i| i % 251).collect();
    let began = Instant::now();
    let outcome = model.loss_and_gradients(&text[..tokens], &text[1..], 1).map(drop);
    model.device().synchronize().expect("a device");
    (outcome, began.elapsed())
}

#[test]
fn a_device_is_done_soon_after_it_was_asked_to_stop() {
    if is_missing() {
        return;
    }
    let plain = model();
    pass(&plain, 64).0.expect("a pass that compiles the kernels");
    // Until a pass takes so long that a device that was not stopped is told from one that was.
    let mut tokens = 1 << 10;
    while pass(&plain, tokens).1 < 3 * SOON {
        tokens *= 2;
    }
    let interrupt = Interrupt::default();
    let model = plain.with_interrupt(interrupt.clone());
    let asking = thread::spawn(move || {
        thread::sleep(SOON / 2);
        interrupt.ask();
        Instant::now()
    });
    let (outcome, _) = pass(&model, tokens);
    let took = asking.join().expect("no panic").elapsed();
    assert!(matches!(outcome, Err(Error::Stopped)), "{outcome:?}");
    assert!(took < SOON, "done {took:?} after it was asked");
}
