//! A stopped run, resumed, ends with the same bytes as one that was not stopped.

use super::harness::{Outcome, Workspace};
use std::{
    fs,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

/// So many that a machine several times faster is still stopped on its way.
const STEPS: u64 = 400;
const FLAGS: [&str; 8] = ["--steps", "400", "--save-every", "4", "--eval-every", "100", "--accumulate", "2"];

fn model(workspace: &Workspace) -> Vec<u8> {
    fs::read(workspace.path("runs/text/model.safetensors")).unwrap()
}

/// What a run that nobody stops ends with.
fn undisturbed() -> Vec<u8> {
    let workspace = Workspace::new();
    workspace.train(&FLAGS).succeeded();
    model(&workspace)
}

fn check_end(workspace: &Workspace, expected: &[u8]) {
    assert!(model(workspace) == expected, "the final weights differ");
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=STEPS).collect::<Vec<_>>());
    let names: Vec<String> = fs::read_dir(workspace.path("runs/text"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
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
        sleep(Duration::from_millis(1));
    }
}

fn interrupt(child: &Child) {
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
            let scatter = trial * 7919 + round * 104_729 + round * round * 31;
            if round % 2 == 0 {
                sleep(Duration::from_micros(4_000 + scatter % 90_000));
            } else {
                wait_for_progress(&workspace, &mut child, before);
                sleep(Duration::from_micros(scatter % 9_000));
            }
            child.kill().unwrap();
            let killed = child.wait().unwrap().code().is_none();
            killed_on_its_way +=
                u32::from(killed && saved(&workspace).is_some_and(|step| before < step && step < STEPS));
        }
        assert!(killed_on_its_way > 0, "no run was stopped between its first and its last checkpoint");
        Outcome::new(go_on(&workspace).wait_with_output().unwrap()).succeeded();
        check_end(&workspace, &expected);
    }
}

#[test]
fn interrupted_by_the_user() {
    let expected = undisturbed();
    let workspace = Workspace::new();
    let mut interrupted_on_its_way = 0;
    for _ in 0..4 {
        let before = saved(&workspace).unwrap_or(0);
        let mut child = go_on(&workspace);
        wait_for_progress(&workspace, &mut child, before);
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
    assert!(command.ends_with("train --resume runs/text"), "{command}");
}

#[test]
fn interrupted_while_the_end_is_measured() {
    let workspace = Workspace::new();
    // Takes many seconds to measure.
    fs::write(workspace.path("text.txt"), workspace.text().repeat(8_000)).unwrap();
    let mut child = workspace.start(&["--steps", "1", "--holdout", "0.9"]);
    wait_for_progress(&workspace, &mut child, 0);
    sleep(Duration::from_millis(50));
    interrupt(&child);
    check_interrupted(child);
    assert_eq!(saved(&workspace), Some(1));
    fs::metadata(workspace.path("runs/text/model.safetensors")).unwrap();
}
