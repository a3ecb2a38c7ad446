//! The training loop: steps, measurements, checkpoints, and a sample at the end.
//!
//! After a step come its measurement, its line in the record and its checkpoint, in this order. Stopped between any two
//! of them, the run resumes from its last checkpoint, and the lines after that are cut off and written again. A stop that
//! is asked for breaks a step or a measurement off: the step is not made then, the measurement is made when the run goes on.
//!
//! What is told and drawn of the run may fail; what is saved may fail until the end, where failing is an error.

use crate::{
    curve, defaults,
    error::{Error, Result},
    generate,
    measure::{self, MeasureArgs, Measurement},
    progress::{self, Progress},
    stop::{self, Stop},
    terminal,
    visible::visible_path,
};
use hecate::{
    Backend, Bytes,
    models::{
        Vocabulary,
        sampling::{Sampler, Sampling},
        text::Corpus,
    },
    train::{
        Trainer,
        checkpoint::{Lock, Run},
        evaluate::{self, SEGMENT, evaluate_and_monitor},
        metrics::{self, Metrics, Record, read_metrics},
    },
};
use std::{
    env,
    ops::ControlFlow,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

/// The record of the run.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// The same as a table.
pub(crate) const TABLE: &str = "metrics.csv";
/// The picture of the run.
pub(crate) const CURVE: &str = "loss.svg";
/// Characters of held-out text that the sample continues.
const PROMPT: usize = 48;

/// A run in progress: the trainer, what it reads, and what is written about it.
pub(super) struct Session<B: Backend> {
    /// The folder.
    run: Run,
    /// Held until the end.
    _lock: Lock,
    /// Model, optimiser and position in the text: all that a checkpoint holds.
    trainer: Trainer<B>,
    /// The text, split into what is learned and what is held out.
    corpus: Corpus,
    /// What tokens mean; for the sample.
    vocabulary: Vocabulary,
    /// The record, a line a step.
    metrics: Metrics,
    /// What is shown meanwhile, on standard error.
    progress: Progress,
    /// Whether Ctrl-C was pressed.
    stop: Stop,
    /// How long the last measurement takes.
    measure: MeasureArgs,
    /// Whether a measurement began.
    measures: bool,
    /// Lines of the record wait in memory, which was told of.
    record_waits: bool,
}

impl<B: Backend> Session<B> {
    /// A session that goes on where the trainer stands. The record loses lines of steps after that.
    pub(super) fn new(
        run: Run,
        lock: Lock,
        trainer: Trainer<B>,
        corpus: Corpus,
        vocabulary: Vocabulary,
        measure: MeasureArgs,
    ) -> Result<Self> {
        let metrics = Metrics::resume(&run.file(METRICS), trainer.steps())?;
        let settings = trainer.settings();
        let progress = Progress::new(trainer.steps(), settings.schedule.steps, settings.tokens_per_step());
        // Last, so that an error before it leaves Ctrl-C as it was.
        let stop = Stop::listen()?;
        let (trainer, measures, record_waits) = (trainer.with_interrupt(stop.interrupt()), false, false);
        Ok(Self {
            run,
            _lock: lock,
            trainer,
            corpus,
            vocabulary,
            metrics,
            progress,
            stop,
            measure,
            measures,
            record_waits,
        })
    }

    /// Trains to the end, or until somebody asks to stop.
    pub(super) fn run(mut self) -> Result<ExitCode> {
        let outcome = self.learn();
        terminal::tell_failures();
        outcome
    }

    /// All steps that are left, and what comes after the last.
    fn learn(&mut self) -> Result<ExitCode> {
        self.introduce();
        self.measure_what_is_due()?;
        // A first step would wait for its kernels one by one, without a word.
        if !self.trainer.finished() {
            let progress = &self.progress;
            self.trainer.prepare(&self.corpus.train.tokens, &mut |kernels| progress.compiling(kernels))?;
        }
        // Ctrl-C breaks a step off: what is saved is a whole one.
        while !self.trainer.finished() && !self.stop.asked() {
            self.step()?;
            terminal::tell_failures();
        }
        self.save_at_last()?;
        // From here on, Ctrl-C cuts a measurement short; the run itself is complete and saved.
        if !self.stop.asked() {
            self.finish()?;
        }
        Ok(if self.stop.asked() { self.stopped() } else { ExitCode::SUCCESS })
    }

    /// Says how to go on, and gives the exit status of the signal.
    fn stopped(&self) -> ExitCode {
        self.progress.say(&format!("stopped and saved; go on with:\n  {}", self.resume_command()));
        ExitCode::from(stop::status())
    }

    /// What is trained, on what, how much memory it takes, and where it goes on.
    fn introduce(&self) {
        let model = self.trainer.model();
        // Length and checksum of the text as it was when the run began.
        let identity = &self.trainer.plan().identity;
        self.progress.say(&format!(
            "{} parameters in {} layers on {}; {} bytes of text, of which {} are held out; run in {}",
            model.parameters().elements(),
            model.layers(),
            B::NAME,
            identity.bytes,
            self.corpus.held_out.bytes,
            self.run.folder().display(),
        ));
        let settings = self.trainer.settings();
        let footprint = model.footprint(settings.batch, settings.tokens);
        // Gradients of earlier passes wait while the next pass runs.
        let waiting = if settings.accumulate > 1 { footprint.gradients } else { 0 };
        let expected = Bytes(footprint.total().saturating_add(waiting) as u128);
        self.progress.say(&format!(
            "about {expected} expected to learn in {}; losses of steps are of {}",
            settings.precision.name(),
            measure::learned_windows(settings),
        ));
        if self.trainer.steps() > 0 {
            self.progress.say(&match self.trainer.finished() {
                true => format!("finished at step {}; `--steps N` makes it longer", self.trainer.steps()),
                false => format!("going on after step {}", self.trainer.steps()),
            });
        }
    }

    /// One step, its line in the record, and what is due after it: a measurement, then a checkpoint. A checkpoint has the
    /// lines of all its steps, since the record is flushed first.
    fn step(&mut self) -> Result<()> {
        let began = Instant::now();
        let report = match self.trainer.step(&self.corpus.train.tokens) {
            // Whoever asked is answered before the next step.
            Err(hecate::models::Error::Stopped) => return Ok(()),
            outcome => outcome?,
        };
        // Told once a run: that its steps cannot be one graph, and why.
        if let Some(event) = self.trainer.take_event() {
            self.progress.say(&event);
        }
        // The time of the step alone, without what follows it.
        let speed = self.progress.step(&report, began.elapsed());
        // Losses are those before the step, as the step computes them.
        let mut record = Record {
            step: report.step,
            time: Some(now()),
            // Nats a token; bits a byte compare between tokenizers.
            loss: Some(report.loss),
            bits_per_byte: report.bits_per_byte(),
            gradient_norm: Some(report.gradient_norm),
            learning_rate: Some(report.learning_rate),
            tokens_per_second: Some(speed),
            ..Record::default()
        };
        if self.trainer.measurement_due() {
            self.measure(&mut record)?;
        }
        // The line first, then the checkpoint that counts on it.
        let added = self.metrics.add(&record).map_err(Error::from);
        self.note_record(added)?;
        // The last step is saved after the loop, and so is the one after which somebody asks to stop.
        let due = report.step.is_multiple_of(self.trainer.plan().save_every);
        if due && !self.trainer.finished() && !self.stop.asked() { self.save_or_go_on() } else { Ok(()) }
    }

    /// Measures held-out text after a step. Broken off, the measurement stays due.
    fn measure(&mut self, record: &mut Record) -> Result<()> {
        // A part is enough to compare steps by; the end of the run measures all.
        let part = self.corpus.held_out.head(defaults::MEASURED_TOKENS);
        // Kernels that gather no gradients are others than those of steps; the first measurement makes them.
        if !std::mem::replace(&mut self.measures, true) {
            let tell = &mut |kernels| self.progress.compiling(kernels);
            evaluate::prepare(self.trainer.model(), &part, &[(SEGMENT, usize::MAX)], tell)?;
        }
        let go_on = |_| ControlFlow::Continue(());
        let (score, states) = match evaluate_and_monitor(self.trainer.model(), &part, SEGMENT, go_on) {
            Err(hecate::models::Error::Stopped) => return Ok(()),
            outcome => outcome?,
        };
        // Keeps the weights where this is the lowest so far.
        self.trainer.note(score.loss())?;
        record.held_out_loss = Some(score.loss());
        record.held_out_bits_per_byte = Some(score.bits_per_byte());
        // After the longest text that is read before the end of the run, far beyond a window.
        record.states = states;
        self.progress.say(&format!(
            "step {}: {:.3} bits/byte held out, one pass over {} of {} tokens",
            record.step,
            score.bits_per_byte(),
            score.tokens,
            self.corpus.held_out.tokens.len() - 1,
        ));
        Ok(())
    }

    /// Makes the measurement that was broken off as the run was stopped.
    fn measure_what_is_due(&mut self) -> Result<()> {
        if !self.trainer.measurement_due() {
            return Ok(());
        }
        let step = self.trainer.steps();
        let last = read_metrics(&self.run.file(METRICS))?.pop().filter(|record| record.step == step);
        // Its line was written without it.
        let mut record = last.unwrap_or(Record { step, ..Record::default() });
        self.measure(&mut record)?;
        let amended = self.metrics.amend(&record).map_err(Error::from);
        self.note_record(amended)
    }

    /// Goes on where a line of the record could not be written: it waits. That is told once.
    fn note_record(&mut self, written: Result<()>) -> Result<()> {
        let waits = match written {
            Err(error) if error.is_of_a_file() => Some(error),
            written => return written,
        };
        if let Some(error) = waits.filter(|_| !self.record_waits) {
            self.progress.say(&format!("the record has to wait: {error}; its lines are kept until there is room"));
            self.record_waits = true;
        }
        Ok(())
    }

    /// Commits a checkpoint, draws the curve and writes the record as a table.
    fn save(&mut self) -> Result<()> {
        // A checkpoint without its lines would leave a gap in the record of a resumed run.
        self.metrics.flush()?;
        self.record_waits = false;
        self.trainer.save(&self.run)?;
        self.draw();
        Ok(())
    }

    /// As [`Session::save`]. Where the disk refuses, training goes on: there may be room at the next checkpoint.
    fn save_or_go_on(&mut self) -> Result<()> {
        match self.save() {
            Err(error) if error.is_of_a_file() => {
                let (step, every) = (self.trainer.steps(), self.trainer.plan().save_every);
                self.progress.say(&format!(
                    "step {step} is not saved: {error}; the checkpoint of step {} stays, and the next try comes after step \
                     {}",
                    self.run.newest()?,
                    step.saturating_add(every).min(self.trainer.settings().schedule.steps)
                ));
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// As [`Session::save`], where there is no later try.
    fn save_at_last(&mut self) -> Result<()> {
        match self.save() {
            Err(error) if error.is_of_a_file() => {
                let (step, saved, command) = (self.trainer.steps(), self.run.newest()?, self.resume_command());
                let why = format!(
                    "step {step} is not saved: {error}; make room, and go on from the checkpoint of step {saved} with \
                     `{command}`"
                );
                Err(Error::file(self.run.folder(), why))
            }
            outcome => outcome,
        }
    }

    /// Draws the curve of all steps so far, and writes them as a table. A run does without both.
    fn draw(&self) {
        let learned = measure::learned_windows(self.trainer.settings());
        let records = read_metrics(&self.run.file(METRICS)).map_err(Error::from);
        let drawn = records.and_then(|all| {
            self.run.write(TABLE, metrics::table(&all).as_bytes())?;
            curve::draw(&self.run, CURVE, &all, &learned)
        });
        if let Err(error) = drawn {
            self.progress.say(&format!("the record is not drawn: {error}"));
        }
    }

    /// The whole held-out text, and a sample, until somebody asks to stop: all that counts is saved.
    fn finish(&mut self) -> Result<()> {
        self.progress.finish();
        // Devices that count their memory tell what training took.
        if let Some(peak) = self.trainer.model().device().peak_bytes()? {
            self.progress.say(&format!("at most {} of the device's memory taken", Bytes(peak as u128)));
        }
        let Self { run, trainer, corpus, vocabulary, stop, .. } = &*self;
        let settings = trainer.settings();
        let measurement = Measurement {
            model: trainer.model(),
            stream: &corpus.held_out,
            window: settings.tokens,
            segment: measure::segment(settings),
            time: self.measure.time(self.learned_for()?),
            shown: true,
        };
        measurement.prepare(&mut |kernels| self.progress.say(&progress::compiling(kernels)))?;
        // Reading all of a long held-out text takes a while: it may be stopped.
        let figures = match measurement.take(&|| stop.asked()) {
            _ if stop.asked() => return Ok(()),
            outcome => outcome?,
        };
        told(measure::print("held out", &figures, measurement.predicted()))?;
        print_files(run);
        let (tokens, text) = self.prompt()?;
        let sampler = Sampler::new(Sampling { seed: trainer.settings().seed, ..Sampling::default() })?;
        terminal::print(&format!("\nsample, after the prompt {text:?}:\n"));
        let (model, prompt) = (trainer.model(), (tokens.as_slice(), text.as_str()));
        told(generate::stream(model, vocabulary, prompt, defaults::SAMPLE_TOKENS, sampler, || stop.asked()))
    }

    /// What the sample continues, and its text: the start of the held-out text, or of the program's own sources what looks like
    /// code. It is made of tokens, since a text that was decoded need not become the same ones.
    fn prompt(&self) -> Result<(Vec<u32>, String)> {
        if self.trainer.plan().text.is_empty() {
            return Ok((self.vocabulary.encode(defaults::SAMPLE_PROMPT)?, defaults::SAMPLE_PROMPT.to_owned()));
        }
        let (mut decoder, mut tokens, mut text) = (self.vocabulary.decoder(), Vec::new(), String::new());
        let held_out = &self.corpus.held_out.tokens;
        // A token holds a character or more, or a part of up to four bytes.
        for token in held_out.read(0..held_out.len().min(4 * PROMPT))? {
            tokens.push(token);
            text.push_str(&decoder.push(token)?);
            if text.chars().count() >= PROMPT {
                break;
            }
        }
        text.push_str(&decoder.finish()?);
        Ok((tokens, text))
    }

    /// Time that all steps of the run took, also those before it was resumed.
    fn learned_for(&self) -> Result<Duration> {
        let speeds = read_metrics(&self.run.file(METRICS))?;
        let tokens = self.trainer.settings().tokens_per_step() as f64;
        let seconds: f64 = speeds.iter().filter_map(|record| Some(tokens / record.tokens_per_second?)).sum();
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// The command line that goes on with this run, as a shell reads it.
    fn resume_command(&self) -> String {
        // As it was called, so that the line can be pasted.
        let program = env::args().next().unwrap_or_else(|| "hecate".to_owned());
        format!("{} train --resume {}", quoted(&program), quoted(&self.run.folder().to_string_lossy()))
    }
}

/// Goes on where a result could not be printed: the run is saved. So it does where printing was broken off.
fn told(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(Error::Output(error)) => {
            terminal::OUTPUT.note(&error);
            Ok(())
        }
        Err(Error::Model(hecate::models::Error::Stopped)) => Ok(()),
        outcome => outcome,
    }
}

/// Seconds since 1970 began in Greenwich, to the millisecond.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as f64 / 1000.0
}

/// The files of the run.
fn print_files(run: &Run) {
    let folder = visible_path(run.folder());
    // What a full disk refused is not there.
    let files: Vec<_> = ["config.json", "model.safetensors", "best.safetensors", METRICS, TABLE, CURVE]
        .into_iter()
        .filter(|name| run.file(name).exists())
        .collect();
    terminal::print(&format!("\nsaved in {folder}: {}", files.join(", ")));
}

/// The word as a POSIX shell reads it: in single quotes unless all its characters are plain.
fn quoted(word: &str) -> String {
    // Characters that no shell gives a meaning to.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    // A quote ends the quotes, stands escaped, and opens them again.
    format!("'{}'", word.replace('\'', r"'\''"))
}
