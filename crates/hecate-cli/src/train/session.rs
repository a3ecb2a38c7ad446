//! The training loop: steps, measurements, checkpoints, and a sample at the end.
//!
//! After a step come its measurement, its line in the record and its checkpoint, in this order. Stopped between any two
//! of them, the run resumes from its last checkpoint, and the lines after that are cut off and written again.

use crate::{
    curve, defaults,
    error::Result,
    generate,
    progress::{Progress, measuring},
    stop::{INTERRUPTED, Stop},
};
use hecate_core::Backend;
use hecate_models::{
    Vocabulary,
    checkpoint::{Lock, Run},
    evaluate::{SEGMENT, Score, evaluate},
    metrics::{Metrics, Record, read_metrics},
    sampling::{Sampler, Sampling},
    text::Corpus,
    trainer::Trainer,
};
use std::{env, f64::consts::LN_2, ops::ControlFlow, process::ExitCode, time::Instant};

/// The record of the run.
pub(super) const METRICS: &str = "metrics.jsonl";
/// The picture of the run.
pub(super) const CURVE: &str = "loss.svg";
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
}

impl<B: Backend> Session<B> {
    /// A session that goes on where the trainer stands. The record loses lines of steps after that.
    pub(super) fn new(
        run: Run,
        lock: Lock,
        trainer: Trainer<B>,
        corpus: Corpus,
        vocabulary: Vocabulary,
    ) -> Result<Self> {
        let metrics = Metrics::resume(&run.file(METRICS), trainer.steps())?;
        let settings = trainer.settings();
        // A nat a token is `1 / (ln 2 · bytes a token)` bits a byte.
        let bits_per_nat = (corpus.train.bytes_per_token() * LN_2).recip();
        let progress =
            Progress::new(trainer.steps(), settings.schedule.steps, settings.tokens_per_step(), bits_per_nat);
        // Last, so that an error before it leaves Ctrl-C as it was.
        let stop = Stop::listen()?;
        Ok(Self { run, _lock: lock, trainer, corpus, vocabulary, metrics, progress, stop })
    }

    /// Trains to the end, or until somebody asks to stop.
    pub(super) fn run(mut self) -> Result<ExitCode> {
        self.introduce();
        // Ctrl-C is answered between steps: what is saved is a whole step.
        while !self.trainer.finished() {
            if self.stop.asked() {
                self.save()?;
                return Ok(self.stopped());
            }
            self.step()?;
        }
        // Ctrl-C at the end cuts the measurement short; the run itself is complete and saved.
        self.finish()?;
        Ok(if self.stop.asked() { self.stopped() } else { ExitCode::SUCCESS })
    }

    /// Says how to go on, and gives the exit status of Ctrl-C.
    fn stopped(&self) -> ExitCode {
        self.progress.say(&format!("stopped and saved; go on with:\n  {}", self.resume_command()));
        ExitCode::from(INTERRUPTED)
    }

    /// What is trained, on what, how much memory it takes, and where it goes on.
    fn introduce(&self) {
        let model = self.trainer.model();
        // Length and checksum of the text as it was when the run began.
        let identity = &self.trainer.plan().identity;
        self.progress.say(&format!(
            "{} parameters in {} layers on {}; {} bytes of text, of which {} are held out; run in {}",
            model.parameters().elements(),
            model.config().layers.len(),
            B::NAME,
            identity.bytes,
            self.corpus.held_out.bytes,
            self.run.folder().display(),
        ));
        let settings = self.trainer.settings();
        // Mixers that are composed of several parts have no bill of memory.
        if let Some(footprint) = model.footprint(settings.batch, settings.tokens) {
            let precision = settings.precision.name();
            // Gradients of earlier passes wait while the next pass runs.
            let waiting = if settings.accumulate > 1 { footprint.gradients } else { 0 };
            let expected = amount(footprint.total() + waiting);
            self.progress.say(&format!("about {expected} expected to learn in {precision}"));
        }
        if self.trainer.steps() > 0 {
            self.progress.say(&format!("going on after step {}", self.trainer.steps()));
        }
    }

    /// One step, its line in the record, and what is due after it: a measurement, then a checkpoint. A checkpoint has the
    /// lines of all its steps, since the record is flushed first.
    fn step(&mut self) -> Result<()> {
        let began = Instant::now();
        let report = self.trainer.step(&self.corpus.train.tokens)?;
        // The time of the step alone, without what follows it.
        let speed = self.progress.step(&report, began.elapsed());
        // Losses are those before the step, as the step computes them.
        let mut record = Record {
            step: report.step,
            // Nats a token; bits a byte compare between tokenizers.
            loss: Some(report.loss),
            bits_per_byte: Some(report.loss / LN_2 / self.corpus.train.bytes_per_token()),
            gradient_norm: Some(report.gradient_norm),
            learning_rate: Some(report.learning_rate),
            tokens_per_second: Some(speed),
            ..Record::default()
        };
        let plan = self.trainer.plan();
        // The last step is measured and saved whatever the intervals are.
        let save = self.trainer.finished() || report.step.is_multiple_of(plan.save_every);
        if self.trainer.finished() || report.step.is_multiple_of(plan.evaluate_every) {
            // A part is enough to compare steps by; the end of the run measures all.
            let part = self.corpus.held_out.head(defaults::MEASURED_TOKENS);
            let score = evaluate(self.trainer.model(), &part, SEGMENT, |_| ControlFlow::Continue(()))?;
            // Keeps the weights where this is the lowest so far.
            self.trainer.note(score.loss())?;
            record.held_out_loss = Some(score.loss());
            record.held_out_bits_per_byte = Some(score.bits_per_byte());
            self.progress.say(&format!("step {}: {:.3} bits/byte held out", report.step, score.bits_per_byte()));
        }
        // The line first, then the checkpoint that counts on it.
        self.metrics.add(&record)?;
        if save { self.save() } else { Ok(()) }
    }

    /// Commits a checkpoint and draws the curve.
    fn save(&mut self) -> Result<()> {
        // A checkpoint without its lines would leave a gap in the record of a resumed run.
        self.metrics.flush()?;
        self.trainer.save(&self.run)?;
        self.draw()
    }

    /// Draws the curve of all steps so far.
    fn draw(&self) -> Result<()> {
        curve::draw(&self.run.file(CURVE), &read_metrics(&self.run.file(METRICS))?)
    }

    /// The whole held-out text, and a sample, until somebody asks to stop: all that counts is saved.
    fn finish(&mut self) -> Result<()> {
        self.draw()?;
        self.progress.finish();
        // Devices that count their memory tell what training took.
        if let Some(peak) = self.trainer.model().device().peak_bytes()? {
            self.progress.say(&format!("at most {} of the device's memory taken", amount(peak)));
        }
        let Self { run, trainer, corpus, vocabulary, stop, .. } = &*self;
        // Reading all of a long held-out text takes a while: it may be stopped.
        let bar = measuring(corpus.held_out.tokens.len());
        let score = evaluate(trainer.model(), &corpus.held_out, SEGMENT, |done| {
            bar.set_position(done as u64);
            if stop.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        bar.finish_and_clear();
        if stop.asked() {
            return Ok(());
        }
        print_score(&score, run);
        // The sample continues held-out text; of the program's own sources it continues what looks like code.
        let head: String;
        let prompt = match trainer.plan().text {
            None => defaults::SAMPLE_PROMPT,
            Some(_) => {
                // A token holds a character or more, or a part of up to four bytes.
                let text = vocabulary.decode(&corpus.held_out.head(4 * PROMPT).tokens)?;
                head = text.chars().take(PROMPT).collect();
                &head
            }
        };
        let sampler = Sampler::new(Sampling { seed: trainer.settings().seed, ..Sampling::default() })?;
        println!("\nsample, after the prompt {prompt:?}:\n");
        generate::stream(trainer.model(), vocabulary, prompt, defaults::SAMPLE_TOKENS, sampler, || stop.asked())
    }

    /// The command line that goes on with this run, as a shell reads it.
    fn resume_command(&self) -> String {
        // As it was called, so that the line can be pasted.
        let program = env::args().next().unwrap_or_else(|| "hecate".to_owned());
        format!("{} train --resume {}", quoted(&program), quoted(&self.run.folder().to_string_lossy()))
    }
}

/// Bytes as megabytes or gigabytes of ten to the sixth or ninth.
fn amount(bytes: usize) -> String {
    match bytes as f64 {
        bytes if bytes < 1e9 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.2} GB", bytes / 1e9),
    }
}

/// Loss on the held-out text, and the files of the run.
fn print_score(score: &Score, run: &Run) {
    println!(
        "held out: loss {:.4} nats a token, {:.4} bits/byte, perplexity {:.3}, over {} tokens",
        score.loss(),
        score.bits_per_byte(),
        score.perplexity(),
        score.tokens
    );
    let folder = run.folder().display();
    println!("saved in {folder}: config.json, model.safetensors, best.safetensors, {METRICS}, {CURVE}");
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
