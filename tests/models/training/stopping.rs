//! Stops that are asked for inside of a step or a measurement, and runs that are changed as they go on.

use super::fixtures::*;
use hecate_cpu::Cpu;
use hecate_models::{Error, Interrupt, LanguageModel, text::Text};
use hecate_train::{
    Settings, Trainer,
    checkpoint::Run,
    evaluate::{SEGMENT, evaluate},
    metrics::{Metrics, Record, read_metrics},
    schedule::Schedule,
};
use std::{
    fs,
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

/// Stopped at many moments of a step, the trainer is as before it: the run ends with the bits of one that was not stopped.
#[test]
fn a_step_that_was_stopped_was_not_made() {
    let text = corpus().train.tokens;
    // Windows of one text after another: the place in it must go back too.
    let settings = Settings { carry: 3, accumulate: 2, ..settings() };
    let mut whole = trainer("titans", settings);
    train_to(&mut whole, 4);
    let mut stopped = trainer("titans", settings);
    let (mut stops, mut delay) = (0, Duration::ZERO);
    while stopped.steps() < 4 {
        let interrupt = Interrupt::default();
        stopped = stopped.with_interrupt(interrupt.clone());
        let (before, steps) = (bits(stopped.model()), stopped.steps());
        let asking = thread::spawn(move || {
            thread::sleep(delay);
            interrupt.ask()
        });
        match stopped.step(&text) {
            Ok(report) => assert_eq!(report.step, steps + 1),
            Err(Error::Stopped) => {
                stops += 1;
                assert_eq!((bits(stopped.model()), stopped.steps()), (before, steps));
            }
            Err(error) => panic!("{error}"),
        }
        asking.join().unwrap();
        // Until a step gets through.
        delay += Duration::from_micros(20);
    }
    assert!(stops > 3, "only {stops} stops");
    assert_eq!(bits(stopped.model()), bits(whole.model()));
}

/// Also backward, and where nothing is recorded: one operation, not one pass, is what a stop waits for.
#[test]
fn a_stop_is_seen_within_a_pass() {
    let tokens = 4_096;
    let config = hecate_models::Config::uniform("titans", 8, 64, 1).unwrap();
    let model = LanguageModel::new(&Cpu::new(), &config, 0).unwrap();
    let text: Vec<u32> = (0..tokens as u32 + 1).map(|i| i % 251).collect();
    let (inputs, targets) = (&text[..tokens], &text[1..]);
    let began = Instant::now();
    model.loss_and_gradients(inputs, targets, 1).unwrap();
    let whole = began.elapsed();
    // Early in the forward, and in the backward.
    for share in [8, 2] {
        let interrupt = Interrupt::default();
        let model = LanguageModel::new(&Cpu::new(), &config, 0).unwrap().with_interrupt(interrupt.clone());
        let asking = thread::spawn(move || {
            thread::sleep(whole - whole / share);
            interrupt.ask();
            Instant::now()
        });
        let outcome = model.loss_and_gradients(inputs, targets, 1);
        let took = asking.join().unwrap().elapsed();
        // A machine that is faster this time has nothing left to stop.
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Stopped) && took < whole / 2, "{error} after {took:?} of {whole:?}");
        }
    }
    let interrupt = Interrupt::default();
    interrupt.ask();
    let model = model.with_interrupt(interrupt);
    assert!(matches!(model.loss_and_gradients(inputs, targets, 1), Err(Error::Stopped)));
    assert!(matches!(model.loss(inputs, targets, 1), Err(Error::Stopped)));
    let mut cache = model.cache(1).unwrap();
    assert!(matches!(model.infer(inputs, 1, &mut cache), Err(Error::Stopped)));
    assert_eq!(cache.position(), 0);
    let score = evaluate(&model, &corpus().held_out, SEGMENT, |_| ControlFlow::Continue(()));
    assert!(matches!(score, Err(Error::Stopped)));
}

/// What was due as the run was saved is due as it goes on, and the checkpoint of the step is written again with it.
#[test]
fn a_measurement_stays_due() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let mut trainer = trainer("delta", settings());
    train_to(&mut trainer, 3);
    assert!(!trainer.measurement_due(), "measured after every fourth step");
    train_to(&mut trainer, 4);
    assert!(trainer.measurement_due());
    trainer.save(&run).unwrap();
    let mut resumed = Trainer::resume(&Cpu::new(), &run).unwrap();
    assert!(resumed.measurement_due() && resumed.best().is_none());
    resumed.note(2.0).unwrap();
    resumed.save(&run).unwrap();
    let again = Trainer::resume(&Cpu::new(), &run).unwrap();
    assert!(!again.measurement_due() && again.best() == Some(2.0) && again.steps() == 4);
}

#[test]
fn a_run_is_made_longer() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let mut short = trainer("delta", settings());
    train_to(&mut short, 9);
    short.save(&run).unwrap();
    let mut longer = Trainer::resume(&Cpu::new(), &run).unwrap();
    for steps in [0, 8] {
        let told = longer.extend(steps).unwrap_err().to_string();
        assert!(told.contains("steps") && told.contains("at least 9"), "{told}");
    }
    longer.extend(12).unwrap();
    longer.save(&run).unwrap();
    // It is kept, though no step was made since.
    let mut longer = Trainer::resume(&Cpu::new(), &run).unwrap();
    let schedule = Schedule { steps: 12, ..settings().schedule };
    assert_eq!(longer.settings().schedule, schedule);
    let report = longer.step(&corpus().train.tokens).unwrap();
    assert_eq!((report.step, report.learning_rate), (10, schedule.rate(10)));
    train_to(&mut longer, 12);
    assert!(longer.finished());
    // Fewer again, as long as they are not done; but never under the warm-up.
    let mut early = trainer("delta", settings());
    train_to(&mut early, 1);
    assert!(early.extend(2).unwrap_err().to_string().contains("warm-up"));
    early.extend(3).unwrap();
    assert_eq!(early.settings().schedule.steps, 3);
}

#[test]
fn newest_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    let mut trainer = trainer("delta", settings());
    assert!(trainer.keep(0).unwrap_err().to_string().contains("`keep` is 0"));
    for (keep, expected) in [(2, 2), (3, 3), (1, 1)] {
        trainer.keep(keep).unwrap();
        for _ in 0..3 {
            let steps = trainer.steps() + 1;
            train_to(&mut trainer, steps);
            trainer.save(&run).unwrap();
        }
        let kept = (0..=trainer.steps()).filter(|&step| run.checkpoint(step).exists());
        assert_eq!(kept.collect::<Vec<_>>(), (trainer.steps() + 1 - expected..=trainer.steps()).collect::<Vec<_>>());
        trainer = Trainer::resume(&Cpu::new(), &run).unwrap();
        assert_eq!(trainer.plan().keep, keep);
    }
}

/// From another run's weights: they are its own, and nothing else is.
#[test]
fn new_training_begins_with_trained_weights() {
    let mut first = trainer("delta", settings());
    train_to(&mut first, 5);
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    first.save(&run).unwrap();
    let model = hecate_models::trained::load_model(&Cpu::new(), folder.path()).unwrap();
    let mut second = Trainer::from_model(model, settings(), plan(), None).unwrap();
    assert_eq!((bits(second.model()), second.steps(), second.best()), (bits(first.model()), 0, None));
    let report = second.step(&corpus().train.tokens).unwrap();
    assert_eq!((report.step, report.learning_rate), (1, settings().schedule.rate(1)));
}

#[test]
fn the_text_is_kept_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new(folder.path());
    trainer("delta", settings()).with_text(Text::new("a text", "kept text")).save(&run).unwrap();
    let mut resumed = Trainer::resume(&Cpu::new(), &run).unwrap();
    assert_eq!(resumed.text().unwrap().whole().unwrap(), "kept text");
    train_to(&mut resumed, 1);
    resumed.save(&run).unwrap();
    assert_eq!(Trainer::resume(&Cpu::new(), &run).unwrap().text().unwrap().whole().unwrap(), "kept text");
    assert_eq!(fs::read_to_string(run.file("sources.txt")).unwrap(), "kept text");
}

#[test]
fn a_line_is_amended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let record = |step, held_out_loss| Record { step, loss: Some(1.5), held_out_loss, ..Record::default() };
    let mut metrics = Metrics::resume(&path, 0).unwrap();
    (1..=3).for_each(|step| metrics.add(&record(step, None)).unwrap());
    metrics.amend(&record(3, Some(2.0))).unwrap();
    metrics.add(&record(4, None)).unwrap();
    let expected = [record(1, None), record(2, None), record(3, Some(2.0)), record(4, None)];
    assert_eq!(read_metrics(&path).unwrap(), expected);
    // The line of a step that is not there is added.
    metrics.amend(&record(5, Some(1.0))).unwrap();
    metrics.flush().unwrap();
    assert_eq!(read_metrics(&path).unwrap()[4], record(5, Some(1.0)));
}

/// A line that could not be amended waits with those after it.
#[test]
fn an_amendment_that_failed_is_made_later() {
    let folder = tempfile::tempdir().unwrap();
    let [path, away] = ["metrics.jsonl", "away"].map(|name| folder.path().join(name));
    let record = |step, held_out_loss| Record { step, loss: Some(1.5), held_out_loss, ..Record::default() };
    let mut metrics = Metrics::resume(&path, 0).unwrap();
    (1..=2).for_each(|step| metrics.add(&record(step, None)).unwrap());
    // The file cannot be read as long as a folder has its name.
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(metrics.amend(&record(2, Some(2.0))), Err(Error::Io { .. })));
    assert!(matches!(metrics.add(&record(3, None)), Err(Error::Io { .. })));
    // A line that waits is amended in memory, and the line of another step comes after it.
    for (step, loss) in [(3, 3.0), (4, 4.0)] {
        assert!(matches!(metrics.amend(&record(step, Some(loss))), Err(Error::Io { .. })));
    }
    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    metrics.flush().unwrap();
    let expected = [record(1, None), record(2, Some(2.0)), record(3, Some(3.0)), record(4, Some(4.0))];
    assert_eq!(read_metrics(&path).unwrap(), expected);
    metrics.add(&record(5, None)).unwrap();
    assert_eq!(read_metrics(&path).unwrap().len(), 5);
}

/// A full disk has no room for a second record.
#[cfg(unix)]
#[test]
fn the_record_is_cut_in_place() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut metrics = Metrics::resume(&path, 0).unwrap();
    (1..=5).for_each(|step| metrics.add(&Record { step, ..Record::default() }).unwrap());
    let before = fs::metadata(&path).unwrap().ino();
    Metrics::resume(&path, 2).unwrap();
    assert_eq!((fs::metadata(&path).unwrap().ino(), read_metrics(&path).unwrap().len()), (before, 2));
}
