//! Flags of memories that are written at different times.

use crate::error::{Error, Result};
use clap::Args;
use hecate_models::{CmsConfig, ConductorConfig, HopeConfig, MemoryConfig, MixerConfig, TntConfig, Wiring};

#[derive(Args, Debug)]
#[group(multiple = true, conflicts_with = "resume")]
#[command(next_help_heading = "Model")]
pub(super) struct Levels {
    /// Tokens between two writes of each level of cms or conductor, rising: 4,16,64
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    periods: Option<Vec<usize>>,
    /// Whether levels of cms or conductor read what those before them say, or all the same
    #[arg(long, value_parser = ["chained", "independent"])]
    wiring: Option<String>,
    /// Tokens for which the global memory of tnt, or that of hope, stays as it is
    #[arg(long, value_name = "TOKENS")]
    chunk: Option<usize>,
    /// Tokens that share a gradient point in each local memory of tnt, divisors of the shard: 8,16
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    locals: Option<Vec<usize>>,
    /// Tokens after which local memories of tnt start again
    #[arg(long, value_name = "TOKENS")]
    shard: Option<usize>,
}

impl Levels {
    /// Refuses flags that the mixer of this name does not have.
    pub(super) fn check(&self, mixer: &str) -> Result<()> {
        let flags: [(&str, bool, &[&str]); 5] = [
            ("--periods", self.periods.is_some(), &["cms", "conductor"]),
            ("--wiring", self.wiring.is_some(), &["cms", "conductor"]),
            ("--chunk", self.chunk.is_some(), &["tnt", "hope"]),
            ("--locals", self.locals.is_some(), &["tnt"]),
            ("--shard", self.shard.is_some(), &["tnt"]),
        ];
        match flags.into_iter().find(|(_, given, mixers)| *given && !mixers.contains(&mixer)) {
            Some((flag, _, mixers)) => {
                let way_out =
                    format!("`--mixer {mixer}` has no such option; leave it out, or use {}", mixers.join(" or "));
                Err(Error::flag(flag, way_out))
            }
            None => Ok(()),
        }
    }

    pub(super) fn cms(&self, memory: MemoryConfig) -> MixerConfig {
        let base = CmsConfig::default();
        let periods = self.periods.clone().unwrap_or(base.periods);
        MixerConfig::Cms(CmsConfig { memory, periods, wiring: self.wiring().unwrap_or(base.wiring) })
    }

    pub(super) fn conductor(&self, memory: MemoryConfig) -> MixerConfig {
        let base = ConductorConfig::default();
        let periods = self.periods.clone().unwrap_or(base.periods);
        MixerConfig::Conductor(ConductorConfig { memory, periods, wiring: self.wiring().unwrap_or(base.wiring) })
    }

    pub(super) fn tnt(&self, memory: MemoryConfig) -> MixerConfig {
        let base = TntConfig::default();
        MixerConfig::Tnt(TntConfig {
            memory,
            chunk: self.chunk.unwrap_or(base.chunk),
            locals: self.locals.clone().unwrap_or(base.locals),
            shard: self.shard.unwrap_or(base.shard),
        })
    }

    pub(super) fn hope(&self, heads: usize, head_dim: Option<usize>, conv: Option<usize>) -> MixerConfig {
        let base = HopeConfig::default();
        let (chunk, conv) = (self.chunk.unwrap_or(base.chunk), conv.unwrap_or(base.conv));
        MixerConfig::Hope(HopeConfig { heads, head_dim, chunk, conv, ..base })
    }

    fn wiring(&self) -> Option<Wiring> {
        self.wiring.as_deref().map(|name| if name == "chained" { Wiring::Chained } else { Wiring::Independent })
    }
}
