//! Blocks of a model.

use super::{
    Context, Hope, Levels, Mac, Mag, Mal, Mixer, Mlp, RmsNorm, SlidingWindow, Tnt,
    memory::{memory, over},
};
use crate::{Builder, Config, LayerConfig, MixerConfig, Result, RuleConfig, Tape, Var};
use hecate_core::{Backend, for_each_rule};

/// The mixer that a configuration asks for.
///
/// # Errors
/// The device's own failures.
pub fn mixer<B: Backend>(
    build: &mut Builder<'_, B>,
    config: &MixerConfig,
    hidden: usize,
    norm_eps: f32,
) -> Result<Box<dyn Mixer<B>>> {
    Ok(match config {
        MixerConfig::Memory(config) => memory(build, config, hidden, norm_eps)?,
        MixerConfig::Cms(config) => {
            for_each_rule!(over, Levels::cms, config.memory.rule, build, config, hidden, norm_eps,)
        }
        MixerConfig::Conductor(config) => {
            for_each_rule!(over, Levels::conductor, config.memory.rule, build, config, hidden, norm_eps,)
        }
        MixerConfig::Tnt(config) => {
            for_each_rule!(over, Tnt::new, config.memory.rule, build, config, hidden, norm_eps,)
        }
        MixerConfig::Hope(config) => Box::new(Hope::new(build, config, hidden, norm_eps)?),
        MixerConfig::Attention(config) => Box::new(SlidingWindow::new(build, config, hidden)?),
        MixerConfig::Mag(config) => Box::new(Mag::new(build, config, hidden, norm_eps)?),
        MixerConfig::Mal(config) => Box::new(Mal::new(build, config, hidden, norm_eps)?),
        MixerConfig::Mac(config) => Box::new(Mac::new(build, config, hidden, norm_eps)?),
    })
}

/// `x + mixer(norm x)`, then `x + mlp(norm x)`; or with the norms behind, `x + norm(mixer x)` and `x + norm(mlp x)`.
#[derive(Debug)]
pub struct Block<B: Backend> {
    attn_norm: RmsNorm,
    attn: Box<dyn Mixer<B>>,
    /// What looks at one token, and its norm; none where mixers follow each other.
    mlp: Option<(RmsNorm, Mlp)>,
    place: NormPlace,
    /// What mixer and MLP are times where they are added to the stream.
    factor: f32,
    /// Share of what is added to the stream that is dropped.
    dropout: f32,
}

/// Where a block's norms are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// Of what mixer and MLP read.
    Before,
    /// Of what they add to the stream.
    After,
}

/// What a block is made of: a mixer and, in most models, an MLP, each with its norm.
#[derive(Debug)]
pub struct Branches<B: Backend> {
    /// What goes from token to token, and its norm.
    pub mixer: (RmsNorm, Box<dyn Mixer<B>>),
    /// What looks at one token, and its norm.
    pub mlp: Option<(RmsNorm, Mlp)>,
}

impl<B: Backend> Block<B> {
    /// The block that `layer` asks for in a model of `config`.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn new(build: &mut Builder<'_, B>, config: &Config, layer: &LayerConfig) -> Result<Self> {
        let (hidden, norm_eps) = (config.hidden_size, config.norm_eps);
        let attn_norm = RmsNorm::new(build, "attn_norm", hidden, norm_eps)?;
        let attn = mixer(&mut build.within("attn"), &layer.mixer, hidden, norm_eps)?;
        let mlp_norm = RmsNorm::new(build, "mlp_norm", hidden, norm_eps)?;
        let mlp = Mlp::new(&mut build.within("mlp"), hidden, config.mlp_size())?;
        let branches = Branches { mixer: (attn_norm, attn), mlp: Some((mlp_norm, mlp)) };
        Ok(Self::of(build, NormPlace::Before, branches))
    }

    /// A block of these parts.
    pub fn of(build: &Builder<'_, B>, place: NormPlace, branches: Branches<B>) -> Self {
        let Branches { mixer: (attn_norm, attn), mlp } = branches;
        Self { attn_norm, attn, mlp, place, factor: 1.0, dropout: build.dropout().hidden }
    }

    /// The same, whose mixer and MLP are times this factor where they are added to the stream.
    pub(crate) fn scaled(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// The mixer.
    pub fn mixer(&self) -> &dyn Mixer<B> {
        &*self.attn
    }

    /// `x [B,T,hidden]` to the same shape.
    ///
    /// # Errors
    /// An `x` of another width; the device's own failures.
    pub fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let (x, thought) = self.forward_onto(tape, x, None, context)?;
        thought.map_or_else(|| Ok(x.clone()), |thought| tape.add(&x, &thought))
    }

    /// The stream `x`, to which `pending` is still to be added, after the mixer, and what the MLP adds to it: each sum is
    /// made where its norm is. Of few tokens each is made where its product is, and nothing is left to be added.
    pub(crate) fn forward_onto(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        pending: Option<&Var<B>>,
        context: &mut Context<'_, B>,
    ) -> Result<(Var<B>, Option<Var<B>>)> {
        if self.place == NormPlace::After {
            let x = pending.map_or_else(|| Ok(x.clone()), |pending| tape.add(x, pending))?;
            return Ok((self.forward_with_norms_behind(tape, &x, context)?, None));
        }
        if let Some((norm, mlp)) = self.mlp.as_ref().filter(|(_, mlp)| self.factor == 1.0 && mlp.is_fused(tape, x)) {
            let x = pending.map_or_else(|| Ok(x.clone()), |pending| tape.add(x, pending))?;
            return Ok((mlp.forward_onto(tape, norm, &self.mix_few(tape, &x, context)?)?, None));
        }
        let [x, normed] = self.attn_norm.after(tape, x, pending)?;
        let mixed = self.attn.forward(tape, &normed, context)?;
        tape.watch("the output of the mixer", &mixed)?;
        let mixed = self.branch(tape, &mixed)?;
        let Some((norm, mlp)) = &self.mlp else { return Ok((x, Some(mixed))) };
        let [x, normed] = norm.after(tape, &x, Some(&mixed))?;
        let thought = mlp.forward(tape, &normed)?;
        tape.watch("the output of the MLP", &thought)?;
        Ok((x, Some(self.branch(tape, &thought)?)))
    }

    /// What mixer or MLP made, as it is added to the stream.
    fn branch(&self, tape: &Tape<'_, B>, x: &Var<B>) -> Result<Var<B>> {
        tape.scale(self.factor, &tape.dropout(self.dropout, x)?)
    }

    /// [`Block::forward`] with [`NormPlace::After`].
    fn forward_with_norms_behind(
        &self,
        tape: &Tape<'_, B>,
        x: &Var<B>,
        context: &mut Context<'_, B>,
    ) -> Result<Var<B>> {
        let mixed = self.attn.forward(tape, x, context)?;
        tape.watch("the output of the mixer", &mixed)?;
        let x = tape.add(x, &self.branch(tape, &self.attn_norm.forward(tape, &mixed)?)?)?;
        let Some((norm, mlp)) = &self.mlp else { return Ok(x) };
        let thought = mlp.forward(tape, &x)?;
        tape.watch("the output of the MLP", &thought)?;
        tape.add(&x, &self.branch(tape, &norm.forward(tape, &thought)?)?)
    }

    /// The stream after the mixer, of few tokens of which nothing is recorded.
    fn mix_few(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        match self.attn.forward_onto(tape, &self.attn_norm, x, context)? {
            Some(x) => Ok(x),
            None => tape.add(x, &self.attn.forward(tape, &self.attn_norm.forward(tape, x)?, context)?),
        }
    }
}
