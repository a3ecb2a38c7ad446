//! Memory as a gate.

use super::{Context, Counts, GatedFusion, Mixer, Persistent, SlidingWindow, memory::memory};
use crate::{Builder, ComposedConfig, LayerCache, Parameters, Result, Tape, Var};
use hecate_core::Backend;

/// Parts of the cache.
const MEMORY: usize = 0;
const ATTENTION: usize = 1;

/// Memory as a gate (MAG): attention and a memory read the same tokens, and the memory gates what attention saw.
///
/// ```text
/// y = SWA([P; x])        P is seen by all tokens, whatever the window
/// m = Mem([P; x])        its rows of x: the memory of a text starts as it is after P
/// o = (rmsnorm(y) · σ(rmsnorm(m))) W_o
/// ```
///
/// Groups of frozen rules are counted from the text's first token; `P` has groups of its own.
/// Source: Behrouz et al., "Titans", eqs 26–28, with the projection that all mixers end in.
#[derive(Debug)]
pub struct Mag<B: Backend> {
    persistent: Option<Persistent>,
    memory: Box<dyn Mixer<B>>,
    attention: SlidingWindow,
    fusion: GatedFusion,
}

impl<B: Backend> Mag<B> {
    /// Both beside a residual stream of width `hidden`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new(build: &mut Builder<'_, B>, config: &ComposedConfig, hidden: usize, norm_eps: f32) -> Result<Self> {
        config.validate(hidden, str::to_owned)?;
        Ok(Self {
            persistent: Persistent::new(build, config.persistent, hidden)?,
            memory: memory(&mut build.within("memory"), &config.memory, hidden, norm_eps)?,
            attention: SlidingWindow::new(&mut build.within("attention"), &config.attention, hidden)?,
            fusion: GatedFusion::new(build, hidden, norm_eps)?,
        })
    }

    /// What the memory remembers before `batch` texts, once it has read the persistent rows; empty without them.
    fn start(&self, tape: &Tape<'_, B>, batch: usize) -> Result<LayerCache<B>> {
        match &self.persistent {
            Some(persistent) => Ok(persistent.read(tape, &*self.memory, batch)?.1),
            None => Ok(LayerCache::new(Vec::new())),
        }
    }
}

impl<B: Backend> Mixer<B> for Mag<B> {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        context.check(x)?;
        let rows = self.persistent.map(|persistent| persistent.rows(tape)).transpose()?;
        let seen = self.attention.attend(tape, x, rows.as_ref(), &mut context.part(ATTENTION))?;
        // A call without a cache reads the persistent rows itself, so that gradients flow to them.
        let mut own = match context.cache {
            Some(_) => None,
            None => Some(self.start(tape, context.sequences.count())?),
        };
        let m = self.memory.forward(tape, x, &mut context.part_or(MEMORY, own.as_mut()))?;
        self.fusion.forward(tape, &self.fusion.seen(tape, &seen)?, &m)
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        let memory = match self.persistent {
            Some(_) => self.start(&Tape::inert(parameters), batch)?,
            None => self.memory.cache(device, parameters, batch)?,
        };
        let parts = vec![memory, self.attention.cache(device, parameters, batch)?];
        Ok(LayerCache::new(Vec::new()).with_parts(parts))
    }

    fn group(&self) -> usize {
        self.memory.group()
    }

    fn counts(&self) -> Counts {
        self.memory.counts().max(Counts::Device)
    }
}
