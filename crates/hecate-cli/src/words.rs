//! Words that users may type: the same ones in every run of the tests.

use hecate::models::Random;

/// Number of words.
const COUNT: usize = 20_000;
/// What words are changed by: digits and signs of numbers, what parts flags and lists, control and wide characters.
const LETTERS: &str = "019-+.eExX:,= /_anif\0\n\u{e9}\u{ff11}\u{1f600}";

/// Tells `take` words that are known, some of them changed in up to three places.
pub(crate) fn each(known: &[&str], mut take: impl FnMut(&str)) {
    // One seed, so that a word that fails is found again.
    let mut random = Random::new(24);
    let letters: Vec<char> = LETTERS.chars().collect();
    let mut below = |count: usize| random.below(count).expect("more than none");
    for _ in 0..COUNT {
        let mut word: Vec<char> = known[below(known.len())].chars().collect();
        // A quarter of the words stays as it is, so that what is known is among them.
        for _ in 0..below(4) {
            let at = below(word.len() + 1);
            // After the last letter nothing is changed or removed.
            match below(3) {
                0 => word.insert(at, letters[below(letters.len())]),
                1 if at < word.len() => word[at] = letters[below(letters.len())],
                _ => drop(word.drain(at..word.len().min(at + 2))),
            }
        }
        take(&String::from_iter(word));
    }
}
