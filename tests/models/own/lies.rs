//! Layers that do not do what they say are refused, not believed.

use crate::column::{Column, device, is_missing};
use crate::configs;
use hecate_core::{Backend, Tensor, rules::Titans};
use hecate_models::{
    Architecture, Builder, LanguageModel, LayerCache, MemoryConfig, Model, Parameters, Result, Tape, Var,
    layers::{Context, Embedding, Linear, Memory, Mixer},
};
use serde::{Deserialize, Serialize};

/// What is wrong with a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Lie {
    /// Nothing.
    None,
    /// A mixer that it runs is not among those that it tells.
    Mixers,
    /// A mixer runs in the model's context, not in its part.
    Context,
    /// Scores of one axis too few.
    Rank,
    /// Scores of fewer tokens than it was given.
    Tokens,
    /// More tokens in the vocabulary than scores.
    Vocabulary,
    /// Two parameters of one name.
    Names,
    /// Groups of no token.
    Group,
}

#[derive(Debug)]
struct Layers {
    lie: Lie,
    embedding: Embedding,
    memory: Grouped,
    head: Linear,
}

/// A memory that says which groups it goes by.
#[derive(Debug)]
struct Grouped {
    memory: Memory<Titans>,
    group: usize,
}

impl<B: Backend> Mixer<B> for Grouped {
    fn forward(&self, tape: &Tape<'_, B>, x: &Var<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        self.memory.forward(tape, x, context)
    }

    fn cache(&self, device: &B, parameters: &Parameters<B>, batch: usize) -> Result<LayerCache<B>> {
        self.memory.cache(device, parameters, batch)
    }

    fn group(&self) -> usize {
        self.group
    }
}

impl<B: Backend> Architecture<B> for Lie {
    fn build(&self, build: &mut Builder<'_, B>) -> Result<Box<dyn Model<B>>> {
        let config = MemoryConfig { rule: Titans::default(), heads: 2, ..MemoryConfig::default() };
        let embedding = Embedding::new(build, "embedding", 11, 8)?;
        let memory = Memory::new(&mut build.within("memory"), &config, 8, 1e-6)?;
        if *self == Self::Names {
            Embedding::new(build, "embedding", 11, 8)?;
        }
        let memory = Grouped { memory, group: usize::from(*self != Self::Group) };
        let head = embedding.head(build, "head", (11, 8), true)?;
        Ok(Box::new(Layers { lie: *self, embedding, memory, head }))
    }
}

impl<B: Backend> Model<B> for Layers {
    fn vocabulary_size(&self) -> usize {
        if self.lie == Lie::Vocabulary { 12 } else { 11 }
    }

    fn mixers(&self) -> Vec<&dyn Mixer<B>> {
        if self.lie == Lie::Mixers { Vec::new() } else { vec![&self.memory] }
    }

    fn forward(&self, tape: &Tape<'_, B>, tokens: &Tensor<B>, context: &mut Context<'_, B>) -> Result<Var<B>> {
        let x = self.embedding.forward(tape, tokens)?;
        let read = match self.lie {
            Lie::Context => self.memory.forward(tape, &x, context)?,
            _ => self.memory.forward(tape, &x, &mut context.part(0))?,
        };
        let x = tape.add(&x, &read)?;
        let scores = self.head.forward(tape, &x)?;
        let [batch, length] = [0, 1].map(|axis| scores.axes()[axis]);
        match self.lie {
            Lie::Rank => tape.reshape(&scores, [batch * length, 11]),
            Lie::Tokens => tape.narrow(&scores, 1, 0, length - 1),
            _ => Ok(scores),
        }
    }
}

/// What is said of each call that such a model refuses: reading, a loss, its gradients.
fn told(lie: Lie) -> [Option<String>; 3] {
    let model = LanguageModel::<Column>::new(&device(), &lie, 1).expect("a model");
    let tokens = configs::tokens(9, 2);
    let mut cache = model.cache(1).expect("a cache");
    let told = |outcome: Result<()>| outcome.err().map(|error| error.to_string());
    [
        told(model.infer(&tokens[..8], 1, &mut cache).map(drop)),
        told(model.loss(&tokens[..8], &tokens[1..], 1).map(drop)),
        told(model.loss_and_gradients(&tokens[..8], &tokens[1..], 1).map(drop)),
    ]
}

#[test]
fn what_layers_say_is_checked() {
    if is_missing() {
        return;
    }
    assert_eq!(told(Lie::None), [None, None, None]);
    for (lie, found) in [(Lie::Mixers, "part of another"), (Lie::Context, "the whole model")] {
        let [read, loss, gradients] = told(lie);
        let read = read.expect("a memory that would forget");
        assert!(read.contains("mixers of the model") && read.contains(found), "{lie:?}: {read}");
        // Nothing is remembered for a loss.
        assert_eq!([loss, gradients], [None, None]);
    }
    for (lie, found) in [(Lie::Rank, "[8, 11]"), (Lie::Tokens, "[1, 7, 11]"), (Lie::Vocabulary, "[1, 8, 11]")] {
        for told in told(lie) {
            let told = told.expect("wrong scores");
            assert!(told.contains("forward") && told.contains(found), "{lie:?}: {told}");
        }
    }
    let told = LanguageModel::<Column>::new(&device(), &Lie::Names, 1).expect_err("one name").to_string();
    assert!(told.contains("embedding.weight") && told.contains("within"), "{told}");
}

/// A group of no token is one of a token.
#[test]
fn groups_of_no_token_are_read_on() {
    if is_missing() {
        return;
    }
    let model = LanguageModel::<Column>::new(&device(), &Lie::Group, 1).expect("a model");
    assert_eq!(model.group(), 1);
    let mut cache = model.cache(1).expect("a cache");
    for token in configs::tokens(3, 2) {
        model.infer(&[token], 1, &mut cache).expect("scores");
    }
}
