//! A model of one memory, written once for every backend, learns a sentence with AdamW.

use hecate::{
    models::{
        Builder, MemoryConfig, Parameters, Random, Tape, Var,
        layers::{Context, Embedding, Linear, Memory, Mixer, RmsNorm},
    },
    prelude::*,
    train::optimizer::{AdamW, Constants},
};

/// What is learned, byte by byte.
const TEXT: &[u8] = b"the quick brown fox jumps over the lazy dog. ";
/// Different bytes: those of ASCII.
const VOCABULARY: usize = 128;
/// Width of the residual stream.
const HIDDEN: usize = 32;

/// `head(x + memory(norm x))`, with `x` the embedding of each byte.
struct Reader {
    embedding: Embedding,
    norm: RmsNorm,
    memory: Memory<Delta>,
    head: Linear,
}

impl Reader {
    /// Parameters are added under names of their own, in this order, and drawn from one stream.
    fn new<B: Backend>(build: &mut Builder<'_, B>) -> hecate::Result<Self> {
        let config = MemoryConfig { rule: Delta::default(), heads: 2, ..MemoryConfig::default() };
        let embedding = Embedding::new(build, "embedding", VOCABULARY, HIDDEN)?;
        Ok(Self {
            norm: RmsNorm::new(build, "norm", HIDDEN, 1e-6)?,
            memory: Memory::new(&mut build.within("memory"), &config, HIDDEN, 1e-6)?,
            // The table of embeddings, transposed.
            head: embedding.head(build, "head", (VOCABULARY, HIDDEN), true)?,
            embedding,
        })
    }

    /// Scores of the next byte `[1, T, VOCABULARY]` for the bytes `[1, T]`.
    fn forward<B: Backend>(&self, tape: &Tape<'_, B>, bytes: &Tensor<B>) -> hecate::Result<Var<B>> {
        let x = self.embedding.forward(tape, bytes)?;
        let mut whole = Context::whole(1, bytes.shape().last());
        let read = self.memory.forward(tape, &self.norm.forward(tape, &x)?, &mut whole)?;
        Ok(self.head.forward(tape, &(x + read)?)?)
    }
}

/// Training as work for any backend: losses before and after.
struct Train {
    steps: u32,
}

impl Job for Train {
    type Output = hecate::Result<(f32, f32)>;

    fn run<B: Backend>(self, device: &B) -> Self::Output {
        // The same seed gives the same weights on every device.
        let mut parameters = Parameters::new();
        let mut random = Random::new(7);
        let model = Reader::new(&mut Builder::new(device, &mut parameters, &mut random, 0.1, 1))?;
        let constants = Constants { weight_decay: 0.0, ..Constants::default() };
        let mut optimizer = AdamW::new(device, &parameters, constants)?;

        // Twice over, so that the second time can be told from the first.
        let text: Vec<u32> = TEXT.iter().cycle().take(2 * TEXT.len()).map(|&byte| byte.into()).collect();
        let count = text.len() - 1;
        let inputs = Tensor::from_u32(device, [1, count], text[..count].to_vec())?;
        // Each byte's target is the byte after it.
        let targets = Tensor::from_u32(device, [1, count], text[1..].to_vec())?;

        let mut losses = Vec::new();
        for _ in 0..self.steps {
            // The tape remembers the forward, and goes back from the mean loss.
            let tape = Tape::recording(&parameters);
            let loss = tape.cross_entropy(&model.forward(&tape, &inputs)?, &targets)?;
            losses.push(loss.value().to_f32()?[0]);
            let gradients = tape.backward(&loss)?;
            optimizer.step(&mut parameters, gradients, 1e-2)?;
        }
        Ok((losses[0], losses[losses.len() - 1]))
    }
}

fn main() -> hecate::Result<()> {
    let selected = select(&devices(), &Choose::Best)?;
    let (before, after) = selected.run(Train { steps: 30 })??;
    println!("loss {before:.4} before, {after:.4} after 30 steps on {}", selected.id);
    assert!(after < 0.5 * before, "nothing was learned");
    Ok(())
}
