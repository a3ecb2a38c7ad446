//! Flags of memories that are written at different times: levels of cms and conductor, shards of tnt, chunks of hope.
//! All times are in tokens of the text.

use crate::error::{Error, Result};
use clap::Args;
use hecate::models::{CmsConfig, ConductorConfig, HopeConfig, MemoryConfig, MixerConfig, Retain, TntConfig, Wiring};

/// Flags of cms, conductor, tnt and hope.
#[derive(Args, Debug, Default)]
// Their defaults are those of the configurations; that help says the same is tested from outside.
#[group(multiple = true, conflicts_with = "resume")]
#[command(next_help_heading = "Attention and compositions")]
pub(crate) struct LevelArgs {
    /// Tokens between two writes of each level of cms or conductor [default: 4,16,64 for cms, 1,8,64,512 for conductor]
    ///
    /// In rising order.
    #[arg(long, hide_short_help = true, value_name = "TOKENS", value_delimiter = ',')]
    periods: Option<Vec<usize>>,
    /// Whether each level of cms or conductor also reads what those before it say (chained) [default: chained for cms,
    /// independent for conductor]
    #[arg(long, hide_short_help = true, value_parser = ["chained", "independent"])]
    wiring: Option<String>,
    /// Tokens after which the global memory of tnt, or that of hope, changes [default: 64 for tnt, 16 for hope]
    #[arg(long, hide_short_help = true, value_name = "TOKENS")]
    chunk: Option<usize>,
    /// Tokens after which each local memory of tnt changes, divisors of the shard, such as 8,16 [default: 8]
    #[arg(long, hide_short_help = true, value_name = "TOKENS", value_delimiter = ',')]
    locals: Option<Vec<usize>>,
    /// Tokens after which local memories of tnt start again [default: 64]
    #[arg(long, hide_short_help = true, value_name = "TOKENS")]
    shard: Option<usize>,
}

/// What hope has of the flags of memories.
pub(super) struct HopeArgs {
    pub(super) heads: usize,
    pub(super) head_dim: Option<usize>,
    pub(super) conv: Option<usize>,
    pub(super) retain: Option<Retain>,
}

impl LevelArgs {
    /// Refuses flags that the mixer of this name does not have.
    pub(super) fn check(&self, mixer: &str) -> Result<()> {
        // A flag, whether it was given, and the mixers that have it.
        let flags: [(&str, bool, &[&str]); 5] = [
            ("--periods", self.periods.is_some(), &["cms", "conductor"]),
            ("--wiring", self.wiring.is_some(), &["cms", "conductor"]),
            ("--chunk", self.chunk.is_some(), &["tnt", "hope"]),
            ("--locals", self.locals.is_some(), &["tnt"]),
            ("--shard", self.shard.is_some(), &["tnt"]),
        ];
        // The first one is enough: the message names what to leave out.
        match flags.into_iter().find(|(_, given, mixers)| *given && !mixers.contains(&mixer)) {
            Some((flag, _, mixers)) => {
                let way_out =
                    format!("`--mixer {mixer}` has no such option; leave it out, or use {}", mixers.join(" or "));
                Err(Error::flag(flag, way_out))
            }
            None => Ok(()),
        }
    }

    /// A continuum memory system whose levels are `memory`; what no flag says is as by default.
    pub(super) fn cms(&self, memory: MemoryConfig) -> MixerConfig {
        let base = CmsConfig::default();
        // Rising order is checked by the configuration, which names the entry.
        let periods = self.periods.clone().unwrap_or(base.periods);
        MixerConfig::Cms(CmsConfig { memory, periods, wiring: self.wiring().unwrap_or(base.wiring) })
    }

    /// A conductor whose levels are `memory`.
    pub(super) fn conductor(&self, memory: MemoryConfig) -> MixerConfig {
        let base = ConductorConfig::default();
        // Every level forgets when it is written, and at no other time.
        let periods = self.periods.clone().unwrap_or(base.periods);
        MixerConfig::Conductor(ConductorConfig { memory, periods, wiring: self.wiring().unwrap_or(base.wiring) })
    }

    /// TNT, whose global and local memories are `memory`.
    pub(super) fn tnt(&self, memory: MemoryConfig) -> MixerConfig {
        let base = TntConfig::default();
        // Local memories go back to starts of their own, as they do at every shard.
        // Gates are theirs too; queries, keys and values are shared.
        MixerConfig::Tnt(TntConfig {
            memory,
            chunk: self.chunk.unwrap_or(base.chunk),
            locals: self.locals.clone().unwrap_or(base.locals),
            shard: self.shard.unwrap_or(base.shard),
        })
    }

    /// HOPE, which has no rule to choose.
    pub(super) fn hope(&self, given: HopeArgs) -> MixerConfig {
        let base = HopeConfig::default();
        let HopeArgs { heads, head_dim, conv, retain } = given;
        let (chunk, conv) = (self.chunk.unwrap_or(base.chunk), conv.unwrap_or(base.conv));
        MixerConfig::Hope(HopeConfig { heads, head_dim, chunk, conv, retain: retain.unwrap_or(base.retain), ..base })
    }

    /// The wiring that was asked for; the parser knows two.
    fn wiring(&self) -> Option<Wiring> {
        // Absent, the mixer's own default holds.
        self.wiring.as_deref().map(|name| if name == "chained" { Wiring::Chained } else { Wiring::Independent })
    }
}
