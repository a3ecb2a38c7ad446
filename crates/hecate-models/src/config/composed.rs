//! Memories composed with attention.

use super::{AttentionConfig, MemoryConfig};
use serde::{Deserialize, Serialize};

/// A memory, and sliding-window attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComposedConfig {
    /// The memory.
    pub memory: MemoryConfig,
    /// Attention.
    pub attention: AttentionConfig,
    /// Learned tokens in front of every text; 0 for none.
    pub persistent: usize,
}

impl Default for ComposedConfig {
    fn default() -> Self {
        Self { memory: MemoryConfig::default(), attention: AttentionConfig::default(), persistent: 4 }
    }
}

impl ComposedConfig {
    /// The default with as many heads in both, and as many taps: "Titans" convolves every query, key and value.
    pub(super) fn with_heads(heads: usize) -> Self {
        let base = Self::default();
        let memory = MemoryConfig { heads, ..base.memory }.in_composition(1);
        let attention = AttentionConfig { heads, conv: memory.conv, ..base.attention };
        Self { memory, attention, ..base }
    }
}

/// A memory, and attention inside of segments of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MacConfig {
    /// The memory. Where its rule is frozen, a segment is whole groups.
    pub memory: MemoryConfig,
    /// Attention; of its segment a token sees the last `window` tokens, and what the memory says of them.
    pub attention: AttentionConfig,
    /// Learned tokens that attention sees everywhere; 0 for none.
    pub persistent: usize,
    /// Tokens of a segment.
    pub segment: usize,
}

impl Default for MacConfig {
    fn default() -> Self {
        let ComposedConfig { memory, attention, persistent } = ComposedConfig::default();
        Self { memory, attention, persistent, segment: 64 }
    }
}

impl MacConfig {
    /// The default with as many heads in both.
    pub(super) fn with_heads(heads: usize) -> Self {
        let ComposedConfig { memory, attention, .. } = ComposedConfig::with_heads(heads);
        Self { memory, attention, ..Self::default() }
    }

    /// Most tokens that a token sees, itself included.
    pub(crate) fn seen(&self) -> usize {
        self.attention.window.min(self.segment)
    }
}
