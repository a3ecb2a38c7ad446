//! The six tasks of Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), at their smallest setting.

mod compression;
mod context_recall;
mod fuzzy_recall;
mod memorisation;
mod noisy_recall;
mod selective_copying;

use super::{Purpose, Questions};
use hecate_models::{
    Random, Result,
    bounds::{SIZE, within},
};

/// First of the numbers by which random numbers of these tasks are told from all others.
const STREAM: u64 = u64::from_le_bytes(*b"MAD task");

/// A task; its rustdoc says what its sequences are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mad {
    /// 31 tokens of 15, then a token over and over: what were they, in order? The paper decodes them from one vector by a
    /// layer of its own. Here the model itself gives them back, which is easier: its memories go on.
    Compression,
    /// Recall of values by keys, each one to three tokens long; 7 tokens are of keys, 8 of values, one pads. Learned from
    /// are all tokens. Asked are values of keys that came before, keys of three tokens alone.
    FuzzyRecall,
    /// 64 pairs of a key and a value, of 8 each, a key always with its value: what follows a key that came before?
    /// Learned from are all tokens.
    ContextRecall,
    /// 127 keys and the values that go with them in every sequence: weights have to know them. After each key a token of
    /// its own asks.
    Memorisation,
    /// As [`Mad::ContextRecall`], a fifth of the pairs being two of 16 tokens of noise.
    NoisyRecall,
    /// 16 tokens of 14 among 223 blanks, then a token that asks for them, and a blank for each to be given in order.
    SelectiveCopying,
}

impl Mad {
    /// All, in the order of published tables.
    pub const ALL: [Self; 6] = [
        Self::Compression,
        Self::FuzzyRecall,
        Self::ContextRecall,
        Self::Memorisation,
        Self::NoisyRecall,
        Self::SelectiveCopying,
    ];

    /// Number of different tokens.
    pub fn vocabulary(self) -> usize {
        match self {
            Self::Compression => compression::VOCABULARY,
            Self::FuzzyRecall => fuzzy_recall::VOCABULARY,
            Self::ContextRecall => context_recall::VOCABULARY,
            Self::Memorisation => memorisation::VOCABULARY,
            Self::NoisyRecall => noisy_recall::VOCABULARY,
            Self::SelectiveCopying => selective_copying::VOCABULARY,
        }
    }

    /// How many sequences the paper learns from, again and again.
    pub fn known(self) -> usize {
        match self {
            Self::Memorisation => 256,
            _ => 12_800,
        }
    }

    /// `batch` new sequences.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no sequence or too many.
    pub fn draw(self, random: &mut Random, batch: usize, purpose: Purpose) -> Result<Questions> {
        gather(batch, || Ok(self.sequence(random, purpose)))
    }

    /// `batch` sequences to learn from, each one of the same `known`.
    ///
    /// # Errors
    /// [`Error::Config`](hecate_models::Error::Config) for no sequence, too many, or none that is known.
    pub fn draw_known(self, random: &mut Random, batch: usize, known: usize) -> Result<Questions> {
        within("known", known, 1..=SIZE)?;
        gather(batch, || {
            let which = random.below(known)? as u64;
            Ok(self.sequence(&mut Random::keyed([STREAM, self as u64, which, 0]), Purpose::Learning))
        })
    }

    /// One sequence.
    fn sequence(self, random: &mut Random, purpose: Purpose) -> Sequence {
        match self {
            Self::Compression => compression::draw(random),
            Self::FuzzyRecall => fuzzy_recall::draw(random, purpose),
            Self::ContextRecall => context_recall::draw(random, purpose),
            Self::Memorisation => memorisation::draw(random),
            Self::NoisyRecall => noisy_recall::draw(random, purpose),
            Self::SelectiveCopying => selective_copying::draw(random),
        }
    }
}

/// A sequence with its questions.
struct Sequence {
    tokens: Vec<u32>,
    /// Places after which there are questions, and the answers.
    questions: Vec<(usize, u32)>,
}

impl Sequence {
    /// A text whose last token is not read: its tokens are predicted from those before. To learn from are all; measured are
    /// those in `places`, which can be known.
    fn predicting(mut text: Vec<u32>, places: Vec<usize>, purpose: Purpose) -> Self {
        let places = if purpose == Purpose::Learning { (1..text.len()).collect() } else { places };
        let questions = places.into_iter().map(|place| (place - 1, text[place])).collect();
        text.pop();
        Self { tokens: text, questions }
    }
}

/// `batch` sequences of one length.
fn gather(batch: usize, mut draw: impl FnMut() -> Result<Sequence>) -> Result<Questions> {
    // The longest has 256 tokens.
    within("batch", batch, 1..=SIZE / 256)?;
    let mut all = Questions { batch, inputs: Vec::new(), rows: Vec::new(), answers: Vec::new() };
    for _ in 0..batch {
        let (start, Sequence { tokens, questions }) = (all.inputs.len(), draw()?);
        all.inputs.extend(tokens);
        all.rows.extend(questions.iter().map(|(place, _)| (start + place) as u32));
        all.answers.extend(questions.iter().map(|(_, answer)| answer));
    }
    Ok(all)
}
