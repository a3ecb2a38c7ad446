//! Kernels that a subcommand compiles before its work, beside each other: said once, on a GPU that lacks them.

use crate::command::harness::{Outcome, Workspace};
use hecate_conformance::require;

/// What is said, without the number.
const LINE: [&str; 2] = ["compiling ", " kernels, once for this GPU"];

/// Numbers of kernels in lines that say so.
fn compiled(outcome: &Outcome) -> Vec<usize> {
    // Other lines tell of other things.
    let lines = outcome.stderr.lines().filter_map(|line| line.trim().strip_prefix(LINE[0])?.strip_suffix(LINE[1]));
    lines.map(|number| number.parse().unwrap_or_else(|_| panic!("`{number}` is no number: {outcome:?}"))).collect()
}

/// Subcommands that compute, after the first of them, each with what it needs.
const COMMANDS: [&str; 4] = [
    "generate --run runs/text --prompt in --tokens 20",
    "eval --run runs/text --text text.txt",
    "bench recall --pairs 2 --keys 4 --values 2 --width 8 --key-dim 4 --value-dim 4 --steps 2 --batch 2 --examples 2 --rules delta --rates 0.01 --seeds 1",
    "bench speed --rules delta --shapes 1x8x2x16 --seconds 0.01",
];

#[test]
fn a_processor_compiles_nothing() {
    let workspace = Workspace::new();
    // The run that others read.
    let outcome = workspace.train(&["--device", "cpu", "--steps", "2", "--out", "runs/text"]);
    outcome.succeeded();
    assert_eq!(compiled(&outcome), [0; 0]);
    // A processor's code is part of the program.
    for command in COMMANDS {
        let arguments: Vec<_> = command.split(' ').chain(["--device", "cpu"]).collect();
        let outcome = workspace.run(&arguments);
        outcome.succeeded();
        assert_eq!(compiled(&outcome), [0; 0], "{command}");
    }
}

#[test]
fn a_gpu_compiles_once_what_its_cache_lacks() {
    let workspace = Workspace::new();
    let run = |arguments: &[&str], cache: &str| {
        // A folder of the test's own, so that nothing is there before.
        let cache = workspace.path(cache).display().to_string();
        workspace.run_with(arguments, ("HECATE_CACHE", &cache))
    };
    let train = |cache, name| {
        let flags = crate::command::harness::TINY.split(' ');
        run(&flags.chain(["--device", "cuda", "--steps", "2", "--out", name]).collect::<Vec<_>>(), cache)
    };
    // Where there is no GPU, nothing but that may be the reason.
    let first = train("train", "runs/text");
    if first.stderr.contains("no cuda device") {
        return require::skip("cuda", &first.stderr);
    }
    first.succeeded();
    let found = compiled(&first);
    // Of steps, then of measurements, which gather no gradients.
    assert!(!found.is_empty() && !found.contains(&0), "{first:?}");
    // The second run finds all that the first one left.
    let again = train("train", "runs/again");
    again.succeeded();
    assert_eq!(compiled(&again), [0; 0], "{again:?}");
    // Each has a cache of its own: empty at first, then with all that it needs.
    for (i, command) in COMMANDS.iter().enumerate() {
        let arguments: Vec<_> = command.split(' ').chain(["--device", "cuda"]).collect();
        for expected in [1, 0] {
            let outcome = run(&arguments, &format!("cache {i}"));
            outcome.succeeded();
            // One line for all kernels together, and no line that says none.
            let found = compiled(&outcome);
            assert!(found.len() == expected && !found.contains(&0), "{command}: {outcome:?}");
        }
    }
}
