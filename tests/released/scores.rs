//! Scores, gradients, and going on token by token, against what the family's own code computes in 64 bits.

use crate::folder;
use hecate_conformance::{Array, error};
use hecate_core::Backend;
use hecate_models::{LanguageModel, Opened};
use safetensors::SafeTensors;
use std::fs;

/// 32 bits round each of some dozens of sums after one another.
pub(crate) const SCORES: f64 = 1e-5;
/// Gradients sum over 260 tokens, of either sign.
const GRADIENTS: f64 = 1e-4;
/// Bfloat16 has eight bits of what meets a matrix, through two or three blocks.
const IN_16_BITS: f64 = 2e-2;
/// Tokens of a text.
pub(crate) const TOKENS: usize = 130;
/// Heads of the model whose attention is gated.
const HEADS: usize = 4;
/// Different tokens.
const VOCABULARY: usize = 37;

/// What the family's own code computed, and the model as it is read here.
pub(crate) struct Case<B: Backend> {
    name: &'static str,
    expected: Vec<u8>,
    model: LanguageModel<B>,
}

impl<B: Backend> Case<B> {
    fn open(device: &B, name: &'static str) -> Self {
        let opened = Opened::open(device, &folder(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self::with(name, opened.model().expect("a model"))
    }

    /// Of a model that was read, from wherever.
    pub(crate) fn with(name: &'static str, model: LanguageModel<B>) -> Self {
        Self { name, expected: fs::read(folder(name).join("expected.safetensors")).expect("what is expected"), model }
    }

    /// An array of what is expected; none of another name.
    fn array(&self, name: &str) -> Option<Vec<f64>> {
        let file = SafeTensors::deserialize(&self.expected).expect("a whole file");
        let view = file.tensor(name).ok()?;
        let (elements, _) = view.data().as_chunks::<4>();
        Some(elements.iter().map(|x| f32::from_le_bytes(*x).into()).collect())
    }

    /// `from .. to` of the tokens of each text.
    fn tokens(&self, from: usize, to: usize) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.expected).expect("a whole file");
        let (ids, _) = file.tensor("ids").expect("tokens").data().as_chunks::<4>();
        let ids: Vec<u32> = ids.iter().map(|x| u32::from_le_bytes(*x)).collect();
        ids.chunks(TOKENS + 1).flat_map(|text| &text[from..to]).copied().collect()
    }

    /// Scores `[2, to − from, V]`.
    fn scores(&self, from: usize, to: usize) -> Vec<f64> {
        let all = self.array("logits").expect("logits");
        all.chunks(TOKENS * VOCABULARY).flat_map(|text| &text[from * VOCABULARY..to * VOCABULARY]).copied().collect()
    }

    /// How far scores of the first `length` tokens, read in calls that end at `ends`, are from what they should be.
    pub(crate) fn apart(&self, ends: &[usize]) -> f64 {
        let (mut cache, mut parts) = (self.model.cache(2).expect("a cache"), Vec::new());
        for &end in ends {
            let tokens = self.tokens(cache.position(), end);
            let scores = self.model.infer(&tokens, 2, &mut cache).expect("scores");
            parts.push(Array::download(&scores).expect("scores"));
        }
        error(&self.scores(0, cache.position()), &Array::join(&parts, 1).values)
    }

    /// The loss, and the gradient of every parameter, are what they should be.
    pub(crate) fn check_gradients(&self) {
        let (inputs, targets) = (self.tokens(0, TOKENS), self.tokens(1, TOKENS + 1));
        let (loss, gradients) = self.model.loss_and_gradients(&inputs, &targets, 2).expect("gradients");
        let apart = error(&self.array("loss").expect("a loss"), &[loss]);
        assert!(apart <= SCORES, "{}: the loss by {apart:.1e}", self.name);
        for (parameter, gradient) in self.model.parameters().iter().zip(gradients.iter()) {
            let found = Array::download(gradient.as_ref().expect("a gradient")).expect("a gradient").values;
            let apart = error(&self.gradient(&parameter.name), &found);
            assert!(apart <= GRADIENTS, "{}: {} by {apart:.1e}", self.name, parameter.name);
        }
    }

    /// The gradient that a parameter should have. Some files have parameters joined: `q ‖ k ‖ v`, or a head's queries and gates.
    fn gradient(&self, name: &str) -> Vec<f64> {
        let rows =
            |name: &str| self.model.parameters().iter().find(|p| p.name == name).map(|p| p.value.shape().count());
        let count = rows(name).expect("a parameter");
        if let Some(whole) = self.array(&format!("gradient.{name}")).filter(|whole| whole.len() == count) {
            return whole;
        }
        for (ours, theirs) in RENAMED.iter().filter(|(ours, _)| name.contains(ours)) {
            if let Some(whole) = self.array(&format!("gradient.{}", name.replacen(ours, theirs, 1))) {
                return whole;
            }
        }
        if let Some((layer, part)) = name.split_once(".shared_mlp.") {
            // The gate's rows, then those of the other map.
            let joined = self.array(&format!("gradient.{layer}.shared_mlp.input_linear.weight")).expect("a gradient");
            let first = if part.starts_with("gate_proj") { 0 } else { count };
            return joined[first..first + count].to_vec();
        }
        let whole = |name: String| self.array(&format!("gradient.{name}")).unwrap_or_else(|| panic!("no {name}"));
        if let Some((layer, part)) = name.split_once(".self_attn.") {
            let joined = whole(format!("{layer}.self_attn.q_proj.weight"));
            // Queries of a head, then its gates.
            let halves = joined.chunks(joined.len() / (2 * HEADS));
            let first = if part.starts_with("q_proj") { 0 } else { 1 };
            return halves.skip(first).step_by(2).flatten().copied().collect();
        }
        let (layer, part) = name.split_once(".linear_attn.").expect("a part of a memory");
        let (theirs, ours) = JOINED.iter().find(|(_, ours)| ours.contains(&part)).expect("a joined parameter");
        let before = ours.iter().take_while(|own| **own != part);
        let before: usize = before.map(|own| rows(&format!("{layer}.linear_attn.{own}")).expect("a parameter")).sum();
        whole(format!("{layer}.linear_attn.{theirs}"))[before..before + count].to_vec()
    }
}

/// Parts of names of parameters, and what transformers calls them.
const RENAMED: [(&str, &str); 11] = [
    ("model.norm", "backbone.norm_f"),
    ("model.", "backbone."),
    ("model.norm", "model.embedding_norm"),
    ("model.norm", "model.final_layernorm"),
    ("shared_mlp.down_proj", "shared_mlp.output_linear"),
    ("self_attn.q_norm", "self_attn.q_layernorm"),
    ("self_attn.k_norm", "self_attn.k_layernorm"),
    ("self_attn.o_proj", "self_attn.out_proj"),
    ("feed_forward.gate_proj", "feed_forward.w1"),
    ("feed_forward.up_proj", "feed_forward.w3"),
    ("feed_forward.down_proj", "feed_forward.w2"),
];

/// Names in files of transformers, and of the parameters that they are.
const JOINED: [(&str, &[&str]); 7] = [
    ("in_proj_qkv.weight", &["q_proj.weight", "k_proj.weight", "v_proj.weight"]),
    ("conv1d.weight", &["q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"]),
    ("in_proj_z.weight", &["g_proj.weight"]),
    ("in_proj_b.weight", &["b_proj.weight"]),
    ("in_proj_a.weight", &["a_proj.weight"]),
    ("norm.weight", &["o_norm.weight"]),
    ("out_proj.weight", &["o_proj.weight"]),
];

/// Texts shorter than a convolution, and around the chunks of 64 tokens that rules are computed in.
pub(crate) fn are_those_of_the_familys_own_code<B: Backend>(device: &B, models: &[&'static str]) {
    for case in models.iter().map(|&name| Case::open(device, name)) {
        for length in [1, 3, 63, 64, 65, TOKENS] {
            let apart = case.apart(&[length]);
            assert!(apart <= SCORES, "{}, {length} tokens: {apart:.1e}", case.name);
        }
    }
}

/// A prompt, then token by token; and calls of other lengths.
pub(crate) fn go_on_token_by_token<B: Backend>(device: &B, models: &[&'static str]) {
    for case in models.iter().map(|&name| Case::open(device, name)) {
        let one_by_one: Vec<usize> = (61..=TOKENS).collect();
        for ends in [&one_by_one[..], &[1, 2, 5, 64, TOKENS], &[63, 64, 65, 129]] {
            let apart = case.apart(ends);
            assert!(apart <= SCORES, "{}, {} calls: {apart:.1e}", case.name, ends.len());
        }
    }
}

/// The loss, and the gradient of every parameter.
pub(crate) fn have_the_gradients_of_the_familys_own_code<B: Backend>(device: &B, models: &[&'static str]) {
    for case in models.iter().map(|&name| Case::open(device, name)) {
        case.check_gradients();
    }
}

/// Matrices stored in 16 bits, as the files hold them, are nearly as good: only what meets them is rounded.
pub(crate) fn are_nearly_so_in_16_bits<B: Backend>(device: &B, models: &[&'static str]) {
    for case in models.iter().map(|&name| Case::open(device, name)) {
        let narrow = Case { model: case.model.stored_in_16_bits().expect("16 bits"), ..case };
        for ends in [&[TOKENS][..], &[60, 61, 62]] {
            let apart = narrow.apart(ends);
            assert!(apart <= IN_16_BITS, "{}: {apart:.1e}", narrow.name);
        }
    }
}
