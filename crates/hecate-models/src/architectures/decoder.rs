//! What all families have around and inside of their blocks.

use crate::{
    Builder, Error, Model, Result,
    bounds::{LAYERS, SIZE, within},
    language_model::Blocks,
    layers::{Block, Embedding, RmsNorm},
};
use hecate_core::Backend;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Sizes of a model around its blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    /// Whether the head's matrix is the table of embeddings.
    pub(super) tied: bool,
    /// Name of the table of embeddings.
    pub(super) embeddings: &'static str,
}

/// Fields that all families of transformers have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Trunk {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    /// Inside of MLPs.
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    #[serde(default = "epsilon")]
    pub(super) rms_norm_eps: f32,
    #[serde(default)]
    tie_word_embeddings: bool,
}

fn epsilon() -> f32 {
    1e-6
}

impl Trunk {
    /// Sizes around the blocks.
    pub(super) fn decoder(&self) -> Decoder {
        Decoder {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            tied: self.tie_word_embeddings,
            embeddings: "embed_tokens",
        }
    }

    /// Refuses sizes that no model has.
    pub(super) fn check(&self) -> Result<()> {
        self.decoder().check()?;
        sizes(&[("intermediate_size", self.intermediate_size)])
    }
}

/// How a family makes the norm of this name and width.
pub(super) type NewNorm<B> = fn(&mut Builder<'_, B>, &str, usize, f32) -> Result<RmsNorm>;

impl Decoder {
    /// Embedding, blocks, norm and head; `block` makes the block of this number.
    pub(super) fn build<B: Backend>(
        self,
        build: &mut Builder<'_, B>,
        norm: (NewNorm<B>, f32),
        block: impl FnMut(&mut Builder<'_, B>, usize) -> Result<Block<B>>,
    ) -> Result<Box<dyn Model<B>>> {
        self.build_scaled(build, norm, [1.0; 2], block)
    }

    /// As [`Decoder::build`], with embeddings and scores times these factors.
    pub(super) fn build_scaled<B: Backend>(
        self,
        build: &mut Builder<'_, B>,
        (norm, epsilon): (NewNorm<B>, f32),
        [embedding_factor, score_factor]: [f32; 2],
        mut block: impl FnMut(&mut Builder<'_, B>, usize) -> Result<Block<B>>,
    ) -> Result<Box<dyn Model<B>>> {
        let Self { vocabulary, hidden, layers, tied, embeddings } = self;
        let mut model = build.within("model");
        let embeddings = Embedding::new(&mut model, embeddings, vocabulary, hidden)?.scaled(embedding_factor);
        let blocks = (0..layers).map(|i| block(&mut model.within(&format!("layers.{i}")), i));
        let blocks = blocks.collect::<Result<_>>()?;
        let norm = norm(&mut model, "norm", hidden, epsilon)?;
        let head = embeddings.head(build, "lm_head", (vocabulary, hidden), tied)?;
        Ok(Box::new(Blocks { vocabulary_size: vocabulary, embeddings, blocks, norm, head, score_factor }))
    }

    /// Refuses sizes that no model has.
    pub(super) fn check(self) -> Result<()> {
        within("num_hidden_layers", self.layers, 1..=LAYERS)?;
        sizes(&[("vocab_size", self.vocabulary), ("hidden_size", self.hidden)])
    }
}

/// Refuses factors that are no numbers, or 0.
pub(super) fn factors(named: &[(&str, f32)]) -> Result<()> {
    match named.iter().find(|(_, factor)| !factor.is_normal()) {
        Some((name, factor)) => Err(Error::config(*name, factor, "a finite number other than 0")),
        None => Ok(()),
    }
}

/// What a memory's head is wide: the field's number, or with `auto` its share of the inner width.
pub(super) fn memory_head(field: &str, told: Option<&Value>, inner: usize, heads: usize) -> Result<usize> {
    let width = share("inner width of memories", inner, heads)?;
    match told {
        None => Ok(width),
        Some(told) if told == "auto" || told.as_u64() == Some(width as u64) => Ok(width),
        Some(told) => Err(Error::config(field, told, format!("{width}, a head's share of the inner width {inner}"))),
    }
}

/// Refuses sizes of zero, and those that no model has.
pub(super) fn sizes(named: &[(&str, usize)]) -> Result<()> {
    named.iter().try_for_each(|&(name, size)| within(name, size, 1..=SIZE))
}

/// How many value heads share a key head.
pub(super) fn sharing((keys, key_heads): (&str, usize), (values, value_heads): (&str, usize)) -> Result<usize> {
    if key_heads > 0 && value_heads > 0 && value_heads.is_multiple_of(key_heads) {
        return Ok(value_heads / key_heads);
    }
    Err(Error::config(values, value_heads, format!("a multiple of `{keys}`, {key_heads}")))
}

/// A part of a width for each of so many heads.
pub(super) fn share(name: &str, width: usize, heads: usize) -> Result<usize> {
    if heads > 0 && width > 0 && width.is_multiple_of(heads) {
        return Ok(width / heads);
    }
    Err(Error::config(name, width, format!("a multiple of the {heads} heads")))
}

/// Which blocks are attention, of `layer_types`, one a block, in which `rest` is what is none; where they are absent, those that
/// `untold` says.
pub(super) fn attention_layers(
    types: Option<&[String]>,
    rest: &str,
    layers: usize,
    untold: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let Some(types) = types else { return Ok((0..layers).map(untold).collect()) };
    if types.len() != layers {
        return Err(Error::config(
            "layer_types",
            format!("a list of {}", types.len()),
            format!("{layers}, one a layer"),
        ));
    }
    let kind = |found: &String| match found.as_str() {
        "full_attention" => Ok(true),
        other if other == rest => Ok(false),
        other => Err(Error::config("layer_types", format!("`{other}`"), format!("`full_attention` or `{rest}`"))),
    };
    types.iter().map(kind).collect()
}
