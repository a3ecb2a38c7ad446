//! Made-up tasks ask what they say they ask, and learning them learns from nothing else.

use super::fixtures::*;
use approx::assert_relative_eq;
use hecate_cpu::Cpu;
use hecate_models::{
    Error,
    optimizer::Constants,
    schedule::Schedule,
    tasks::{Parity, Purpose, Questions, Recall, TaskModel},
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
