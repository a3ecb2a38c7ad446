//! What the tape keeps of each mixer. Parts of composed ones are added up; where they share arrays, that is too much.

use super::Pass;
use crate::{
    AttentionConfig, CmsConfig, ComposedConfig, ConductorConfig, Features, HopeConfig, MacConfig, MemoryConfig,
    MixerConfig, Retain, RuleConfig, TntConfig, config::Elements, gates::GatedRule,
};
use hecate_core::{
    Checkpoints, Dims, for_each_rule,
    rules::{self, MomentumForm, Titans},
};

/// Elements of a mixer that the tape keeps for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TapeElements {
    /// Of a token, in the type of activations.
    pub(super) narrow: u128,
    /// Of a token, in 32 bits.
    pub(super) wide: u128,
    /// Of all states of all texts, in 32 bits.
    pub(super) states: u128,
}

impl TapeElements {
    /// Of elements of a token in the type of activations, and of two numbers in 32 bits.
    fn stream(narrow: u128) -> Self {
        Self { narrow, wide: 2, states: 0 }
    }

    fn plus(self, other: Self) -> Self {
        let [narrow, wide, states] =
            [(self.narrow, other.narrow), (self.wide, other.wide), (self.states, other.states)].map(|(a, b)| a + b);
        Self { narrow, wide, states }
    }

    /// Of tokens with so many writes each, beside states.
    fn written(self, writes: usize, states: u128) -> Self {
        let writes = writes as u128;
        Self { narrow: writes * self.narrow, wide: writes * self.wide, states: self.states + states }
    }

    /// Of twice as many rows as tokens.
    fn twice(self) -> Self {
        Self { narrow: 2 * self.narrow, wide: 2 * self.wide, states: self.states }
    }
}

/// Sizes of the memories of a mixer.
struct MemorySizes {
    heads: u128,
    /// Width of the rule's keys.
    key: u128,
    value: u128,
    /// Elements of a state of one text, and of the gates of a token.
    elements: Elements,
    /// Arrays as wide as all values that a gate and a norm keep of what was read.
    read: u128,
    /// Of a token, what stands around a rule whose memories are run as differences from their start.
    around: TapeElements,
    /// States that such a call leaves, beside those of the rule.
    differences: usize,
}

impl MixerConfig {
    /// What the tape keeps of a pass.
    pub(super) fn tape_elements(&self, call: Pass) -> TapeElements {
        match self {
            Self::Memory(memory) => memory.tape_elements(call),
            Self::Attention(attention) => attention.tape_elements(call),
            Self::Mag(config) => config.mag(call),
            Self::Mal(config) => config.mal(call),
            Self::Mac(config) => config.tape_elements(call),
            Self::Cms(config) => config.tape_elements(call),
            Self::Conductor(config) => config.tape_elements(call),
            Self::Tnt(config) => config.tape_elements(call),
            Self::Hope(config) => config.tape_elements(call),
        }
    }
}

impl MemoryConfig {
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let sizes = self.sizes(call);
        let width = sizes.key;
        let key = self.widths(call.hidden).0 as u128;
        let features = if self.features == Features::Identity { 0 } else { width };
        let queries = if self.conv > 0 { 2 } else { 3 } * key + features;
        let narrow = sizes.heads * (2 * queries + (2 + sizes.read) * sizes.value);
        // Reciprocal norms of what was read, and of queries and keys without a convolution.
        let wide = 4 * sizes.elements.gates + if self.conv > 0 { 1 } else { 3 } * sizes.heads;
        // Every write is a token of the rule.
        let rows = call.tokens.saturating_mul(self.writes_per_token);
        let kept = (Checkpoints::new(self.rule.frozen()).count(rows) + sizes.differences) as u128;
        let states = call.batch as u128 * kept * sizes.elements.state;
        let beside = self.look_ahead(&sizes, states, call.batch);
        TapeElements { narrow, wide, states: 0 }.plus(sizes.around).plus(beside).written(self.writes_per_token, states)
    }

    /// What a linear rule's momentum that looks ahead keeps beside. Three parts keep a matrix where the rule has two. There are
    /// the first state of the delta rule, what is written, three gates, and 32-bit queries, keys and values.
    fn look_ahead(&self, sizes: &MemorySizes, states: u128, batch: usize) -> TapeElements {
        let RuleConfig::Titans(Titans { momentum: MomentumForm::LookAhead, .. }) = self.rule else {
            return TapeElements::default();
        };
        let MemorySizes { heads, key, value, elements, .. } = *sizes;
        // Once more as many keys and values for the gradients of the parts, which are there together.
        let wide = heads * (3 * key + 3 * value + 3);
        TapeElements { narrow: 0, wide, states: states / 2 + batch as u128 * elements.state / 2 }
    }

    fn sizes(&self, call: Pass) -> MemorySizes {
        let (key, value) = self.widths(call.hidden);
        let key = self.features.width(key);
        let elements = Elements::of(self.rule, &Dims::new(1, 1, self.heads, key, value));
        let [heads, key, value] = [self.heads, key, value].map(|size| size as u128);
        let (around, differences) = match self.is_difference() {
            true => (self.around([heads, value]), 1),
            false => (TapeElements::default(), 0),
        };
        MemorySizes { heads, key, value, elements, read: if self.gate { 3 } else { 2 }, around, differences }
    }

    /// Nothing where the rule is told other values: the tape keeps those alone. Where it erases with a strength of its own, both
    /// strengths at every value, and what they multiply.
    fn around(&self, [heads, value]: [u128; 2]) -> TapeElements {
        let wide = if matches!(self.rule, RuleConfig::Dgd(_)) { 4 * value + 2 } else { 0 };
        TapeElements { narrow: 0, wide: heads * wide, states: 0 }
    }

    /// The memory of a call that is cut into pieces of `length` tokens, each of which is read and written by calls of its
    /// own: pieces of all arrays, what stands for keys and values where nothing is written, and what each call leaves.
    fn in_pieces(&self, call: Pass, length: usize) -> TapeElements {
        let MemorySizes { heads, key, value, elements, differences, .. } = self.sizes(call);
        let pieces = TapeElements {
            narrow: heads * (4 * key + 5 * value),
            wide: 3 * elements.gates,
            states: call.states(length, 2, 2 + differences) * elements.state,
        };
        let whole = TapeElements { states: 0, ..self.tape_elements(call) };
        whole.plus(pieces)
    }

    /// Whether the state moves by itself: such memories are not called while they are only read.
    fn has_momentum(&self) -> bool {
        macro_rules! momentum {
            ($($rule:ident),*) => {
                match self.rule {
                    $(RuleConfig::$rule(_) => !<rules::$rule as GatedRule>::MOMENTUM.is_empty(),)*
                }
            };
        }
        for_each_rule!(momentum)
    }
}

impl AttentionConfig {
    /// There is no state, and log-sum-exp is an element a head.
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let (kv_heads, width) = self.sizes(call.hidden);
        let convolved = if self.conv > 0 { self.heads + 2 * kv_heads } else { 0 };
        let narrow = width as u128 * (2 * (self.heads + kv_heads) + convolved) as u128;
        TapeElements { narrow, wide: self.heads as u128, states: 0 }
    }

    /// As [`AttentionConfig::tape_elements`] beside persistent tokens: queries and keys of twice the width.
    fn beside(&self, call: Pass, persistent: usize) -> TapeElements {
        let (kv_heads, width) = self.sizes(call.hidden);
        let more = if persistent == 0 { 0 } else { 4 * width as u128 * (self.heads + kv_heads) as u128 };
        self.tape_elements(call).plus(TapeElements { narrow: more, ..TapeElements::default() })
    }
}

impl ComposedConfig {
    /// Attention and a memory, both norms of the fusion with their arguments, and what one lets through of the other.
    fn mag(&self, call: Pass) -> TapeElements {
        let fusion = TapeElements::stream(5 * call.hidden as u128);
        self.parts(call).plus(fusion)
    }

    /// A memory, a norm, and attention.
    fn mal(&self, call: Pass) -> TapeElements {
        self.parts(call).plus(TapeElements::stream(2 * call.hidden as u128))
    }

    /// Both, and for every text the state after the persistent tokens.
    fn parts(&self, call: Pass) -> TapeElements {
        let state = call.batch as u128 * self.memory.sizes(call).elements.state;
        let start =
            TapeElements { states: if self.persistent == 0 { 0 } else { 2 * state }, ..TapeElements::default() };
        self.memory.tape_elements(call).plus(self.attention.beside(call, self.persistent)).plus(start)
    }
}

impl MacConfig {
    /// Queries of the first look, the look itself, attention over two rows a token, and the memory that is written.
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let MemorySizes { heads, key, value, elements, read, differences, .. } = self.memory.sizes(call);
        let hidden = call.hidden as u128;
        let look = TapeElements {
            narrow: heads * (6 * key + (1 + read) * value),
            wide: elements.gates + 2 * heads,
            states: call.states(self.segment, 2, 2 + differences) * elements.state,
        };
        // Cut and joined rows of both streams, their norms, and what the fusion keeps.
        let rows = TapeElements::stream(14 * hidden);
        let memory = TapeElements { states: 0, ..self.memory.tape_elements(call) };
        memory.plus(look).plus(rows).plus(self.attention.beside(call, self.persistent).twice())
    }
}

impl CmsConfig {
    /// Each level is a memory in chunks; its argument has a norm or its result a weight, and results are added up.
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let level =
            |&period: &usize| self.memory.in_pieces(call, period).plus(TapeElements::stream(3 * call.hidden as u128));
        self.periods.iter().map(level).fold(TapeElements::default(), TapeElements::plus)
    }
}

impl ConductorConfig {
    /// A level with momentum is called for each token that writes and for those between; others are called once, with
    /// masks over their gates.
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let gates = self.memory.sizes(call).elements.gates;
        let masks = TapeElements { wide: 8 * gates, ..TapeElements::default() };
        let level = |&period: &usize| {
            let memory = match self.memory.has_momentum() && period > 1 {
                true => self.memory.in_pieces(call, period),
                false => self.memory.tape_elements(call).plus(masks),
            };
            memory.plus(TapeElements::stream(3 * call.hidden as u128))
        };
        self.periods.iter().map(level).fold(TapeElements::default(), TapeElements::plus)
    }
}

impl TntConfig {
    /// The global memory in chunks, the projection onto keys, and each local memory in shards with gates of its own.
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let MemorySizes { heads, key, value, elements, around, .. } = self.memory.sizes(call);
        let projection = TapeElements {
            narrow: 4 * heads * key,
            wide: 2 * heads,
            states: call.states(self.shard, 1, 2) * heads * key * key,
        };
        let local = TapeElements {
            narrow: heads * (2 * key + 4 * value),
            wide: 5 * elements.gates,
            states: call.states(self.shard, 1, 3) * elements.state,
        }
        .plus(around);
        let all = self.memory.in_pieces(call, self.chunk).plus(projection);
        self.locals.iter().fold(all, |sum, _| sum.plus(local))
    }
}

impl HopeConfig {
    /// Every chunk is two calls that read and one that writes, of all five memories at once.
    fn tape_elements(&self, call: Pass) -> TapeElements {
        let (heads, width) = (self.heads as u128, self.width(call.hidden) as u128);
        let held = 3 * width + 2;
        // In 32 bits, rows of each head's queries and keys, and other values; the difference at the start of each chunk.
        let (around, differences) = if self.retain == Retain::Initial { (4 * width + held, 1) } else { (0, 0) };
        TapeElements {
            narrow: heads * (15 * width + 6 * held),
            wide: heads * (24 + around),
            states: call.states(self.chunk, 3, 1 + differences) * heads * width * held,
        }
    }
}
