//! Memory as a layer.

use super::{Context, Counts, Mixer, Persistent, RmsNorm, SlidingWindow, memory::memory};
use crate::{Builder, ComposedConfig, LayerCache, Parameters, Result, Tape, Var};
use hecate_core::Backend;

/// Parts of the cache, and its array: what the memory made of the persistent rows.
const MEMORY: usize = 0;
const ATTENTION: usize = 1;
const PREFIX: &str = "prefix";

/// Memory as a layer (MAL): attention reads what a memory made of the tokens.
///
/// ```text
/// z = rmsnorm(Mem([P; x]))        o = SWA(z)
/// ```
///
/// The rows of `z` that come of `P` are seen by all tokens, whatever the window. Groups of frozen rules are counted from
/// the text's first token; `P` has groups of its own.
/// Source: Behrouz et al., "Titans", eqs 29–31, with a norm before the projections of attention, as every projection has.
#[derive(Debug)]
pub struct Mal<B: Backend> {
    persistent: Option<Persistent>,
    memory: Box<dyn Mixer<B>>,
    norm: RmsNorm,
    attention: SlidingWindow,
}

impl<B: Backend> Mal<B> {
    /// Both beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new(build: &mut Builder<'_, B>, config: &ComposedConfig, hidden: usize, norm_eps: f32) -> Result<Self> {
        config.validate(hidden, str::to_owned)?;
        Ok(Self {
            persistent: Persistent::new(build, config.persistent, hidden)?,
            memory: memory(&mut build.within("memory"), &config.memory, hidden, norm_eps)?,
            norm: RmsNorm::new(build, "memory_norm", hidden, norm_eps)?,
            attention: SlidingWindow::new(&mut build.within("attention"), &config.attention, hidden)?,
        })
    }

    /// What the memory made of the persistent rows, `[1,Np,hidden]`, and what it then remembers before `batch` texts.
    fn start(&self, tape: &Tape<'_, B>, batch: usize) -> Result<Option<(Var<B>, LayerCache<B>)>> {
        let read = |persistent: Persistent| {
            let (rows, memory) = persistent.read(tape, &*self.memory, batch)?;
            Ok((self.norm.forward(tape, &rows)?, memory))
        };
        self.persistent.map(read).transpose()
    }
}

impl<B: Backend> Mixer<B> for Mal<B> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let (rows, mut own) = match &context.cache {
            // All texts have the same.
            Some(_) => {
                let row = |rows| tape.cast(x.value().dtype(), &tape.narrow(rows, 0, 0, 1)?);
                (context.known(PREFIX).map(row).transpose()?, None)
            }
            None => self.start(tape, context.sequences.count())?.unzip(),
        };
        let z = self.memory.forward(tape, x, &mut context.part_or(MEMORY, own.as_mut()))?;
        self.attention.attend(tape, &self.norm.forward(tape, &z)?, rows.as_ref(), &mut context.part(ATTENTION))
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let tape = Tape::inert(parameters);
        let (arrays, memory) = match self.start(&tape, batch)? {
            Some((rows, memory)) => (vec![(PREFIX, tape.repeat(&rows, batch)?.into_value())], memory),
            None => (Vec::new(), self.memory.cache(device, parameters, batch)?),
        };
        let parts = vec![memory, self.attention.cache(device, parameters, batch)?];
        Ok(LayerCache::new(arrays).with_parts(parts))
    }

    fn group(&self) -> usize {
        self.memory.group()
    }

    fn counts(&self) -> Counts {
        self.memory.counts().max(Counts::Device)
    }
}
