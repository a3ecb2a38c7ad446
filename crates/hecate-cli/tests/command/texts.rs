//! Texts of files, folders and standard input.

use super::harness::{TINY, Workspace};
use std::{fs, process::Child};

/// Identity of the text in a run's checkpoint.
fn identity(workspace: &Workspace, run: &str) -> serde_json::Value {
    let path = workspace.path(run).join("checkpoint-00000002/training.json");
    serde_json::from_slice::<serde_json::Value>(&fs::read(path).unwrap()).unwrap()["plan"]["identity"].clone()
}

/// One run a kind of text; all learn the same bytes.
#[test]
fn files_folders_and_standard_input_are_texts() {
    let workspace = Workspace::new();
    let text = workspace.text();
    let (first, second) = text.split_at(1000);
    fs::create_dir_all(workspace.path("folder/deep")).unwrap();
    fs::write(workspace.path("folder/a.txt"), first).unwrap();
    fs::write(workspace.path("folder/deep/b.txt"), second).unwrap();
    fs::write(workspace.path("folder/c.bin"), b"\xff\xfe").unwrap();
    fs::write(workspace.path("whole.txt"), format!("{first}\n{second}")).unwrap();
    let train = |texts: &[&str], out: &str, input: &str| {
        let flags = "train --layers 1 --width 16 --heads 2 --tokens 24 --batch 2 --steps 2 --out";
        let line: Vec<&str> = flags.split(' ').chain([out, "--text"]).chain(texts.iter().copied()).collect();
        let found = workspace.run_fed(&line, input);
        found.succeeded();
        found
    };
    // Folders in the order of their paths, files in that of the flags, each with a newline before the next.
    train(&["whole.txt"], "one", "");
    let told = train(&["folder"], "two", "");
    // What is no text is skipped, and said to be.
    assert!(told.stderr.contains("in 2 files") && told.stderr.contains("c.bin"), "{told:?}");
    train(&["folder/a.txt", "folder/deep/b.txt"], "three", "");
    train(&["folder/a.txt", "--text", "folder/deep/b.txt"], "four", "");
    // Through a pipe, where nobody knows how long it will be.
    let text = fs::read_to_string(workspace.path("whole.txt")).unwrap();
    train(&["-"], "five", &text);
    let expected = identity(&workspace, "one");
    for run in ["two", "three", "four", "five"] {
        assert_eq!(identity(&workspace, run), expected, "{run}");
        // Each finds its text again, by the same flags as any other run.
        workspace.run(&["train", "--resume", run]).succeeded();
    }
    // What came from nowhere is kept.
    let kept: Vec<_> = fs::read_dir(workspace.path("five")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(kept.iter().any(|path| fs::read_to_string(path).is_ok_and(|content| content == text)), "{kept:?}");
    // Nobody could say where in the text it would stand, or wait for a pipe that brings nothing.
    workspace.run(&["train", "--text", "-", "text.txt"]).failed(1, &["--text", "standard input"]);
    workspace.run_fed(&["train", "--text", "-"], "").failed(1, &["--text -", "empty"]);
}

/// Whether a text is in memory or read from its files makes no difference: neither to what is learned nor to what is measured.
#[test]
fn a_text_on_the_disk_is_learned_and_measured_alike() {
    let workspace = Workspace::new();
    // A second file, and characters of several bytes.
    fs::write(workspace.path("more.txt"), "\u{20ac}uro und \u{e9}t\u{e9}\n".repeat(90)).unwrap();
    let run = |out: &str, limit: &str| {
        let flags = ["--text", "more.txt", "--steps", "8", "--measure", "all", "--out", out, "--in-memory", limit];
        let trained = workspace.train(&flags);
        trained.succeeded();
        let resumed = workspace.run(&["train", "--resume", out, "--steps", "12", "--in-memory", limit]);
        resumed.succeeded();
        let line = ["eval", "--text", "text.txt", "more.txt", "--run", "runs/memory", "--in-memory", limit];
        let measured = workspace.run(&line);
        measured.succeeded();
        // Weights and record of the run after it was resumed.
        let weights = fs::read(workspace.path(out).join("model.safetensors")).unwrap();
        let losses = |mut line: serde_json::Value| {
            (line["tokens_per_second"], line["time"]) = (0.into(), 0.into());
            line.to_string()
        };
        let record: Vec<_> = workspace.record(out).into_iter().map(losses).collect();
        // Folders have other names, figures have not.
        let table = |found: &super::harness::Outcome| found.stdout.split("saved in").next().unwrap().to_owned();
        (weights, record, [table(&trained), measured.stdout])
    };
    // All of the text, then a hundred bytes of it.
    let memory = run("runs/memory", "1GiB");
    let disk = run("runs/disk", "100");
    assert!(memory.0 == disk.0, "other weights");
    assert_eq!((memory.1, memory.2), (disk.1, disk.2));
    // Sizes that nobody can read.
    for refused in ["1.5GB", "much", "-1"] {
        workspace.train(&["--in-memory", refused]).failed(2, &["--in-memory", "500MB"]);
    }
}

/// The most memory that a process held, in bytes, as Linux counts it.
#[cfg(target_os = "linux")]
fn peak(workspace: &Workspace, flags: &[&str]) -> usize {
    peak_of(workspace.start(flags))
}

/// As [`peak`], of a process that was started.
#[cfg(target_os = "linux")]
pub(super) fn peak_of(mut child: Child) -> usize {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        // The last one that was seen counts: the system forgets it with the process.
        peak = found.map_or(peak, |kilobytes: usize| kilobytes << 10);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(child.wait().unwrap().success());
    peak
}

/// A text of sixty megabytes takes sixty more than one of three kilobytes, not five times as many.
#[cfg(target_os = "linux")]
#[test]
fn a_text_takes_the_memory_of_its_bytes() {
    let workspace = Workspace::new();
    let flags = ["--steps", "1", "--measure", "1", "--threads", "1", "--overwrite"];
    // What the program takes without a text to speak of.
    let small = peak(&workspace, &flags);
    let text = workspace.text().repeat(17_000);
    fs::write(workspace.path("text.txt"), &text).unwrap();
    let large = peak(&workspace, &flags);
    // The largest part of a step's own memory is in both.
    let share = (large - small) as f64 / text.len() as f64;
    assert!(share < 1.2, "{share} bytes of memory for each byte of text");
}

/// Standard input and Hecate's own sources are kept with the run, and held once all the same.
#[cfg(target_os = "linux")]
#[test]
fn a_text_that_is_kept_is_in_memory_once() {
    let workspace = Workspace::new();
    // From a file, so that nobody has to feed the pipe meanwhile.
    let flags = TINY.replace("text.txt", "-");
    let run = |from: &str| {
        let line = format!("exec \"$HECATE\" {flags} --steps 1 --measure 0.1 --threads 1 --overwrite <{from}");
        peak_of(workspace.shell(&line).spawn().unwrap())
    };
    let small = run("text.txt");
    let text = workspace.text().repeat(17_000);
    fs::write(workspace.path("large.txt"), &text).unwrap();
    let large = run("large.txt");
    let share = (large - small) as f64 / text.len() as f64;
    assert!(share < 1.3, "{share} bytes of memory for each byte of text");
    assert_eq!(fs::metadata(workspace.path("runs/stdin/sources.txt")).unwrap().len(), text.len() as u64);
}

/// 200 MB that are not to be held take no more memory than a block of them.
#[cfg(target_os = "linux")]
#[test]
fn a_text_over_the_limit_takes_no_memory() {
    let workspace = Workspace::new();
    fs::write(workspace.path("text.txt"), workspace.text().repeat(60_000)).unwrap();
    assert!(fs::metadata(workspace.path("text.txt")).unwrap().len() > 200_000_000);
    // A pass over all of it tells that it is UTF-8, and which text it is.
    let flags = ["--steps", "1", "--measure", "0.1", "--threads", "1", "--in-memory", "1MB"];
    let found = peak(&workspace, &flags);
    assert!(found < 100_000_000, "{found} bytes of memory");
}

/// A run in the folder that it learns grows while it learns: it is no part of the text, then or when the run goes on.
#[test]
fn runs_are_no_part_of_the_folder_that_they_learn() {
    let workspace = Workspace::new();
    let line = "train --text . --layers 1 --width 8 --heads 1 --batch 1 --tokens 8 --steps 2 --out runs/here";
    workspace.run(&line.split(' ').collect::<Vec<_>>()).succeeded();
    workspace.run(&["train", "--resume", "runs/here", "--steps", "3"]).succeeded();
}
