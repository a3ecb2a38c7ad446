//! The models that [`Config`] says: embedding, blocks, norm, output head.

use crate::{
    Architecture, Builder, Call, Config, Dropout, Footprint, Model, Parameters, Precision, Result, Tape, Var,
    footprint::Pass,
    layers::{Block, Context, Embedding, Linear, Mixer, RmsNorm},
};
use hecate_core::{Backend, Tensor, primitives::ProjectionEnd};
use std::path::Path;

/// A residual stream `[N,T,hidden]`, and what is still to be added to it.
type Stream<B> = (Var<B>, Option<Var<B>>);

/// Embedding, blocks, norm, output head.
#[derive(Debug)]
pub(crate) struct Blocks<B: Backend> {
    pub(crate) vocabulary_size: usize,
    pub(crate) embeddings: Embedding,
    /// First to last.
    pub(crate) blocks: Vec<Block<B>>,
    /// Of the stream after the last block.
    pub(crate) norm: RmsNorm,
    /// To scores, tied to the embeddings or of its own.
    pub(crate) head: Linear,
    /// What scores are times; what the head reads has it.
    pub(crate) score_factor: f32,
}

impl<B: Backend> Architecture<B> for Config {
    fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        build.quantize(self.quantization);
        let (vocabulary_size, hidden) = (self.vocabulary_size, self.hidden_size);
        let mut model = build.within("model");
        let embeddings = Embedding::new(&mut model, "embeddings", vocabulary_size, hidden)?;
        let block = |(i, layer)| Block::new(&mut model.within(&format!("layers.{i}")), self, layer);
        let blocks = self.layers.iter().enumerate().map(block).collect::<Result<_>>()?;
        let norm = RmsNorm::new(&mut model, "norm", hidden, self.norm_eps)?;
        let head = embeddings.head(build, "lm_head", (vocabulary_size, hidden), self.tie_word_embeddings)?;
        Ok(Box::new(Blocks { vocabulary_size, embeddings, blocks, norm, head, score_factor: 1.0 }))
    }

    fn check(&self) -> Result<()> {
        self.validate()
    }

    fn layers(&self) -> usize {
        self.layers.len()
    }

    fn initializer_range(&self) -> f32 {
        self.initializer_range
    }

    fn dropout(&self) -> Dropout {
        self.dropout()
    }

    fn elements(&self, device: &B) -> Result<u128> {
        self.validate()?;
        let (mut parameters, mut count) = (Parameters::new(), 0);
        let (vocabulary, hidden) = (self.vocabulary_size, self.hidden_size);
        let mut build = Builder::counting(device, &mut parameters, &mut count);
        build.quantize(self.quantization);
        let embeddings = Embedding::new(&mut build, "", vocabulary, hidden)?;
        embeddings.head(&mut build, "", (vocabulary, hidden), self.tie_word_embeddings)?;
        RmsNorm::new(&mut build, "", hidden, self.norm_eps)?;
        // Of layers alike one is counted.
        for run in self.layers.chunk_by(|a, b| a == b) {
            let mut layer = 0;
            let mut build = Builder::counting(device, &mut parameters, &mut layer);
            build.quantize(self.quantization);
            Block::new(&mut build, self, &run[0])?;
            count = count.saturating_add(layer.saturating_mul(run.len() as u128));
        }
        Ok(count)
    }

    fn footprint(&self, elements: u128, precision: Precision, [batch, tokens]: [usize; 2]) -> Footprint {
        Footprint::of_blocks(self, elements, precision, Pass { hidden: self.hidden_size, batch, tokens })
    }

    fn read(path: &Path, content: &[u8]) -> Result<Self> {
        Self::parse(path, content)
    }
}

impl<B: Backend> Blocks<B> {
    /// The residual stream after the last block.
    fn stream(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Stream<B>> {
        let (mut x, mut pending) = self.embedded(tape, tokens)?;
        for (i, block) in self.blocks.iter().enumerate() {
            tape.enter(Some(i));
            (x, pending) = block.forward_onto(tape, &x, pending.as_ref(), &mut context.part(i))?;
        }
        tape.enter(None);
        Ok((x, pending))
    }

    /// The residual stream before the first block.
    fn embedded(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>) -> Result<Stream<B>> {
        let x = self.embeddings.forward(tape, tokens)?;
        tape.watch("the embedding of a token", &x)?;
        Ok((x, None))
    }

    /// Scores `[N,T,V]` of the stream after the last block.
    fn scores_of(&self, tape: &Tape<'_, B>, (x, pending): Stream<B>) -> Result<Var<B>> {
        if pending.is_none() && self.score_factor == 1.0 && Linear::projects(tape, &[self.head], &x) {
            return Ok(Linear::projected(tape, &[self.head], (&x, Some(&self.norm)), ProjectionEnd::Each)?.remove(0));
        }
        self.head.forward(tape, &self.normed(tape, &x, pending.as_ref())?)
    }

    /// What the head reads, of the stream after the last block.
    fn normed(&self, tape: &Tape<'_, B>, x: &Var<B>, pending: Option<&Var<B>>) -> Result<Var<B>> {
        let [_, normed] = self.norm.after(tape, x, pending)?;
        tape.scale(self.score_factor, &normed)
    }
}

impl<B: Backend> Model<B> for Blocks<B> {
    fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    fn mixers(&self) -> Vec<&dyn Mixer<B>> {
        self.blocks.iter().map(Block::mixer).collect()
    }

    fn head(&self) -> Option<Linear> {
        Some(self.head)
    }

    fn forward(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let (x, pending) = self.stream(tape, tokens, context)?;
        self.normed(tape, &x, pending.as_ref())
    }

    fn scores(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let stream = self.stream(tape, tokens, context)?;
        self.scores_of(tape, stream)
    }

    /// Block by block: what the mixers of a block remember goes from call to call before the next block runs.
    fn scores_each(&self, tape: &Tape<'_, B>, calls: &mut [Call<B>]) -> Result<Vec<Var<B>>> {
        let embedded = calls.iter().map(|call| self.embedded(tape, &call.tokens));
        let mut streams = embedded.collect::<Result<Vec<_>>>()?;
        for (i, block) in self.blocks.iter().enumerate() {
            tape.enter(Some(i));
            for (number, (x, pending)) in streams.iter_mut().enumerate() {
                let mut context = Call::part(calls, number, i);
                (*x, *pending) = block.forward_onto(tape, x, pending.as_ref(), &mut context)?;
            }
        }
        tape.enter(None);
        streams.into_iter().map(|stream| self.scores_of(tape, stream)).collect()
    }

    fn forward_rows(
        &self,
        tape: &Tape<'_, B>,
        tokens: &Tensor<B>,
        rows: &Tensor<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let (x, pending) = self.stream(tape, tokens, context)?;
        let pending = pending.map(|pending| tape.rows(&pending, rows)).transpose()?;
        self.normed(tape, &tape.rows(&x, rows)?, pending.as_ref())
    }
}
