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

/// What the run is called.
const RUN: &str = "runs/text";
/// So many that a machine several times faster is still stopped on its way.
const STEPS: u64 = 400;
/// Checkpoints every fourth step, so that a kill often meets the writing of one.
const FLAGS: &str = "--steps 400 --save-every 4 --eval-every 100 --accumulate 2";

/// The last weights, and the best.
fn weights(workspace: &Workspace) -> [Vec<u8>; 2] {
    ["model.safetensors", "best.safetensors"].map(|name| fs::read(workspace.path(RUN).join(name)).unwrap())
}

/// What a run that nobody stops ends with.
fn undisturbed(flags: &str) -> [Vec<u8>; 2] {
    let workspace = Workspace::new();
    // How often it is saved changes nothing, and saving takes most of the time.
    let flags = flags.split(' ').chain(["--save-every", "1000000"]);
    workspace.train(&flags.collect::<Vec<_>>()).succeeded();
    weights(&workspace)
}

/// The files of a run that ended: the expected weights, a record without gaps, no leftovers.
fn check_end(workspace: &Workspace, expected: &[Vec<u8>; 2], steps: u64) {
    // Not `assert_eq!`, which would print all bytes.
    assert!(weights(workspace) == *expected, "the final weights differ");
    assert_eq!(workspace.recorded_steps(RUN), (1..=steps).collect::<Vec<_>>());
    let names: Vec<String> = fs::read_dir(workspace.path(RUN))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    // Files are written under another name and then renamed.
    assert!(names.iter().all(|name| !name.ends_with(".partial")), "{names:?}");
}

/// Waits until the run has saved a step after `before`, or has ended.
fn wait_for_progress(workspace: &Workspace, child: &mut Child, before: u64) {
    while workspace.saved(RUN).unwrap_or(0) <= before && child.try_wait().unwrap().is_none() {
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
fn go_on(workspace: &Workspace, flags: &str) -> Child {
    if workspace.saved(RUN).is_some() {
        workspace.spawn(&["train", "--resume", RUN, "--threads", "1"])
    } else {
        workspace.start(&flags.split(' ').collect::<Vec<_>>())
    }
}

/// A hundred kills of one run, at odd moments of starting, stepping and saving.
fn check_kills(flags: &str, steps: u64) {
    let flags = format!("--steps {steps} {flags}");
    let (expected, workspace) = (undisturbed(&flags), Workspace::new());
    let (mut killed, mut killed_on_its_way) = (0, 0);
    while killed < 100 {
        let before = workspace.saved(RUN).unwrap_or(0);
        let mut child = go_on(&workspace, &flags);
        // Scattered over the start, or over the steps and the writing of checkpoints.
        // Multiples of primes, so that no two rounds wait equally long.
        let scatter = steps * 7919 + killed * 104_729 + killed * killed * 31;
        if killed % 2 == 0 {
            sleep(Duration::from_micros(4_000 + scatter % 60_000));
        } else {
            wait_for_progress(&workspace, &mut child, before);
            sleep(Duration::from_micros(scatter % 9_000));
        }
        child.kill().unwrap();
        // A code where it had come to its end by itself; `None` where the signal ended it.
        let on_its_way = child.wait().unwrap().code().is_none();
        killed += 1;
        killed_on_its_way +=
            u32::from(on_its_way && workspace.saved(RUN).is_some_and(|step| before < step && step < steps));
    }
    // Otherwise the test would have tested little.
    assert!(killed_on_its_way > 20, "only {killed_on_its_way} were between the first and the last checkpoint");
    Outcome::new(go_on(&workspace, &flags).wait_with_output().unwrap()).succeeded();
    check_end(&workspace, &expected, steps);
}

#[test]
fn killed_at_any_moment() {
    check_kills("--save-every 4 --eval-every 100 --accumulate 2", 2000);
}

/// Memories that are carried on are part of a checkpoint, and only one of these is kept.
#[test]
fn killed_at_any_moment_with_carried_memories() {
    check_kills("--save-every 3 --eval-every 50 --rule titans --carry 3 --keep 1 --precision bf16", 1200);
}

/// Every third step has another best, and so other files.
#[test]
fn killed_at_any_moment_while_it_is_measured() {
    check_kills("--save-every 5 --eval-every 3 --mixer mag --window 8 --keep 3 --lr 0.05", 1000);
}

/// Ctrl-C saves at once and tells the command that goes on.
#[test]
fn interrupted_by_the_user() {
    let expected = undisturbed(FLAGS);
    let workspace = Workspace::new();
    let mut interrupted_on_its_way = 0;
    for _ in 0..4 {
        let before = workspace.saved(RUN).unwrap_or(0);
        let mut child = go_on(&workspace, FLAGS);
        wait_for_progress(&workspace, &mut child, before);
        // A fast machine: it ended before it could be stopped.
        if child.try_wait().unwrap().is_some() {
            break;
        }
        interrupt(&child);
        check_interrupted(child);
        interrupted_on_its_way += u32::from(workspace.saved(RUN).is_some_and(|step| before < step && step < STEPS));
    }
    assert!(interrupted_on_its_way > 0, "no run was stopped between its first and its last checkpoint");
    Outcome::new(go_on(&workspace, FLAGS).wait_with_output().unwrap()).succeeded();
    check_end(&workspace, &expected, STEPS);
}

/// A measurement that Ctrl-C breaks off is made when the run goes on: the best weights are those of a run that was not
/// stopped, and so is the record.
#[test]
fn interrupted_while_steps_are_measured() {
    let flags = "--steps 8 --eval-every 1 --save-every 100 --holdout 0.9 --lr 0.3 --measure 0.1";
    let workspace = || {
        let workspace = Workspace::new();
        fs::write(workspace.path("text.txt"), workspace.text().repeat(5)).unwrap();
        workspace
    };
    let (whole, mut stopped) = (workspace(), workspace());
    whole.train(&flags.split(' ').collect::<Vec<_>>()).succeeded();
    // When a busy machine measures is luck: a run that was never stopped while it did begins anew.
    let met = (0..10).any(|attempt| {
        stopped = workspace();
        stop_again_and_again(&stopped, flags, 5 + attempt) > 0
    });
    assert!(met, "no measurement was broken off");
    let (whole, stopped) = (&whole, &stopped);
    Outcome::new(go_on(stopped, flags).wait_with_output().unwrap()).succeeded();
    check_end(stopped, &weights(whole), 8);
    let losses = |workspace: &Workspace| {
        workspace.record(RUN).iter().map(|line| line["held_out_loss"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(losses(stopped), losses(whole));
}

/// Stops a run later and later until it ends, and goes on with it; returns how many measurements were broken off.
fn stop_again_and_again(stopped: &Workspace, flags: &str, first: u64) -> u32 {
    let (mut broken_off, mut wait) = (0, first);
    loop {
        let child = go_on(stopped, flags);
        while stopped.saved(RUN).is_none() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(wait));
        wait += 7;
        interrupt(&child);
        let outcome = Outcome::new(child.wait_with_output().unwrap());
        // A run stopped before its first step has no record yet.
        let last = (stopped.saved(RUN) > Some(0)).then(|| stopped.record(RUN).pop()).flatten();
        broken_off += u32::from(last.is_some_and(|line| line["held_out_loss"].is_null()));
        if stopped.saved(RUN) == Some(8) && outcome.code != Some(130) {
            break;
        }
    }
    broken_off
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
    let mut child = workspace.start(&["--steps", "1", "--holdout", "0.9", "--measure", "all"]);
    wait_for_progress(&workspace, &mut child, 0);
    // After the last checkpoint comes the measurement of the whole held-out text.
    sleep(Duration::from_millis(50));
    interrupt(&child);
    check_interrupted(child);
    assert_eq!(workspace.saved(RUN), Some(1));
    fs::metadata(workspace.path("runs/text/model.safetensors")).unwrap();
}
