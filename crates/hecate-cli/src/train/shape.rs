//! Flags of a model that every mixer has, or that many rules have: those with which models compare.

use crate::defaults;
use clap::Args;
use hecate::models::Retain;

/// Size of a model, and what several of its rules share.
#[derive(Args, Clone, Debug)]
// A group of its own, which other flags conflict with by its name.
#[group(multiple = true)]
#[command(next_help_heading = "Model")]
pub(crate) struct ShapeArgs {
    /// Largest momentum of titans, titans_mlp and yaad_momentum [default: 0.9, 1 with --momentum-form]
    ///
    /// Below 1 it bounds what a token writes.
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_name = "MAX")]
    // Its range is checked with the configuration, whose message names the field.
    pub(super) momentum: Option<f32>,
    /// Which momentum titans, titans_mlp and yaad_momentum have [default: heavy_ball]
    ///
    /// The paper's, or one that takes gradients where it is about to lead, by which a linear memory is bounded. titans has the
    /// latter neither with --frozen nor in cms and tnt.
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_name = "FORM", value_parser = ["heavy_ball", "look_ahead"])]
    // Names as the configuration spells them.
    pub(super) momentum_form: Option<String>,
    /// Tokens of a group, whose errors are all of the memory before the group [default: 16 for titans_mlp, yaad and moneta in
    /// all their forms, 1 for others and in cms, conductor and tnt]
    ///
    /// 1 takes the memory as it is at each token, with which text is generated faster.
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_name = "TOKENS")]
    // Its range depends on the rule and the mixer, which check it.
    pub(super) frozen: Option<u32>,
    /// Length that the errors of a network stay under, such as 2 [default: any length]
    ///
    /// Longer errors are shortened, smoothly. Of titans_mlp, yaad, moneta and memora in all their forms.
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_name = "C")]
    // Its range is checked with the configuration, whose message names the option.
    pub(super) clip_errors: Option<f32>,
    /// Whether memories decay to their learned start or to zero [default: initial for networks, lattice, trellis, hope and in
    /// compositions where the rule can, zero for others]
    ///
    /// All rules but atlas can go back to their start, dgd without --frozen, networks, lattice and trellis without --read before.
    #[arg(long, hide_short_help = true, help_heading = "Memories", value_name = "WHERE", value_parser = ["initial", "zero"])]
    // Names as the configuration spells them. How fast memories forget is no flag: a model learns that, and what scales
    // it is there for models of before.
    pub(super) retain: Option<String>,
    /// Number of blocks
    #[arg(long, default_value_t = defaults::LAYERS, value_name = "N")]
    pub(super) layers: usize,
    /// Width of the residual stream
    #[arg(long, default_value_t = defaults::WIDTH, value_name = "N")]
    pub(super) width: usize,
    /// Width inside the MLPs [default: 8/3 of --width, rounded up to a multiple of 16]
    ///
    /// Both a multiple of 256 is what every format of `hecate quantize` takes.
    #[arg(long, hide_short_help = true, value_name = "N")]
    // Its range is checked with the configuration.
    pub(super) mlp: Option<usize>,
    /// Number of memories, or of attention heads, in a block
    #[arg(long, default_value_t = defaults::HEADS, value_name = "N")]
    pub(super) heads: usize,
    /// Share of elements that is dropped, against learning a small text by heart
    ///
    /// Of what attention saw and memories read, inside MLPs, and of what both add to the stream.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    // Its range is checked with the configuration.
    pub(super) dropout: f32,
}

impl ShapeArgs {
    /// Which of the options that only some rules have are given: --momentum, --momentum-form,
    /// --retain, --clip-errors and --frozen.
    #[cfg(feature = "check")]
    pub(crate) fn given(&self) -> [bool; 5] {
        let momentum = [self.momentum.is_some(), self.momentum_form.is_some()];
        let [retain, clip, frozen] = [self.retain.is_some(), self.clip_errors.is_some(), self.frozen.is_some()];
        [momentum[0], momentum[1], retain, clip, frozen]
    }

    /// The same with these of those options alone.
    #[cfg(feature = "check")]
    pub(crate) fn with(&self, [momentum, form, retain, clip, frozen]: [bool; 5]) -> Self {
        let momentum = self.momentum.filter(|_| momentum);
        let momentum_form = self.momentum_form.clone().filter(|_| form);
        // What is left out is as if it had not been given.
        let retain = self.retain.clone().filter(|_| retain);
        let (clip_errors, frozen) = (self.clip_errors.filter(|_| clip), self.frozen.filter(|_| frozen));
        Self { momentum, momentum_form, retain, clip_errors, frozen, ..*self }
    }

    /// Where the flag sends what is forgotten; the parser knows these names and no other.
    pub(super) fn retain(&self) -> Option<Retain> {
        [Retain::Initial, Retain::Zero].into_iter().find(|retain| self.retain.as_deref() == Some(retain.name()))
    }
}
