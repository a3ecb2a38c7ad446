//! Made-up tasks ask what they say they ask, and learning them learns from nothing else.

use super::fixtures::*;
use approx::assert_relative_eq;
use hecate_cpu::Cpu;
use hecate_models::Error;
use hecate_train::{
    optimizer::Constants,
    schedule::Schedule,
    tasks::{Filler, Needle, Parity, Purpose, Questions, Recall, SpreadRecall, SymmetricGroup, TaskModel},
};

#[test]
fn recall_asks_for_what_was_written_last() {
    for writes in [1, 3] {
        let (task, pairs) = (Recall::new(20, 7, writes).unwrap(), 6);
        let Questions { batch, inputs, rows, answers } = task.draw(&mut Purpose::Learning.random(3), 5, pairs).unwrap();
        let length = task.length(pairs);
        assert_eq!((batch, inputs.len(), rows.len(), answers.len()), (5, 5 * length, 5 * pairs, 5 * pairs));
        let mut asked: Vec<Vec<u32>> = vec![Vec::new(); batch];
        for (&row, &answer) in rows.iter().zip(&answers) {
            let (sequence, place) = (row as usize / length, row as usize % length);
            let tokens = &inputs[sequence * length..][..length];
            let written: Vec<u32> =
                tokens[..2 * writes * pairs].chunks(2).filter(|pair| pair[0] == tokens[place]).map(|p| p[1]).collect();
            assert_eq!((written.len(), written.last()), (writes, Some(&answer)));
            assert!(tokens[place] < 20 && (20..27).contains(&answer));
            asked[sequence].push(tokens[place]);
        }
        for mut keys in asked {
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), pairs, "every key once");
        }
    }
}

/// Each question by itself: its key is looked up among the pairs that the sequence begins with.
#[test]
fn spread_recall_asks_for_each_key_once() {
    let (vocabulary, batch, length, pairs) = (40, 6, 31, 7);
    for filler in [Filler::Random, Filler::Zeros] {
        let task = SpreadRecall::new(vocabulary, filler).unwrap();
        let found = task.draw(&mut Purpose::Learning.random(3), batch, length, pairs).unwrap();
        assert_eq!((found.inputs.len(), found.rows.len(), found.answers.len()), (186, 42, 42));
        for (i, tokens) in found.inputs.chunks(length).enumerate() {
            let (written, rest) = tokens.split_at(2 * pairs);
            let (keys, values): (Vec<u32>, Vec<u32>) = written.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
            assert!(
                keys.iter().all(|key| (1..20).contains(key)) && values.iter().all(|value| (20..40).contains(value))
            );
            let asked: Vec<usize> =
                found.rows[i * pairs..][..pairs].iter().map(|&row| row as usize - i * length).collect();
            assert!(
                asked.is_sorted_by(|a, b| a < b) && asked.iter().all(|row| *row >= 14 && row % 2 == 0),
                "{asked:?}"
            );
            for (row, answer) in asked.iter().zip(&found.answers[i * pairs..]) {
                let pair = keys.iter().position(|key| *key == tokens[*row]).unwrap();
                assert_eq!(values[pair], *answer);
            }
            for mut all in [keys, values, asked.iter().map(|row| tokens[*row]).collect()] {
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), pairs, "no key and no value twice");
            }
            let filled = rest.iter().enumerate().filter(|(place, _)| !asked.contains(&(14 + place)));
            let zeros = filled.filter(|(_, token)| **token == 0).count();
            assert_eq!(zeros == length - 3 * pairs, filler == Filler::Zeros, "{rest:?}");
        }
    }
}

/// One query among eight places: the share of each follows `(gap + 1)^-0.99`.
#[test]
fn gaps_follow_the_power_law() {
    let (count, length) = (20_000, 18);
    let task = SpreadRecall::new(8, Filler::Zeros).unwrap();
    let found = task.draw(&mut Purpose::Learning.random(0), count, length, 1).unwrap();
    let weights: Vec<f64> = (1..=8).map(|place| f64::from(place).powf(-0.99)).collect();
    for (gap, weight) in weights.iter().enumerate() {
        let expected = weight / weights.iter().sum::<f64>();
        let times = found.rows.iter().filter(|&&row| row as usize % length == 2 + 2 * gap).count();
        // Four deviations of a share.
        let deviation = (expected * (1.0 - expected) / count as f64).sqrt();
        let share = times as f64 / count as f64;
        assert!((share - expected).abs() < 4.0 * deviation, "gap {gap}: {share}, expected {expected}");
    }
}

#[test]
fn a_needle_is_the_only_pair() {
    let (task, length, batch) = (Needle::new(3, 4, 5).unwrap(), 9, 300);
    let Questions { inputs, rows, answers, .. } = task.draw(&mut Purpose::Testing.random(1), batch, length).unwrap();
    let mut places = [0; 7];
    for (i, text) in inputs.chunks(length).enumerate() {
        let held: Vec<usize> = (0..length).filter(|&place| text[place] < 7).collect();
        assert!(held.len() == 3 && held[1] == held[0] + 1 && held[2] == length - 1, "{text:?}");
        assert!(text[held[0]] < 3 && text[held[0]] == text[length - 1], "{text:?}");
        assert_eq!((rows[i] as usize, answers[i]), ((i + 1) * length - 1, text[held[1]]));
        assert!((3..7).contains(&answers[i]) && text.iter().all(|&token| token < 12));
        places[held[0]] += 1;
    }
    assert!(places.iter().all(|times| *times > 15), "anywhere, {places:?}");
}

/// Things are moved one token at a time, and the answer is the token that moves them there at once.
#[test]
fn words_are_followed_by_their_product() {
    for (degree, order) in [(2, 2), (3, 6), (5, 120)] {
        let group = SymmetricGroup::new(degree).unwrap();
        assert_eq!(group.vocabulary(), order);
        let mut elements: Vec<Vec<usize>> = (0..order as u32).map(|x| group.element(x).unwrap().to_vec()).collect();
        elements.iter_mut().for_each(|element| assert!((0..degree).all(|thing| element.contains(&thing))));
        elements.dedup();
        assert_eq!((elements.len(), group.element(order as u32)), (order, None));
        let found = group.draw(&mut Purpose::Testing.random(2), 3, 50).unwrap();
        assert_eq!(found.rows, (0..150).collect::<Vec<_>>());
        for (tokens, answers) in found.inputs.chunks(50).zip(found.answers.chunks(50)) {
            let mut things: Vec<usize> = (0..degree).collect();
            for (&token, &answer) in tokens.iter().zip(answers) {
                things = elements[token as usize].iter().map(|&place| things[place]).collect();
                assert_eq!(things, elements[answer as usize]);
            }
        }
    }
}

/// A state that is carried is the state of the whole, wherever the sequences are cut.
#[test]
fn answers_by_segments_are_those_of_the_whole() {
    for mixer in ["delta", "titans"] {
        let schedule = Schedule { peak: 0.01, floor: 0.001, warmup: 3, steps: 40 };
        let mut model = TaskModel::new(&Cpu::new(), &config(mixer), schedule, Constants::default(), 0).unwrap();
        let random = &mut Purpose::Learning.random(0);
        for _ in 0..40 {
            model.learn(&Parity.draw(random, 8, 4).unwrap()).unwrap();
        }
        let questions = Parity.draw(random, 3, 41).unwrap();
        let whole = model.right(&questions).unwrap();
        assert!(whole.contains(&true) && whole.contains(&false), "{whole:?}");
        for segment in [1, 7, 41, 100] {
            assert_eq!(model.right_by_segments(&questions, segment).unwrap(), whole, "{mixer}, {segment}");
        }
        // One question, in the last segment of the second sequence.
        let one = Questions { rows: vec![81], answers: vec![questions.answers[81]], ..questions.clone() };
        assert_eq!(model.right_by_segments(&one, 9).unwrap(), [whole[81]]);
        let refused = |questions: &Questions, segment, told: &str| {
            let error = model.right_by_segments(questions, segment).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        };
        refused(&questions, 0, "segment");
        refused(&Questions { batch: 2, ..questions.clone() }, 9, "equally many");
        refused(&Questions { batch: 0, ..questions.clone() }, 9, "batch");
        refused(&Questions { rows: vec![123], ..one.clone() }, 9, "under 123");
        refused(&Questions { rows: vec![1, 2], ..one }, 9, "one a row");
    }
}

#[test]
fn parity_counts_ones() {
    let Questions { inputs, rows, answers, .. } = Parity.draw(&mut Purpose::Testing.random(0), 4, 9).unwrap();
    assert_eq!(rows, (0..36).collect::<Vec<_>>());
    for (row, &answer) in answers.iter().enumerate() {
        assert_eq!(inputs[row / 9 * 9..=row].iter().sum::<u32>() % 2, answer);
    }
    assert!(answers.contains(&0) && answers.contains(&1));
}

#[test]
fn questions_differ_by_purpose_and_seed_alone() {
    let draw = |purpose: Purpose, seed| Parity.draw(&mut purpose.random(seed), 2, 40).unwrap();
    assert_eq!(draw(Purpose::Tuning, 1), draw(Purpose::Tuning, 1));
    assert_ne!(draw(Purpose::Tuning, 1), draw(Purpose::Tuning, 2));
    assert_ne!(draw(Purpose::Tuning, 1), draw(Purpose::Testing, 1));
}

#[test]
fn senseless_tasks_are_refused() {
    let random = &mut Purpose::Learning.random(0);
    let refused = |result: hecate_models::Result<()>| assert!(matches!(result, Err(Error::Config { .. })));
    refused(Recall::new(1, 5, 1).map(drop));
    refused(Recall::new(5, 5, 0).map(drop));
    refused(Recall::new(usize::MAX, 5, 1).map(drop));
    refused(Recall::new(5, 5, 1).unwrap().draw(random, 1, 6).map(drop));
    refused(Recall::new(5, 5, 1).unwrap().draw(random, usize::MAX, 5).map(drop));
    refused(SpreadRecall::new(3, Filler::Zeros).map(drop));
    refused(SpreadRecall::new(8, Filler::Zeros).unwrap().draw(random, 1, 100, 4).map(drop));
    refused(SpreadRecall::new(8, Filler::Zeros).unwrap().draw(random, 1, 11, 3).map(drop));
    refused(SpreadRecall::new(8, Filler::Zeros).unwrap().draw(random, 0, 12, 3).map(drop));
    refused(Needle::new(1, 1, 1).map(drop));
    refused(Needle::new(1, 2, usize::MAX).map(drop));
    refused(Needle::new(1, 2, 1).unwrap().draw(random, 1, 2).map(drop));
    refused(SymmetricGroup::new(7).map(drop));
    refused(SymmetricGroup::new(3).unwrap().draw(random, usize::MAX, 2).map(drop));
    refused(Parity.draw(random, 0, 5).map(drop));
    refused(Parity.draw(random, 1, 0).map(drop));
}

#[test]
fn questions_everywhere_are_the_loss_of_a_text() {
    let (model, text) = (model("titans"), corpus().train.tokens.to_vec().unwrap());
    let (inputs, targets) = (&text[..32], &text[1..33]);
    let (loss, gradients) = model.loss_and_gradients(inputs, targets, 2).unwrap();
    let rows: Vec<u32> = (0..32).collect();
    let (same, others) = model.answer_loss_and_gradients(inputs, 2, &rows, targets).unwrap();
    assert_relative_eq!(loss, same, max_relative = 1e-6);
    for (a, b) in gradients.iter().flatten().zip(others.iter().flatten()) {
        for (a, b) in a.to_f32().unwrap().into_iter().zip(b.to_f32().unwrap()) {
            assert_relative_eq!(a, b, max_relative = 1e-4, epsilon = 1e-7);
        }
    }
    // Two questions: the mean of two losses, in any order.
    let one = |row: u32| model.answer_loss_and_gradients(inputs, 2, &[row], &targets[row as usize..][..1]).unwrap().0;
    let two = model.answer_loss_and_gradients(inputs, 2, &[20, 5], &[targets[20], targets[5]]).unwrap().0;
    assert_relative_eq!(two, (one(5) + one(20)) / 2.0, max_relative = 1e-6);
    assert!(matches!(model.answer_scores(inputs, 2, &[32]), Err(Error::Config { .. })));
    assert!(matches!(model.answer_loss_and_gradients(inputs, 2, &[], &[]), Err(Error::Config { .. })));
}

#[test]
fn a_task_model_learns() {
    let schedule = Schedule { peak: 0.01, floor: 0.001, warmup: 3, steps: 60 };
    let mut model = TaskModel::new(&Cpu::new(), &config("delta"), schedule, Constants::default(), 0).unwrap();
    // The first bit is its own parity.
    let random = &mut Purpose::Learning.random(0);
    for _ in 0..60 {
        model.learn(&Parity.draw(random, 16, 1).unwrap()).unwrap();
    }
    let right = model.right(&Parity.draw(&mut Purpose::Testing.random(0), 50, 1).unwrap()).unwrap();
    assert!(right.len() == 50 && right.iter().all(|right| *right), "{right:?}");
}
