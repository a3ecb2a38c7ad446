//! A stopped run, resumed, ends with the same bytes as one that was not stopped.
//!
//! The end is compared byte by byte: weights, the best weights, and a record with each step once.

use super::harness::{Outcome, Workspace};
use std::{
    fs,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

/// So many that a machine several times faster is still stopped on its way.
const STEPS: u64 = 400;
/// Checkpoints every fourth step, so that a kill often meets the writing of one.
const FLAGS: [&str; 8] = ["--steps", "400", "--save-every", "4", "--eval-every", "100", "--accumulate", "2"];

/// The last weights, and the best.
fn weights(workspace: &Workspace) -> [Vec<u8>; 2] {
    ["model.safetensors", "best.safetensors"].map(|name| fs::read(workspace.path("runs/text").join(name)).unwrap())
}

/// What a run that nobody stops ends with.
fn undisturbed() -> [Vec<u8>; 2] {
    let workspace = Workspace::new();
    workspace.train(&FLAGS).succeeded();
    weights(&workspace)
}

/// The files of a run that ended: the expected weights, a record without gaps, no leftovers.
fn check_end(workspace: &Workspace, expected: &[Vec<u8>; 2]) {
    // Not `assert_eq!`, which would print all bytes.
    assert!(weights(workspace) == *expected, "the final weights differ");
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=STEPS).collect::<Vec<_>>());
    let names: Vec<String> = fs::read_dir(workspace.path("runs/text"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    // Files are written under another name and then renamed.
    assert!(names.iter().all(|name| !name.ends_with(".partial")), "{names:?}");
}

/// Step of the newest checkpoint.
fn saved(workspace: &Workspace) -> Option<u64> {
    let entries = fs::read_dir(workspace.path("runs/text")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("checkpoint-")?.parse().ok()).max()
}

/// Waits until the run has saved a step after `before`, or has ended.
fn wait_for_progress(workspace: &Workspace, child: &mut Child, before: u64) {
    while saved(workspace).unwrap_or(0) <= before && child.try_wait().unwrap().is_none() {
        // Steps take milliseconds: a longer wait would miss them.
        sleep(Duration::from_millis(1));
    }
}

/// Ctrl-C.
fn interrupt(child: &Child) {
    // By the system's own command: the standard library sends no such signal.
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

/// Starts the run, or goes on with it if it got as far as a checkpoint.
fn go_on(workspace: &Workspace) -> Child {
    if saved(workspace).is_some() {
        workspace.spawn(&["train", "--resume", "runs/text", "--threads", "1"])
    } else {
        workspace.start(&FLAGS)
    }
}

/// Fourteen kills a run, at odd moments of starting, stepping and saving.
#[test]
fn killed_at_any_moment() {
    let expected = undisturbed();
    for trial in 0..3_u64 {
        let workspace = Workspace::new();
        let mut killed_on_its_way = 0;
        for round in 0..14_u64 {
            let before = saved(&workspace).unwrap_or(0);
            let mut child = go_on(&workspace);
            // Scattered over the start, or over the steps and the writing of checkpoints.
            // Multiples of primes, so that no two rounds wait equally long.
            let scatter = trial * 7919 + round * 104_729 + round * round * 31;
            if round % 2 == 0 {
                sleep(Duration::from_micros(4_000 + scatter % 90_000));
            } else {
                wait_for_progress(&workspace, &mut child, before);
                sleep(Duration::from_micros(scatter % 9_000));
            }
            child.kill().unwrap();
            // `None` where a signal ended it: it had not come to its end by itself.
            let killed = child.wait().unwrap().code().is_none();
            killed_on_its_way +=
                u32::from(killed && saved(&workspace).is_some_and(|step| before < step && step < STEPS));
        }
        // Otherwise the test would have tested nothing.
        assert!(killed_on_its_way > 0, "no run was stopped between its first and its last checkpoint");
        Outcome::new(go_on(&workspace).wait_with_output().unwrap()).succeeded();
        check_end(&workspace, &expected);
    }
}

/// Ctrl-C saves at once and tells the command that goes on.
#[test]
fn interrupted_by_the_user() {
    let expected = undisturbed();
    let workspace = Workspace::new();
    let mut interrupted_on_its_way = 0;
    for _ in 0..4 {
        let before = saved(&workspace).unwrap_or(0);
        let mut child = go_on(&workspace);
        wait_for_progress(&workspace, &mut child, before);
        // A fast machine: it ended before it could be stopped.
        if child.try_wait().unwrap().is_some() {
            break;
        }
        interrupt(&child);
        check_interrupted(child);
        interrupted_on_its_way += u32::from(saved(&workspace).is_some_and(|step| before < step && step < STEPS));
    }
    assert!(interrupted_on_its_way > 0, "no run was stopped between its first and its last checkpoint");
    Outcome::new(go_on(&workspace).wait_with_output().unwrap()).succeeded();
    check_end(&workspace, &expected);
}

/// The run stopped when asked, and told how to go on.
fn check_interrupted(child: Child) {
    let outcome = Outcome::new(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    assert!(outcome.stderr.contains("stopped and saved"), "{outcome:?}");
    let command = outcome.stderr.lines().last().unwrap().trim();
    // The last line is a command that can be pasted.
    assert!(command.ends_with("train --resume runs/text"), "{command}");
}

/// The last checkpoint comes before the last measurement, so Ctrl-C loses nothing.
#[test]
fn interrupted_while_the_end_is_measured() {
    let workspace = Workspace::new();
    // Takes many seconds to measure.
    fs::write(workspace.path("text.txt"), workspace.text().repeat(8_000)).unwrap();
    let mut child = workspace.start(&["--steps", "1", "--holdout", "0.9"]);
    wait_for_progress(&workspace, &mut child, 0);
    // After the last checkpoint comes the measurement of the whole held-out text.
    sleep(Duration::from_millis(50));
    interrupt(&child);
    check_interrupted(child);
    assert_eq!(saved(&workspace), Some(1));
    fs::metadata(workspace.path("runs/text/model.safetensors")).unwrap();
}
