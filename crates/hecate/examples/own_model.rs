//! A model of one's own layers is trained, stopped and resumed; then it reads a stream, and what it remembers is saved.

use hecate::{
    models::{
        Architecture, Builder, Init, LanguageModel, MemoryConfig, Model, Result, Tape, Var, Vocabulary,
        generate::generate_from,
        layers::{Context, Embedding, Linear, Memory, Mixer, RmsNorm},
        sampling::{Sampler, Sampling},
        text::{Corpus, Text},
        trained::{Trained, WhichWeights},
    },
    prelude::*,
    train::{
        RunPlan, Settings, Trainer,
        checkpoint::Run,
        evaluate::{SEGMENT, evaluate},
    },
};
use serde::{Deserialize, Serialize};
use std::{fs, ops::ControlFlow};

/// What the model's `config.json` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reader {
    /// Width of the stream.
    width: usize,
    /// Memories side by side.
    heads: usize,
}

/// `head(x + memory(norm x))`, with `x` the embedding of each byte. Layers know where their parameters are.
#[derive(Debug)]
struct Layers {
    embedding: Embedding,
    norm: RmsNorm,
    memory: Memory<Titans>,
    head: Linear,
}

impl<B: Backend> Architecture<B> for Reader {
    fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (rule, heads, momentum) = (Titans::default(), self.heads, 0.9);
        let memory = MemoryConfig { rule, heads, momentum, ..MemoryConfig::default() };
        Ok(Box::new(Layers {
            embedding: Embedding::new(build, "embedding", 256, self.width)?,
            norm: RmsNorm::new(build, "norm", self.width, 1e-6)?,
            memory: Memory::new(&mut build.within("memory"), &memory, self.width, 1e-6)?,
            head: Linear::new(build, "head", self.width, 256, Init::Normal)?,
        }))
    }
}

impl<B: Backend> Model<B> for Layers {
    fn vocabulary_size(&self) -> usize {
        256
    }

    fn mixers(&self) -> Vec<&dyn Mixer<B>> {
        vec![&self.memory]
    }

    /// Scores of the next byte, `[N,T,256]`, for the bytes `[N,T]`.
    fn forward(&self, tape: &Tape<'_, B>, bytes: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let x = self.embedding.forward(tape, bytes)?;
        let read = self.memory.forward(tape, &self.norm.forward(tape, &x)?, &mut context.part(0))?;
        self.head.forward(tape, &tape.add(&x, &read)?)
    }
}

/// Trains in two sittings, as if the program had been stopped in between; returns losses on held-out text, nats a byte.
fn learn<B: Backend>(device: &B, run: &Run) -> Result<(f64, f64)> {
    let sums = (0..400).map(|i| format!("{} plus {} is {}.\n", i % 10, i % 7, i % 10 + i % 7));
    let text = Text::new("sums", sums.collect::<String>());
    let settings = Settings { batch: 4, tokens: 64, ..Settings::over(80) };
    let corpus = Corpus::of(&text, &Vocabulary::Bytes, RunPlan::HELD_OUT, settings.text())?;
    let held_out = |model: &LanguageModel<B>| evaluate(model, &corpus.held_out, SEGMENT, |_| ControlFlow::Continue(()));

    let (reader, plan) = (Reader { width: 32, heads: 2 }, RunPlan::of(corpus.identity.clone(), 80));
    let mut trainer = Trainer::new(device, &reader, settings, plan, None)?;
    let before = held_out(trainer.model())?.loss();
    trainer.begin(run, &[])?;
    while trainer.steps() < 40 {
        trainer.step(&corpus.train.tokens)?;
    }
    trainer.save(run)?;

    // Weights, optimiser and place in the text are those of a run that never stopped, to the bit.
    let mut trainer = Trainer::resume_as::<Reader>(device, run)?;
    while !trainer.finished() {
        trainer.step(&corpus.train.tokens)?;
    }
    trainer.save(run)?;
    Ok((before, held_out(trainer.model())?.loss()))
}

/// Reads a text piece by piece with the trained model, saves what is remembered of it, and goes on from the file.
fn stream<B: Backend>(device: &B, run: &Run) -> Result<String> {
    let Trained { model, vocabulary, .. } = Trained::load_as::<Reader>(device, run.folder(), WhichWeights::Last)?;
    let mut cache = model.cache(1)?;
    for piece in ["5 plus 2 is 7.\n", "6 plus 3 is 9.\n", "7 plus 4 "] {
        model.infer(&vocabulary.encode(piece)?, 1, &mut cache)?;
    }
    let path = run.file("read.safetensors");
    cache.save(&path)?;

    // The size of what is remembered does not depend on how much was read.
    let mut loaded = model.cache(1)?;
    loaded.load(&path)?;
    let sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() })?;
    let tokens = generate_from(&model, loaded, &vocabulary.encode("is ")?, sampler)?;
    vocabulary.decode(&tokens.take(4).collect::<Result<Vec<u32>>>()?)
}

/// Both, on any device.
struct Work;

impl Job for Work {
    type Output = Result<()>;

    fn run<B: Backend>(self, device: &B) -> Self::Output {
        let folder = std::env::temp_dir().join(format!("hecate-own-model-{}", std::process::id()));
        let run = Run::new(&folder);
        let (before, after) = learn(device, &run)?;
        println!("held-out loss {before:.3} before, {after:.3} after 80 steps on {}", B::NAME);
        assert!(after < 0.5 * before, "nothing was learned");
        println!("7 plus 4 is {}", stream(device, &run)?);
        // A run of one's own stays; this one was for show.
        let _ = fs::remove_dir_all(folder);
        Ok(())
    }
}

fn main() -> Result<()> {
    select(&devices(), &Choose::Best)?.run(Work)?
}
