//! Selective copying.

use super::Sequence;
use hecate_models::Random;

/// Tokens to copy, a blank, and a token that asks.
pub(super) const VOCABULARY: usize = 16;
/// What stands between tokens and after the question.
const BLANK: u32 = VOCABULARY as u32 - 2;
/// What asks for the tokens.
const COPY: u32 = VOCABULARY as u32 - 1;
/// Tokens to copy.
const TOKENS: usize = 16;
/// Tokens of a sequence.
const LENGTH: usize = 256;

/// Tokens with blanks before each, `COPY`, and as many blanks as there are tokens to give.
pub(super) fn draw(random: &mut Random) -> Sequence {
    let text: Vec<u32> = (0..TOKENS).map(|_| random.within(0..BLANK)).collect();
    // Each blank stands before one of the tokens.
    let mut blanks = [0; TOKENS];
    (0..LENGTH - 2 * TOKENS - 1).for_each(|_| blanks[random.within(0..TOKENS)] += 1);
    let mut tokens: Vec<u32> = Vec::with_capacity(LENGTH);
    for (&token, blanks) in text.iter().zip(blanks) {
        tokens.extend(vec![BLANK; blanks]);
        tokens.push(token);
    }
    tokens.push(COPY);
    let first = tokens.len();
    tokens.extend([BLANK; TOKENS]);
    Sequence { tokens, questions: text.into_iter().enumerate().map(|(i, token)| (first + i, token)).collect() }
}
