//! A run survives a closed terminal and a log that nobody can write or read.

use super::harness::{Outcome, TINY, Workspace};
use hecate_conformance::require;
use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

/// Where the tiny model's runs are.
const RUN: &str = "runs/text";

/// So many steps that no machine is done before it is told to stop.
const LONG: &str = "--steps 100000 --save-every 4";

/// A second, and what machines that do much else take besides.
const SOON: Duration = Duration::from_millis(2500);

/// Sends a signal.
/// `name` is as `kill` takes it, such as `-HUP`.
fn signal(child: &Child, name: &str) {
    // By the system's own command: the standard library sends no such signal.
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until a step after `before` is saved; the run must still be going on.
/// Returns that step, for the next call to wait beyond.
fn wait_for(workspace: &Workspace, child: &mut Child, before: u64) -> u64 {
    loop {
        if let Some(step) = workspace.saved(RUN).filter(|&step| step > before) {
            return step;
        }
        assert!(child.try_wait().unwrap().is_none(), "the run ended");
        sleep(Duration::from_millis(1));
    }
}

/// What the child said, and that it ended with this status; it saved, and told how to go on.
/// The status is 128 and the number of the signal, as shells count.
fn stopped(child: Child, status: i32) {
    let outcome = Outcome::new(child.wait_with_output().unwrap());
    assert!(outcome.code == Some(status) && outcome.stderr.contains("stopped and saved"), "{outcome:?}");
}

/// `nohup` has hang-ups ignored: a run under it goes on until somebody stops it in another way.
#[test]
fn a_hang_up_that_is_ignored_stays_ignored() {
    let workspace = Workspace::new();
    let mut child = workspace.shell(&format!("trap '' HUP; exec \"$HECATE\" {TINY} {LONG}")).spawn().unwrap();
    let mut step = wait_for(&workspace, &mut child, 0);
    // Each is followed by more checkpoints than one that was under way.
    for _ in 0..3 {
        signal(&child, "-HUP");
        step = wait_for(&workspace, &mut child, step + 8);
    }
    signal(&child, "-TERM");
    stopped(child, 143);
}

/// A terminal that is closed stops a run as Ctrl-C does.
/// Whoever loses a connection loses no step by it.
#[test]
fn a_hang_up_saves_and_stops() {
    let workspace = Workspace::new();
    // Tests may run under `nohup` themselves; only GNU's `env` undoes that.
    let plain = workspace.shell("exec env --default-signal=HUP true").output().is_ok_and(|done| done.status.success());
    let env = if plain { "env --default-signal=HUP" } else { "" };
    let mut child = workspace.shell(&format!("exec {env} \"$HECATE\" {TINY} {LONG}")).spawn().unwrap();
    wait_for(&workspace, &mut child, 0);
    signal(&child, "-HUP");
    stopped(child, 129);
}

/// The run to its end with these redirections: what it says, and that it is saved as it would be without them.
/// `to` is what stands behind the command in a shell.
fn redirected(to: &str) -> Outcome {
    redirected_with("", to)
}

/// As [`redirected`], with this assignment of a variable.
fn redirected_with(variable: &str, to: &str) -> Outcome {
    let workspace = Workspace::new();
    let line = format!("{variable} \"$HECATE\" {TINY} --steps 40 --save-every 1000 {to}");
    let outcome = Outcome::new(workspace.shell(&line).output().unwrap());
    // The same flags, and somebody who reads everything.
    let plain = Workspace::new();
    plain.train(&["--steps", "40", "--save-every", "1000"]).succeeded();
    let weights = |workspace: &Workspace| fs::read(workspace.path("runs/text/model.safetensors")).unwrap();
    assert!(weights(&workspace) == weights(&plain), "{to}: other weights");
    assert_eq!(workspace.saved(RUN), Some(40), "{to}");
    outcome
}

/// Each loses nothing but what was to be said, and that is said where it can be.
#[test]
fn a_log_that_cannot_be_written_ends_no_training() {
    let full = "No space left on device";
    let outcome = redirected("2>/dev/full");
    outcome.succeeded();
    assert_eq!(outcome.stdout.matches(&format!("standard error cannot be written ({full}")).count(), 1, "{outcome:?}");
    assert!(outcome.stdout.contains("one pass"), "{outcome:?}");
    let outcome = redirected(">/dev/full");
    outcome.succeeded();
    assert_eq!(outcome.stderr.matches(&format!("standard output cannot be written ({full}")).count(), 1, "{outcome:?}");
    // Nowhere to say it.
    redirected(">/dev/full 2>/dev/full").succeeded();
    redirected(">&- 2>&-").succeeded();
    // Events of the library too.
    let outcome = redirected_with("HECATE_LOG=trace", "2>/dev/full; echo status $?");
    assert!(outcome.stdout.contains("status 0"), "{outcome:?}");
    // The reader has seen enough, and says how the run ended.
    let outcome = redirected("2>&1 >/dev/null | head -2");
    assert_eq!(outcome.stdout.lines().count(), 2, "{outcome:?}");
    let outcome = redirected("| true");
    assert!(outcome.stderr.contains("standard output cannot be written (Broken pipe"), "{outcome:?}");
}

/// What is no training ends where nobody reads it: without a word, and without a panic.
#[test]
fn other_commands_end_quietly() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let run = |line: &str| Outcome::new(workspace.shell(line).output().unwrap());
    let quiet = run("(\"$HECATE\" generate --prompt a --tokens 5000; echo status $? >&2) | head -c 1");
    assert_eq!(quiet.stderr, "status 1\n", "{quiet:?}");
    let full = run("\"$HECATE\" generate --prompt a --tokens 5 >/dev/full");
    full.failed(1, &["cannot write to the terminal", "No space left on device"]);
    // Errors and events that nobody can be told.
    for line in ["\"$HECATE\" train --text nowhere", "HECATE_LOG=trace \"$HECATE\" train --text nowhere"] {
        assert_eq!(run(&format!("{line} 2>/dev/full")).code, Some(1), "{line}");
    }
    assert_eq!(run("HECATE_LOG=trace \"$HECATE\" generate --prompt a --tokens 2 2>/dev/full").code, Some(0));
}

/// README.md: `hecate train` needs no network.
/// Nothing is fetched behind the scenes, and nobody is told what is learned.
#[test]
fn a_run_needs_no_network() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    assert!(readme.contains("no file and no network"), "what is tested here is said no more");
    let workspace = Workspace::new();
    // A network of its own, in which there is nobody.
    let alone = |line: &str| Outcome::new(workspace.shell(&format!("exec unshare -rn {line}")).output().unwrap());
    if alone("true").code != Some(0) {
        return require::skip("network", "this system lets no test take the network away");
    }
    // Two lines of headings, then a line a device; only the loopback is there.
    let devices = alone("sh -c 'tail -n +3 /proc/net/dev | grep -v lo:'");
    assert_eq!(devices.code, Some(1), "it is not alone: {devices:?}");
    // All that uses a model, each in a network of its own.
    for line in [
        format!("\"$HECATE\" {TINY} --steps 2"),
        "\"$HECATE\" train --steps 3 --resume".into(),
        "\"$HECATE\" generate --prompt 1 --tokens 3".into(),
        "\"$HECATE\" eval --text text.txt".into(),
        "\"$HECATE\" devices".into(),
    ] {
        alone(&line).succeeded();
    }
}

/// A step of many seconds is broken off, not waited for.
#[test]
fn a_stop_is_seen_inside_a_step() {
    let workspace = Workspace::new();
    let line = "train --text text.txt --layers 24 --width 64 --mixer attention --window 3000 --tokens 3000 --batch 2";
    let mut child = workspace.spawn(&line.split(' ').collect::<Vec<_>>());
    while workspace.saved(RUN).is_none() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended");
        sleep(Duration::from_millis(10));
    }
    // Until it listens; then it computes for many seconds.
    sleep(Duration::from_millis(1500));
    let asked = Instant::now();
    signal(&child, "-INT");
    stopped(child, 130);
    let took = asked.elapsed();
    assert_eq!((workspace.saved(RUN), workspace.recorded_steps(RUN).len()), (Some(0), 0), "the step was too short");
    assert!(took < SOON, "{took:?}");
}

/// So is a measurement of the held-out text, and one of a sweep's answers.
#[test]
fn a_stop_is_seen_inside_a_measurement() {
    let workspace = Workspace::new();
    let models = "--layers 24 --width 64 --mixer attention --window 3000 --tokens 64 --batch 1";
    fs::write(workspace.path("text.txt"), workspace.text().repeat(4000)).unwrap();
    let measured = format!("train --text text.txt {models} --steps 1 --holdout 0.9 --measure 1000");
    let sweep = "bench state-tracking --rules delta --steps 1 --length 4 --test-length 2000 --examples 100000 --seeds 1 \
                 --rates 1e-2";
    // What is said while it measures; a sweep of one step, which takes milliseconds, says nothing.
    for (line, begun) in [(measured.as_str(), Some("tokens measured")), (sweep, None)] {
        let mut child = workspace.spawn(&line.split_whitespace().collect::<Vec<_>>());
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(begun.is_none_or(|begun| log.any(|line| line.unwrap().contains(begun))), "{begun:?} was not said");
        // Into the middle of it.
        sleep(Duration::from_millis(1500));
        let asked = Instant::now();
        signal(&child, "-INT");
        assert_eq!(child.wait().unwrap().code(), Some(130), "{line}");
        let took = asked.elapsed();
        assert!(took < SOON, "{line}: {took:?}");
    }
}

/// Stacks that no memory holds: the system starts no thread.
/// A petabyte for each (2⁵⁰ bytes); an error must say so, where a panic would be the standard library's answer.
#[cfg(target_os = "linux")]
#[test]
fn a_system_without_threads() {
    let workspace = Workspace::new();
    let train: Vec<&str> = TINY.split(' ').collect();
    for arguments in [&train[..], &["check"], &["bench", "speed", "--rules", "delta"]] {
        let outcome = workspace.run_with(arguments, ("RUST_MIN_STACK", "1125899906842624"));
        assert!(outcome.code == Some(1) && !outcome.stderr.contains("panicked"), "{arguments:?}: {outcome:?}");
    }
}
