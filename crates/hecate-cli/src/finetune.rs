//! `hecate finetune`: a released model learns more, all of it or an adapter beside it.
//!
//! The folder of `--out` gets the result when all steps are done: a model as it came, or a folder of PEFT. Until then, and after,
//! its folder `training` has the checkpoints, by which the same command with `--resume` goes on.

mod arguments;
mod data;

pub(crate) use arguments::FinetuneArgs;
pub(crate) use data::examples;

use crate::{
    device::with_device,
    error::{Error, Result},
    progress::{self, Progress},
    released,
    stop::{self, Stop},
    visible::visible_path,
};
use data::Data;
use hecate::{
    Backend, Job,
    models::{LanguageModel, Opened, Precision},
    train::{
        RunPlan, Settings, Trainer,
        checkpoint::{Lock, Run},
    },
};
use std::{
    fs,
    io::{Write, stdout},
    path::Path,
    process::ExitCode,
    time::Instant,
};

/// The folder of checkpoints in that of the result.
const TRAINING: &str = "training";

/// Learns until all steps are done, or somebody asks to stop.
pub(crate) fn run(arguments: FinetuneArgs) -> Result<ExitCode> {
    let choice = arguments.device.clone();
    with_device(&choice, arguments)
}

impl Job for FinetuneArgs {
    type Output = Result<ExitCode>;

    fn run<B: Backend>(self, device: &B) -> Result<ExitCode> {
        // What is cheap to refuse comes before weights are read.
        self.check()?;
        check_free(&self.out)?;
        let run = Run::new(self.out.join(TRAINING));
        self.check_run(&run)?;
        released::check(&self.model)?;
        let opened = Opened::open(device, &self.model)?;
        self.check_result(&opened)?;
        let data = Data::load(&self, &opened)?;
        // From here on another process is refused, and the folder is made.
        let lock = run.lock()?;
        let trainer =
            if self.resume { self.go_on(device, &opened, &run, &data)? } else { self.begin(&opened, &run, &data)? };
        Session::new(&self, &opened, (run, lock), trainer, data)?.run()
    }
}

/// Refuses a folder with files in it: the result is to be written there.
fn check_free(out: &Path) -> Result<()> {
    for entry in fs::read_dir(out).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|found| found.is_dir()) {
            let why =
                "there is something in it, and the result is written into an empty folder; name another (`--out DIR`)";
            return Err(Error::file(out, why));
        }
    }
    Ok(())
}

impl FinetuneArgs {
    /// Refuses to begin where there are checkpoints, and to go on where there are none.
    fn check_run(&self, run: &Run) -> Result<()> {
        // Nobody goes on by mistake, and nobody begins over checkpoints of before.
        match run.latest()? {
            Some(_) if !self.resume => {
                let why =
                    "holds checkpoints already; go on from them (`--resume`), or name another folder (`--out DIR`)";
                Err(Error::file(run.folder(), why))
            }
            None if self.resume => Ok(run.newest().map(drop)?),
            _ => Ok(()),
        }
    }

    /// Refuses what could be learned and not be written, before anything is learned.
    ///
    /// # Errors
    /// Of all of a model that came in a GGUF file, and of such a model with its adapter.
    fn check_result<B: Backend>(&self, opened: &Opened<B>) -> Result<()> {
        // An adapter has files of its own, whatever the model came in.
        let is_whole = self.lora().is_none() || self.merge;
        if is_whole && opened.is_gguf() {
            let why = "a GGUF file, which is read and not written, so what is learned has no place; name the model's folder \
                       with safetensors files, or learn an adapter (`--lora RANK` without `--merge`)";
            return Err(Error::file(&self.model, why));
        }
        Ok(())
    }

    /// The model as it learns: with an adapter, where one is asked for.
    fn fresh<B: Backend>(&self, opened: &Opened<B>) -> Result<LanguageModel<B>> {
        let Some(lora) = self.lora() else { return Ok(opened.model()?) };
        // Maps that learn no more take as many bits as what meets them.
        let model = match self.precision()? {
            Precision::F32 => opened.model()?,
            _ => opened.model()?.stored_in_16_bits()?,
        };
        Ok(opened.adapt(model, &lora, self.seed)?)
    }

    /// A new run, its first checkpoint written.
    fn begin<B: Backend>(&self, opened: &Opened<B>, run: &Run, data: &Data) -> Result<Trainer<B>> {
        let settings = self.settings()?;
        // Nothing is held out: what a model forgets is measured by `eval` on other texts.
        let plan = RunPlan { save_every: self.save_every(), ..RunPlan::of(data.identity().clone(), self.steps) };
        let trainer = Trainer::from_model(self.fresh(opened)?, settings, plan, None)?;
        // So that a run that is stopped in its first step can go on too.
        trainer.save(run)?;
        Ok(trainer)
    }

    /// The newest checkpoint, which must be of the same model, adapter and data.
    fn go_on<B: Backend>(&self, device: &B, opened: &Opened<B>, run: &Run, data: &Data) -> Result<Trainer<B>> {
        let model = |_: &B, path: &Path, config: &[u8]| {
            let model = self.fresh(opened).map_err(|error| match error {
                Error::Model(error) => error,
                other => hecate::models::Error::checkpoint(path, other.to_string()),
            })?;
            // It tells of the adapter as well.
            if model.config_json() == config {
                return Ok(model);
            }
            let why = "is of another model or adapter; give the flags that the run began with";
            Err(hecate::models::Error::checkpoint(path, why))
        };
        // The checkpoint's weights take the place of those that were drawn.
        let mut trainer = Trainer::resume_with(device, run, &model)?;
        // Length and checksum of all files together.
        let (began, now) = (trainer.plan().identity.clone(), data.identity());
        if (began.bytes, &began.checksum) != (now.bytes, &now.checksum) {
            let why = "is not what the run learns; give the data that it began with (`--data FILE`)";
            return Err(Error::file(data.name(), why));
        }
        // Rates of steps follow from the number of steps, which alone may change.
        let (own, asked) = (*trainer.settings(), self.settings()?);
        if (Settings { schedule: own.schedule, ..asked }) != own || asked.schedule.peak != own.schedule.peak {
            let why = "began with another --batch, --tokens, --lr, --precision or --seed; give what it began with";
            return Err(Error::file(run.folder(), why));
        }
        // The same lines, and of the same length: a template or a tokenizer makes other tokens of them. Older checkpoints have none.
        if began.tokens.is_some() && began.tokens != now.tokens {
            let why = "its lines are other tokens than when the run began: the model's chat template, tokenizer or end tokens were \
                       changed since; put back what it began with, or begin anew in another folder (`--out DIR`)";
            return Err(Error::file(data.name(), why));
        }
        // Longer or shorter than it began.
        if self.steps != trainer.settings().schedule.steps {
            trainer.extend(self.steps)?;
        }
        Ok(trainer)
    }
}

/// A run in progress.
struct Session<'a, B: Backend> {
    arguments: &'a FinetuneArgs,
    /// The model as it was, whose files say how the result is written.
    opened: &'a Opened<B>,
    /// The folder of checkpoints.
    run: Run,
    /// Held until the end.
    _lock: Lock,
    /// Model, optimiser and random numbers: all that a checkpoint holds.
    trainer: Trainer<B>,
    /// What is learned.
    data: Data,
    /// What is shown meanwhile, on standard error.
    progress: Progress,
    /// Whether Ctrl-C was pressed.
    stop: Stop,
}

impl<'a, B: Backend> Session<'a, B> {
    fn new(
        arguments: &'a FinetuneArgs,
        opened: &'a Opened<B>,
        (run, lock): (Run, Lock),
        trainer: Trainer<B>,
        data: Data,
    ) -> Result<Self> {
        let settings = trainer.settings();
        let progress = Progress::new(trainer.steps(), settings.schedule.steps, data.tokens_per_step(settings));
        // Last, so that an error before it leaves Ctrl-C as it was.
        let stop = Stop::listen()?;
        let trainer = trainer.with_interrupt(stop.interrupt());
        Ok(Self { arguments, opened, run, _lock: lock, trainer, data, progress, stop })
    }

    /// All steps that are left, and the result.
    fn run(mut self) -> Result<ExitCode> {
        self.introduce();
        // A first step would wait for its kernels one by one, without a word.
        if !self.trainer.finished() {
            let progress = &self.progress;
            // The bar says how many they are.
            self.trainer.prepare(self.data.material(), &mut |kernels| progress.compiling(kernels))?;
        }
        while !self.trainer.finished() && !self.stop.asked() {
            self.step()?;
        }
        // Ctrl-C breaks a step off: what is saved is a whole one.
        self.trainer.save(&self.run)?;
        self.progress.finish();
        // The result is that of all steps: a part of them leaves checkpoints alone.
        if !self.trainer.finished() {
            self.progress.say("stopped and saved; go on with the same command and `--resume`");
            return Ok(ExitCode::from(stop::status()));
        }
        self.write()?;
        Ok(ExitCode::SUCCESS)
    }

    /// What learns, and what it learns.
    fn introduce(&self) {
        let (model, settings) = (self.trainer.model(), self.trainer.settings());
        // Of an adapter's model, the adapter's.
        let learned: usize = model.parameters().iter().map(|parameter| parameter.value.shape().count()).sum();
        progress::say(&format!(
            "{learned} of {} parameters learn, on {}; {}; about {} expected",
            model.parameters().elements(),
            B::NAME,
            self.data.describe(),
            hecate::Bytes(model.footprint(settings.batch, settings.tokens).total() as u128),
        ));
        if self.trainer.steps() > 0 {
            progress::say(&format!("going on after step {}", self.trainer.steps()));
        }
    }

    /// One step, and its checkpoint where one is due.
    fn step(&mut self) -> Result<()> {
        let began = Instant::now();
        let report = match self.trainer.step(self.data.material()) {
            // Whoever asked is answered before the next step.
            Err(hecate::models::Error::Stopped) => return Ok(()),
            outcome => outcome?,
        };
        // Told once a run: that its steps cannot be one graph, and why.
        if let Some(event) = self.trainer.take_event() {
            self.progress.say(&event);
        }
        self.progress.step(&report, began.elapsed());
        // The last step is saved after the loop.
        let due = report.step.is_multiple_of(self.trainer.plan().save_every) && !self.trainer.finished();
        if due { Ok(self.trainer.save(&self.run)?) } else { Ok(()) }
    }

    /// Writes the result into the folder of `--out`, beside that of the checkpoints.
    fn write(&self) -> Result<()> {
        let (model, out) = (self.trainer.model(), &self.arguments.out);
        let what = match (model.lora(), self.arguments.merge) {
            // Without an adapter all of the model learned.
            (None, _) => {
                self.opened.save(model, out)?;
                "the model"
            }
            // The model itself stayed as it was.
            (Some(_), false) => {
                self.opened.save_adapter(model, out)?;
                "the adapter"
            }
            (Some(lora), true) => {
                // The maps are read once more: beside the adapter they may have been rounded.
                let mut whole = self.opened.adapt(self.opened.model()?, lora, self.arguments.seed)?;
                let learned = whole.parameters_mut().iter_mut().zip(model.parameters().iter());
                learned.for_each(|(to, from)| to.value = from.value.clone());
                self.opened.save(&whole.merged()?, out)?;
                "the model with its adapter"
            }
        };
        writeln!(stdout().lock(), "{what} is in {}", visible_path(out))?;
        Ok(())
    }
}
