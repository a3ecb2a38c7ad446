//! MAD's tasks: their answers follow from what their sequences show, by the shortest way to find them.

use hecate_models::Error;
use hecate_train::tasks::{Mad, Purpose, Questions};
use std::collections::{HashMap, HashSet};

/// Sequences of a draw; enough that everything happens.
const BATCH: usize = 60;

/// Each sequence with its questions: the place after which it is asked, and the answer.
fn drawn(task: Mad, purpose: Purpose) -> Vec<(Vec<u32>, Vec<(usize, u32)>)> {
    let found = task.draw(&mut purpose.random(4), BATCH, purpose).unwrap();
    let Questions { batch, inputs, rows, answers } = found;
    assert!(inputs.iter().chain(&answers).all(|token| (*token as usize) < task.vocabulary()));
    let length = inputs.len() / batch;
    let of = |i: usize| rows.iter().zip(&answers).filter(move |(row, _)| **row as usize / length == i);
    let questions = |i: usize| of(i).map(|(&row, &answer)| (row as usize % length, answer)).collect();
    inputs.chunks(length).enumerate().map(|(i, tokens)| (tokens.to_vec(), questions(i))).collect()
}

#[test]
fn compression_gives_the_tokens_back() {
    for (tokens, questions) in drawn(Mad::Compression, Purpose::Testing) {
        assert_eq!(tokens.len(), 62);
        assert!(tokens[..31].iter().all(|token| *token < 15) && tokens[31..].iter().all(|token| *token == 15));
        let given: Vec<(usize, u32)> = (31..62).zip(tokens).collect();
        assert_eq!(questions, given);
    }
}

/// Pairs of two tokens: a question is where a key has come before, and the last key always has.
#[test]
fn context_recall_asks_for_keys_that_came_before() {
    for task in [Mad::ContextRecall, Mad::NoisyRecall] {
        let mut noise = 0;
        for (tokens, questions) in drawn(task, Purpose::Testing) {
            assert_eq!(tokens.len(), 127);
            let (mut values, mut expected) = (HashMap::new(), Vec::new());
            for (pair, tokens) in tokens.chunks(2).enumerate() {
                if tokens[0] >= 16 {
                    assert!(tokens[1] >= 16);
                    noise += 1;
                    continue;
                }
                assert!(tokens[0] < 8);
                match values.get(&tokens[0]) {
                    Some(&value) => expected.push((2 * pair, value)),
                    None => drop(values.insert(tokens[0], tokens[1])),
                }
                // The last value is only asked for.
                let value = tokens.get(1).copied().unwrap_or(values[&tokens[0]]);
                assert!((8..16).contains(&value) && value == values[&tokens[0]]);
            }
            assert_eq!((questions.last().map(|x| x.0), &questions), (Some(126), &expected));
        }
        let share = f64::from(noise) / (63 * BATCH) as f64;
        let expected = if task == Mad::NoisyRecall { 0.2 } else { 0.0 };
        assert!((share - expected).abs() < 0.03, "{share} of pairs are noise");
    }
}

/// Runs of key tokens and of value tokens, in turns.
#[test]
fn fuzzy_recall_asks_for_motifs_that_came_before() {
    let mut sizes = HashSet::new();
    for (mut tokens, questions) in drawn(Mad::FuzzyRecall, Purpose::Testing) {
        assert_eq!(tokens.len(), 128);
        // The last token is only an answer.
        tokens.push(questions.last().unwrap().1);
        let start = tokens.iter().position(|token| *token != 15).unwrap();
        let is_key = |token: &u32| *token < 7;
        let runs: Vec<&[u32]> = tokens[start..].chunk_by(|a, b| is_key(a) == is_key(b)).collect();
        let (mut place, mut values, mut expected) = (start, HashMap::new(), Vec::new());
        for pair in runs.chunks(2) {
            let (key, value) = (pair[0], pair[1]);
            assert_eq!(key.len(), 3);
            sizes.insert(value.len());
            place += key.len();
            if values.contains_key(key) {
                expected.extend(value.iter().enumerate().map(|(i, &token)| (place + i - 1, token)));
            }
            assert_eq!(*values.entry(key).or_insert(value), value);
            place += value.len();
        }
        let last = runs[runs.len() - 1].len();
        assert!(
            questions.len() >= last && questions[questions.len() - last].0 == 128 - last,
            "the last value is asked for"
        );
        assert_eq!(questions, expected);
    }
    assert_eq!(sizes, HashSet::from([1, 2, 3]));
}

/// All tokens are learned from, and keys of every size.
#[test]
fn recall_is_learned_from_all_tokens() {
    for task in [Mad::ContextRecall, Mad::NoisyRecall, Mad::FuzzyRecall] {
        for (tokens, questions) in drawn(task, Purpose::Learning) {
            assert_eq!(questions.iter().map(|x| x.0).collect::<Vec<_>>(), (0..tokens.len()).collect::<Vec<_>>());
            assert!(questions.iter().zip(&tokens[1..]).all(|((_, answer), next)| answer == next));
        }
    }
    let learned = drawn(Mad::FuzzyRecall, Purpose::Learning);
    let runs = learned.iter().flat_map(|(tokens, _)| tokens.chunk_by(|a, b| (*a < 7) == (*b < 7)));
    let keys: HashSet<usize> = runs.filter(|run| run[0] < 7).map(<[u32]>::len).collect();
    assert_eq!(keys, HashSet::from([1, 2, 3]));
}

#[test]
fn memorised_values_are_always_the_same() {
    let mut values = HashMap::new();
    for purpose in [Purpose::Learning, Purpose::Tuning, Purpose::Testing] {
        for (tokens, questions) in drawn(Mad::Memorisation, purpose) {
            assert_eq!((tokens.len(), questions.len()), (32, 16));
            for (place, answer) in questions {
                assert_eq!(tokens[place], 255);
                assert!(tokens[place - 1] < 127 && (127..255).contains(&answer));
                assert_eq!(*values.entry(tokens[place - 1]).or_insert(answer), answer);
            }
        }
    }
    assert_eq!((values.len(), values.values().collect::<HashSet<_>>().len()), (127, 127));
}

#[test]
fn copying_leaves_blanks_out() {
    let mut places = HashSet::new();
    for (tokens, questions) in drawn(Mad::SelectiveCopying, Purpose::Testing) {
        assert_eq!((tokens.len(), tokens[239]), (256, 15));
        assert!(tokens[240..].iter().all(|token| *token == 14));
        let shown: Vec<u32> = tokens[..239].iter().copied().filter(|token| *token != 14).collect();
        let given: Vec<(usize, u32)> = (240..256).zip(shown).collect();
        assert_eq!((questions.len(), questions), (16, given));
        places.extend((0..239).filter(|place| tokens[*place] != 14));
    }
    assert!(places.len() > 200, "tokens anywhere, {}", places.len());
}

/// The paper learns from one set of sequences, over and over.
#[test]
fn known_sequences_come_again() {
    for task in Mad::ALL {
        let random = &mut Purpose::Learning.random(9);
        let found = task.draw_known(random, BATCH, 5).unwrap();
        let length = found.inputs.len() / BATCH;
        assert_eq!(found.inputs.chunks(length).collect::<HashSet<_>>().len(), 5, "{task:?}");
        let others = task.draw(random, BATCH, Purpose::Learning).unwrap();
        assert!(others.inputs.chunks(length).collect::<HashSet<_>>().len() > 50, "{task:?}");
        assert!(matches!(task.draw_known(random, 1, 0), Err(Error::Config { .. })));
        assert!(matches!(task.draw(random, 0, Purpose::Learning), Err(Error::Config { .. })));
    }
}
