//! What becomes of memories: how large they are, how far from where they start, how much momentum they carry.
//!
//! A memory that drifts, dies or runs away shows here long before the loss tells. All of it is read off caches: what is
//! remembered after a text, and what a fresh text starts from. No kernel takes part, so models run as fast as without.

use hecate_core::{Backend, Rule, Slots, Tensor, for_each_rule, rules};
use hecate_models::{Cache, Config, LayerCache, MixerConfig, Result, RuleConfig, layers::GatedRule};
use serde::{Deserialize, Serialize};

/// A figure a head; none where it is not finite.
pub type Heads = Vec<Option<f32>>;

/// One slot of a memory's state, head by head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotMonitor {
    /// The block, counted from 0.
    pub layer: usize,
    /// Which memory of the block, where it has several: levels, shards, a copy from the start of a segment.
    #[serde(default, skip_serializing_if = "is_first")]
    pub part: usize,
    /// The slot's name.
    pub slot: String,
    /// Root mean square of the elements `X`.
    pub rms: Heads,
    /// `|X − B| / |B|`, where the memory starts from `B` and that is not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_start: Option<Heads>,
    /// Of momentum `S` for the memory `M`: `|S| / |M|`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_memory: Option<Heads>,
}

/// Most blocks have one memory, whose number need not be written.
// The signature is serde's.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_first(part: &usize) -> bool {
    *part == 0
}

/// The memories of every block in `cache`, beside those of `fresh`, a cache of the same model and number of texts at its start.
pub(crate) fn monitor<B: Backend>(config: &Config, cache: &Cache<B>, fresh: &Cache<B>) -> Result<Vec<SlotMonitor>> {
    let mut all = Vec::new();
    let layers = config.layers.iter().zip(cache.layers()).zip(fresh.layers());
    for (layer, ((config, cache), fresh)) in layers.enumerate() {
        for pair in pairs(&config.mixer) {
            for part in 0.. {
                let Some(x) = array(cache, pair.memory, part) else { break };
                let start = array(fresh, pair.memory, part).map(Values::of).transpose()?;
                let momentum = pair.momentum.and_then(|name| Some((name, array(cache, name, part)?)));
                let x = Values::of(x)?;
                let at = |slot: &str, rms, from_start, over_memory| SlotMonitor {
                    layer,
                    part,
                    slot: slot.to_owned(),
                    rms,
                    from_start,
                    over_memory,
                };
                all.push(at(pair.memory, x.rms(), start.and_then(|start| x.distance(&start)), None));
                if let Some((name, s)) = momentum {
                    let s = Values::of(s)?;
                    all.push(at(name, s.rms(), None, Some(ratios(&s.norms(), &x.norms()))));
                }
            }
        }
    }
    Ok(all)
}

/// A slot of a memory, and that of its momentum.
struct SlotPair {
    memory: &'static str,
    momentum: Option<&'static str>,
}

/// The slots of a mixer's memories; none of attention, whose keys and values are no memory.
fn pairs(mixer: &MixerConfig) -> Vec<SlotPair> {
    let rule = match mixer {
        MixerConfig::Attention(_) => return Vec::new(),
        // Its five memories lie side by side.
        MixerConfig::Hope(_) => return vec![SlotPair { memory: "m", momentum: None }],
        MixerConfig::Memory(memory) => memory.rule,
        MixerConfig::Mag(config) | MixerConfig::Mal(config) => config.memory.rule,
        MixerConfig::Mac(config) => config.memory.rule,
        MixerConfig::Cms(config) => config.memory.rule,
        MixerConfig::Conductor(config) => config.memory.rule,
        MixerConfig::Tnt(config) => config.memory.rule,
    };
    let (state, momentum) = slots(rule);
    // Momentum stands in the order of what it moves. Tokens that the next window begins with are no memory.
    let memory = state.iter().filter(|slot| !momentum.contains(slot) && !slot.ends_with("buf"));
    memory.enumerate().map(|(i, memory)| SlotPair { memory, momentum: momentum.get(i).copied() }).collect()
}

/// Names of a rule's state, and of those that are momentum.
fn slots(rule: RuleConfig) -> (&'static [&'static str], &'static [&'static str]) {
    macro_rules! slots {
        ($($rule:ident),*) => {
            match rule {
                $(RuleConfig::$rule(_) => {
                    (<rules::$rule as Rule>::State::NAMES, <rules::$rule as GatedRule>::MOMENTUM)
                })*
            }
        };
    }
    for_each_rule!(slots)
}

/// The array of this name in the `part`th memory of a block, depth first.
fn array<'a, B: Backend>(layer: &'a LayerCache<B>, name: &str, part: usize) -> Option<&'a Tensor<B>> {
    layer.iter().filter(|(known, _)| *known == name).map(|(_, array)| array).nth(part)
}

/// An array `[N,H,..]` on the host.
struct Values {
    elements: Vec<f32>,
    heads: usize,
    /// Elements of a head and a text.
    width: usize,
}

impl Values {
    fn of<B: Backend>(array: &Tensor<B>) -> Result<Self> {
        let axes = array.shape().axes();
        let (heads, width) = (axes[1], axes[2..].iter().product());
        Ok(Self { elements: array.to_f32()?, heads, width })
    }

    /// Sums over each head of `of` its elements, a text's share at a time.
    fn sums(&self, of: impl Fn(usize, &[f32]) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.heads];
        // Texts one after another, each with all heads.
        for (i, share) in self.elements.chunks(self.width.max(1)).enumerate() {
            sums[i % self.heads] += of(i * self.width, share);
        }
        sums
    }

    /// Norms of all texts' memories together.
    fn norms(&self) -> Vec<f64> {
        let squares = |_, share: &[f32]| share.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        self.sums(squares).into_iter().map(f64::sqrt).collect()
    }

    fn rms(&self) -> Heads {
        let count = (self.elements.len() / self.heads.max(1)).max(1) as f64;
        self.norms().into_iter().map(|norm| finite(norm / count.sqrt())).collect()
    }

    /// The distance from `start`, in norms of it; none where a head starts from zero.
    fn distance(&self, start: &Self) -> Option<Heads> {
        let norms = start.norms();
        if start.elements.len() != self.elements.len() || norms.contains(&0.0) {
            return None;
        }
        let apart = self.sums(|first, share| {
            let pairs = share.iter().zip(&start.elements[first..]);
            pairs.map(|(&x, &b)| (f64::from(x) - f64::from(b)).powi(2)).sum()
        });
        Some(ratios(&apart.into_iter().map(f64::sqrt).collect::<Vec<_>>(), &norms))
    }
}

/// One over the other, head by head.
fn ratios(a: &[f64], b: &[f64]) -> Heads {
    a.iter().zip(b).map(|(a, b)| finite(a / b)).collect()
}

/// A figure as it is recorded: JSON has no word for what is not finite.
fn finite(x: f64) -> Option<f32> {
    Some(x as f32).filter(|x| x.is_finite())
}
