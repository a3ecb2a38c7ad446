//! Models of one's own layers learn, measure and continue as Hecate's own do, and what they get wrong is said.

mod lies;

use crate::column::{Column, device, is_missing};
use crate::configs;
use hecate_conformance::{Array, error};
use hecate_core::{Backend, Tensor, rules::*};
use hecate_models::{
    Architecture, Builder, Config, Dropout, Init, LanguageModel, MixerConfig, Model, Result, RuleConfig, Tape, Var,
    Vocabulary,
    generate::{generate, generate_from},
    layers::{Block, Context, Embedding, Linear, Mixer, RmsNorm},
    sampling::{Sampler, Sampling},
    text::Stream,
};
use hecate_train::evaluate::{SEGMENT, evaluate, evaluate_and_monitor};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// Both ways sum in another order.
const LIMIT: f64 = 1e-5;

/// Who makes scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Scores {
    /// The model's head, by pieces.
    Head,
    /// The model's head, which has a bias.
    BiasedHead,
    /// The forward itself.
    Forward,
    /// The forward itself, with a bias.
    BiasedForward,
}

/// Blocks of a configuration, put together from public layers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Own {
    pub(crate) blocks: Config,
    pub(crate) scores: Scores,
}

#[derive(Debug)]
struct Layers<B: Backend> {
    own: Own,
    embedding: Embedding,
    blocks: Vec<Block<B>>,
    norm: RmsNorm,
    head: Linear,
}

impl<B: Backend> Architecture<B> for Own {
    fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let (vocabulary, hidden) = (self.blocks.vocabulary_size, self.blocks.hidden_size);
        let mut model = build.within("model");
        let embedding = Embedding::new(&mut model, "embeddings", vocabulary, hidden)?;
        let mut blocks = Vec::new();
        for (i, layer) in self.blocks.layers.iter().enumerate() {
            blocks.push(Block::new(&mut model.within(&format!("layers.{i}")), &self.blocks, layer)?);
        }
        let norm = RmsNorm::new(&mut model, "norm", hidden, self.blocks.norm_eps)?;
        let head = match self.scores {
            Scores::Head | Scores::Forward => embedding.head(build, "lm_head", (vocabulary, hidden), true)?,
            _ => Linear::with_bias(build, "lm_head", hidden, vocabulary, Init::Normal)?,
        };
        Ok(Box::new(Layers { own: self.clone(), embedding, blocks, norm, head }))
    }

    fn layers(&self) -> usize {
        self.blocks.layers.len()
    }

    fn initializer_range(&self) -> f32 {
        self.blocks.initializer_range
    }

    fn dropout(&self) -> Dropout {
        self.blocks.dropout()
    }
}

impl<B: Backend> Model<B> for Layers<B> {
    fn vocabulary_size(&self) -> usize {
        self.own.blocks.vocabulary_size
    }

    fn mixers(&self) -> Vec<&dyn Mixer<B>> {
        self.blocks.iter().map(Block::mixer).collect()
    }

    fn forward(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let mut x = self.embedding.forward(tape, tokens)?;
        for (i, block) in self.blocks.iter().enumerate() {
            x = block.forward(tape, &x, &mut context.part(i))?;
        }
        let x = self.norm.forward(tape, &x)?;
        if Model::<B>::head(self).is_some() { Ok(x) } else { self.head.forward(tape, &x) }
    }

    fn head(&self) -> Option<Linear> {
        matches!(self.own.scores, Scores::Head | Scores::BiasedHead).then_some(self.head)
    }
}

/// A memory, attention and a memory; the same as Hecate's blocks and as own layers.
fn blocks() -> LanguageModel<Column> {
    LanguageModel::new(&device(), &configs::mixed(), 11).expect("a model")
}

fn own(blocks: Config, scores: Scores) -> LanguageModel<Column> {
    LanguageModel::new(&device(), &Own { blocks, scores }, 11).expect("a model of own layers")
}

fn values(x: &Tensor<Column>) -> Vec<f64> {
    Array::download(x).expect("an array").values
}

/// Scores of tokens that are read in calls that end at `ends`.
fn read(model: &LanguageModel<Column>, tokens: &[u32], ends: &[usize]) -> Vec<f64> {
    let mut cache = model.cache(1).expect("a cache");
    let mut call = |&end: &usize| values(&model.infer(&tokens[cache.position()..end], 1, &mut cache).expect("scores"));
    ends.iter().flat_map(&mut call).collect()
}

/// The mean loss, and what it says of each parameter that has a gradient.
fn slopes(model: &LanguageModel<Column>) -> (f64, Vec<(String, Vec<f64>)>) {
    // Other tokens than elsewhere: of those a gate's gradient is a small rest of large terms, whose rounding passes the limit.
    let (inputs, targets) = (configs::tokens(24, 17), configs::tokens(24, 18));
    let (loss, gradients) = model.loss_and_gradients(&inputs, &targets, 2).expect("gradients");
    let named = model.parameters().iter().zip(gradients.iter());
    (loss, named.filter_map(|(p, gradient)| Some((p.name.clone(), values(gradient.as_ref()?)))).collect())
}

fn assert_slopes(what: &str, a: &LanguageModel<Column>, b: &LanguageModel<Column>) {
    let [(loss, a), (other, b)] = [slopes(a), slopes(b)];
    assert!((loss - other).abs() <= LIMIT * loss, "{what}: losses {loss} and {other}");
    assert_eq!(a.len(), b.len(), "{what}");
    for ((name, a), (same, b)) in a.iter().zip(&b) {
        let off = error(a, b);
        assert!(name == same && off <= LIMIT, "{what}: {name}, {same}: {off:.1e}");
    }
}

#[test]
fn own_layers_are_the_same_model() {
    if is_missing() {
        return;
    }
    let (blocks, tokens) = (blocks(), configs::tokens(24, 3));
    for scores in [Scores::Head, Scores::Forward] {
        let own = own(configs::mixed(), scores);
        for (a, b) in blocks.parameters().iter().zip(own.parameters().iter()) {
            assert_eq!((&a.name, values(&a.value)), (&b.name, values(&b.value)), "{scores:?}");
        }
        assert_slopes(&format!("{scores:?}"), &own, &blocks);
        let whole = read(&blocks, &tokens, &[24]);
        for ends in [&[24][..], &[1, 2, 9, 24]] {
            let off = error(&read(&own, &tokens, ends), &whole);
            assert!(off <= LIMIT, "{scores:?} to {ends:?}: {off:.1e}");
        }
        let rows = [3, 0, 23];
        let answers = |model: &LanguageModel<Column>| values(&model.answer_scores(&tokens, 2, &rows).expect("answers"));
        let off = error(&answers(&own), &answers(&blocks));
        assert!(off <= LIMIT, "{scores:?}: answers {off:.1e}");
    }
}

/// A head's bias is no part of its product.
#[test]
fn the_bias_of_a_head_counts() {
    if is_missing() {
        return;
    }
    let [mut head, mut forward] = [Scores::BiasedHead, Scores::BiasedForward].map(|x| own(configs::mixed(), x));
    for model in [&mut head, &mut forward] {
        let bias = model.parameters_mut().iter_mut().find(|p| p.name == "lm_head.bias").expect("a bias");
        let values = (0..11).map(|i| 0.3 * i as f32 - 1.0).collect();
        bias.value = Tensor::from_f32(&device(), [11], values).expect("a bias");
    }
    assert_slopes("bias", &head, &forward);
    let losses = [&head, &forward].map(|model| {
        let (inputs, targets) = (configs::tokens(24, 7), configs::tokens(24, 8));
        let mut cache = model.cache(2).expect("a cache");
        let scores = values(&model.infer(&inputs, 2, &mut cache).expect("scores"));
        let surprise =
            |(row, &target): (&[f64], &u32)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[target as usize];
        let mean = scores.chunks(11).zip(&targets).map(surprise).sum::<f64>() / 24.0;
        let loss = model.loss(&inputs, &targets, 2).expect("a loss");
        assert!((loss - mean).abs() <= LIMIT * mean, "loss {loss}, from scores {mean}");
        mean
    });
    assert!((losses[0] - losses[1]).abs() <= LIMIT);
}

/// The likeliest tokens after a prompt.
fn continued(model: &LanguageModel<Column>, prompt: &[u32]) -> Vec<u32> {
    generate(model, prompt, greedy()).expect("a text").take(20).collect::<Result<_>>().expect("tokens")
}

fn greedy() -> Sampler {
    Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }).expect("a sampler")
}

#[test]
fn own_layers_continue_a_text() {
    if is_missing() {
        return;
    }
    let prompt = configs::tokens(13, 5);
    for (what, config) in [("mixed", configs::mixed()), configs::frozen(4).swap_remove(1)] {
        let blocks = LanguageModel::new(&device(), &config, 11).expect("a model");
        let expected = continued(&blocks, &prompt);
        for scores in [Scores::Head, Scores::Forward] {
            let own = own(config.clone(), scores);
            assert_eq!(continued(&own, &prompt), expected, "{what}, {scores:?}");
            // What was read before is not read again: calls start at whole groups.
            let mut cache = own.cache(1).expect("a cache");
            own.infer(&prompt[..8], 1, &mut cache).expect("scores");
            let text = generate_from(&own, cache, &prompt[8..], greedy()).expect("a text");
            assert_eq!(text.take(20).collect::<Result<Vec<_>>>().expect("tokens"), expected, "{what}, {scores:?}");
        }
    }
}

#[test]
fn own_layers_are_measured() {
    if is_missing() {
        return;
    }
    // Bytes under 11, as many tokens as the models have.
    let text: String = configs::tokens(700, 9).iter().map(|&token| char::from(token as u8)).collect();
    let stream = Stream::encode(&Vocabulary::Bytes, &text).expect("a text");
    let go_on = |_| ControlFlow::Continue(());
    let expected = evaluate(&blocks(), &stream, SEGMENT, go_on).expect("a score");
    for scores in [Scores::Head, Scores::Forward] {
        let own = own(configs::mixed(), scores);
        let (found, monitors) = evaluate_and_monitor(&own, &stream, SEGMENT, go_on).expect("a score");
        assert!((found.nats - expected.nats).abs() <= LIMIT * expected.nats, "{found:?}, {expected:?}");
        assert_eq!((found.tokens, found.bytes), (expected.tokens, expected.bytes));
        assert!(monitors.is_empty());
    }
}

/// What is not a block of Hecate: one mixer that is the model's only one, and a rule by its type.
#[test]
fn a_configuration_is_asked_for_by_its_type() {
    if is_missing() {
        return;
    }
    let rule = RuleConfig::Titans(Titans::default());
    let config = configs::config([MixerConfig::Memory(configs::memory(rule))]);
    let own = own(config.clone(), Scores::Head);
    assert_eq!(own.config::<Own>().expect("its own").blocks, config);
    let told = own.config::<Config>().expect_err("another type").to_string();
    assert!(told.contains("configuration") && told.contains("Config"), "{told}");
    assert_eq!((own.layers(), own.vocabulary_size()), (1, 11));
}
