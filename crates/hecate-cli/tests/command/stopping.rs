//! A stopped run, resumed, ends with the same bytes as one that was not stopped.

use super::harness::{Outcome, Workspace};
use std::{
    fs,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

const STEPS: &str = "90";
const FLAGS: [&str; 8] = ["--steps", STEPS, "--save-every", "4", "--eval-every", "30", "--accumulate", "2"];

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
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=90).collect::<Vec<_>>());
    let names: Vec<String> = fs::read_dir(workspace.path("runs/text"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.ends_with(".partial")), "{names:?}");
}

fn has_checkpoint(workspace: &Workspace) -> bool {
    let entries = fs::read_dir(workspace.path("runs/text")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("checkpoint-"))
}

/// Starts the run, or goes on with it if it got as far as a checkpoint.
fn go_on(workspace: &Workspace) -> Child {
    if has_checkpoint(workspace) {
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
        let mut killed = 0;
        for round in 0..14_u64 {
            let mut child = go_on(&workspace);
            // Scattered over the start, the steps and the writing of checkpoints.
            sleep(Duration::from_micros(4_000 + (trial * 7919 + round * 104_729 + round * round * 31) % 90_000));
            child.kill().unwrap();
            killed += u32::from(child.wait().unwrap().code().is_none());
        }
        assert!(killed > 0, "no run was stopped before its end");
        Outcome::new(go_on(&workspace).wait_with_output().unwrap()).succeeded();
        check_end(&workspace, &expected);
    }
}

#[test]
fn interrupted_by_the_user() {
    let expected = undisturbed();
    let workspace = Workspace::new();
    let mut resumed = None;
    for _ in 0..4 {
        let child = resumed.take().unwrap_or_else(|| workspace.start(&FLAGS));
        while !has_checkpoint(&workspace) {
            sleep(Duration::from_millis(2));
        }
        sleep(Duration::from_millis(60));
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let outcome = Outcome::new(child.wait_with_output().unwrap());
        if outcome.code == Some(0) {
            break;
        }
        assert_eq!(outcome.code, Some(130), "{outcome:?}");
        assert!(outcome.stderr.contains("stopped and saved"), "{outcome:?}");
        let command = outcome.stderr.lines().last().unwrap().trim();
        assert!(command.ends_with("train --resume runs/text"), "{command}");
        resumed = Some(workspace.spawn(&["train", "--resume", "runs/text"]));
    }
    if let Some(child) = resumed {
        Outcome::new(child.wait_with_output().unwrap()).succeeded();
    }
    check_end(&workspace, &expected);
}
