//! Files of others, and files that are none: nothing is removed, written or waited for where a name leads elsewhere.

use super::harness::{Outcome, TINY, Workspace};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Longest that a refusal takes: what waits, waits for ever.
/// A refusal takes milliseconds; the rest is for machines that do much else.
const SOON: Duration = Duration::from_secs(20);

/// Ended within [`SOON`], with this status.
/// `line` is read by a shell, with its redirections. A command that still waits is killed, and the test fails.
fn soon(workspace: &Workspace, line: &str) -> Outcome {
    let mut command = workspace.shell(&format!("exec \"$HECATE\" {line}"));
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > SOON {
            child.kill().unwrap();
            panic!("{line}: no end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Outcome::new(child.wait_with_output().unwrap())
}

/// A named pipe in place of what was at `path`.
/// Whoever opens it to read waits for a writer, and none ever comes.
fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Names in a folder, in order.
/// Hidden files are among them: leftovers of a write have names with a dot in front.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// A name that looks like Hecate's own is no proof that Hecate wrote the file.
/// What it has not written it neither removes nor writes over, with `--overwrite` either.
#[test]
fn a_folder_of_others_is_no_place_for_a_run() {
    let workspace = Workspace::new();
    fs::create_dir_all(workspace.path("d/.cache.partial")).unwrap();
    fs::write(workspace.path("d/.film.mkv.partial"), "half a film").unwrap();
    for flags in [&["--steps", "1", "--out", "d"][..], &["--steps", "1", "--out", "d", "--overwrite"]] {
        workspace.train(flags).failed(1, &[".cache.partial", "not written by Hecate", "--out"]);
        assert_eq!(names(&workspace.path("d")), [".cache.partial", ".film.mkv.partial"]);
    }
    // Beside a run they stay, whatever becomes of it; but nothing is to stand where a run writes.
    workspace.train(&["--steps", "1"]).succeeded();
    fs::write(workspace.path("runs/text/.film.mkv.partial"), "half a film").unwrap();
    workspace.run(&["train", "--resume", "--steps", "2"]).succeeded();
    workspace.train(&["--steps", "1", "--overwrite"]).succeeded();
    assert_eq!(fs::read(workspace.path("runs/text/.film.mkv.partial")).unwrap(), b"half a film");
    fs::create_dir(workspace.path("runs/text/checkpoint-00099999")).unwrap();
    fs::write(workspace.path("runs/text/checkpoint-00099999/film.mkv"), "a film").unwrap();
    let told = ["checkpoint-00099999", "not written by Hecate"];
    workspace.train(&["--steps", "1", "--overwrite"]).failed(1, &told);
    assert_eq!(fs::read(workspace.path("runs/text/checkpoint-00099999/film.mkv")).unwrap(), b"a film");
    // It is no checkpoint to go on from either, and the error says from which one.
    let told = ["checkpoint-00099999", "elsewhere to go on from step 1"];
    workspace.run(&["train", "--resume"]).failed(1, &told);
}

/// A link in a run's folder may lead to any file of the user, here `victim`.
/// Whatever a run appends, cuts short or locks must not be that file.
#[test]
fn files_of_a_run_are_opened_without_following_links() {
    let workspace = Workspace::new();
    workspace.train(&["--steps", "1"]).succeeded();
    let victim = workspace.path("victim");
    fs::write(&victim, "mine\n").unwrap();
    for name in ["metrics.jsonl", ".lock"] {
        let path = workspace.path("runs/text").join(name);
        let before = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        symlink("../../victim", &path).unwrap();
        workspace.run(&["train", "--resume", "--steps", "2"]).failed(1, &[name, "link"]);
        assert_eq!(fs::read(&victim).unwrap(), b"mine\n", "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, before).unwrap();
    }
    // A picture is no reason to end a run.
    let picture = workspace.path("runs/text/loss.svg");
    fs::remove_file(&picture).unwrap();
    symlink("../../victim", &picture).unwrap();
    let found = workspace.run(&["train", "--resume", "--steps", "2"]);
    found.succeeded();
    assert!(found.stderr.contains("the record is not drawn"), "{found:?}");
    assert!(picture.is_symlink() && fs::read(&victim).unwrap() == b"mine\n");
    // Lines that are no record are somebody's.
    let record = workspace.path("runs/text/metrics.jsonl");
    fs::write(&record, fs::read_to_string(&record).unwrap() + "a note\n{\"step\":9}\n").unwrap();
    workspace.run(&["train", "--resume", "--steps", "3"]).succeeded();
    let lines = fs::read_to_string(&record).unwrap();
    assert!(lines.contains("\na note\n{\"step\":3,") && !lines.contains("\"step\":9"), "{lines}");
}

/// Each takes the time of a refusal: nobody writes to the pipes, and zeros have no end.
/// Neither a length nor an end can be asked of them, so that they are refused before they are read.
/// Standard input is the one stream that is taken, up to a size.
#[test]
fn what_is_no_plain_file_is_refused() {
    let workspace = Workspace::new();
    pipe(&workspace.path("pipe"));
    let tiny = TINY.replace("--text text.txt", "");
    for (text, kind) in [("/dev/zero", "a device"), ("pipe", "a pipe"), ("text.txt pipe", "a pipe")] {
        let told = [kind, "expected a plain file", "`-`"];
        soon(&workspace, &format!("{tiny} --text {text} --steps 1")).failed(1, &told);
    }
    soon(&workspace, "generate --prompt-file pipe").failed(1, &["a pipe", "expected a plain file"]);
    soon(&workspace, "train --text text.txt --config /dev/zero").failed(1, &["a device", "expected a plain file"]);
    soon(&workspace, &format!("{TINY} --tokenizer pipe")).failed(1, &["--tokenizer", "no plain file"]);
    let endless = format!("{tiny} --text - --steps 1 --in-memory 1MB </dev/zero");
    soon(&workspace, &endless).failed(1, &["standard input is longer than 1MB", "--in-memory"]);
    assert!(!workspace.path("runs").exists(), "a refused run leaves nothing behind");
    // One such run does not keep the others from being listed.
    workspace.train(&["--steps", "1"]).succeeded();
    for name in ["config.json", "model.safetensors", "metrics.jsonl", "checkpoint-00000001/training.json"] {
        let bad = workspace.path("runs/bad");
        fs::create_dir_all(bad.join("checkpoint-00000001")).unwrap();
        for file in ["config.json", "model.safetensors", "metrics.jsonl", "checkpoint-00000001/training.json"] {
            fs::copy(workspace.path("runs/text").join(file), bad.join(file)).unwrap();
        }
        pipe(&bad.join(name));
        let found = soon(&workspace, "runs");
        found.succeeded();
        let row = |run: &str| found.stdout.lines().find(|line| line.contains(run)).unwrap_or_default().to_owned();
        assert!(row("bad").contains("damaged") && row("text").contains("delta"), "{name}: {found:?}");
        soon(&workspace, "info runs/bad").failed(1, &["a pipe"]);
        fs::remove_dir_all(bad).unwrap();
    }
}

/// Changes what the newest checkpoint says of its training, so that its checksums fit.
/// With a wrong checksum it would be refused before anybody looked at what it says.
fn say(workspace: &Workspace, change: impl Fn(&mut Value)) {
    let folder = workspace.path("runs/text/checkpoint-00000001");
    let training = folder.join("training.json");
    let mut said: Value = serde_json::from_slice(&fs::read(&training).unwrap()).unwrap();
    change(&mut said);
    fs::write(&training, serde_json::to_vec(&said).unwrap()).unwrap();
    // The checksum of before is found in the error, and the one of now in nothing: the list is made by the library.
    let sums = hecate::train::checkpoint::Run::new(workspace.path("copy"));
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| name != "checksums.json");
    let files = names.map(|name| (name.clone(), fs::read(folder.join(name)).unwrap().into())).collect();
    sums.commit(1, &files, &[], 1).unwrap();
    fs::copy(sums.checkpoint(1).join("checksums.json"), folder.join("checksums.json")).unwrap();
}

/// A checkpoint may come from somebody else, and what it names is read without a question.
/// It is held to what a run writes: whole paths of plain files. A flag may name any text: its user chose it.
#[test]
fn a_run_does_not_say_that_its_text_is_just_anywhere() {
    let workspace = Workspace::new();
    // Written down as a whole path, however it was named.
    fs::create_dir(workspace.path("below")).unwrap();
    let line = TINY.replace("text.txt", "below/../text.txt") + " --steps 1";
    workspace.run(&line.split(' ').collect::<Vec<_>>()).succeeded();
    workspace.run(&["train", "--resume", "--steps", "1"]).succeeded();
    for (text, told) in [
        ("/dev/zero", ["a device", "expected a plain file"]),
        ("text.txt", ["whole path without `..`", "--text FILE"]),
        ("/tmp/../etc/passwd", ["whole path without `..`", "--text FILE"]),
    ] {
        say(&workspace, |said| said["plan"]["text"] = json!([text]));
        soon(&workspace, "train --resume --steps 2").failed(1, &told);
    }
    workspace.run(&["train", "--resume", "--steps", "2", "--text", "text.txt"]).succeeded();
}

/// What cannot be written is an error, also where it is help.
/// Scripts read help and lists through pipes, and must see that a part is missing. `/dev/full` takes no byte.
#[test]
fn help_that_nobody_can_read_is_an_error() {
    let workspace = Workspace::new();
    for line in ["--help", "--version", "train --help", "help", "completions bash", "devices"] {
        let found = Outcome::new(workspace.shell(&format!("\"$HECATE\" {line} >/dev/full")).output().unwrap());
        found.failed(1, &["No space left on device"]);
    }
    // A mistake keeps its own status, though nobody can be told of it.
    let found = Outcome::new(workspace.shell("\"$HECATE\" juggle 2>/dev/full").output().unwrap());
    assert_eq!(found.code, Some(2));
}

/// The limit of `ulimit -f` comes with a signal that ends programs.
/// A block has 512 or 1024 bytes, by the shell: eight of either are less than the weights of 256 embeddings.
/// What was begun is gone afterwards; only the lock may stay.
#[test]
fn files_over_a_limit_end_no_run_without_a_word() {
    let workspace = Workspace::new();
    let line = format!("ulimit -f 8; exec \"$HECATE\" {TINY} --steps 1");
    let found = Outcome::new(workspace.shell(&line).output().unwrap());
    found.failed(1, &["cannot write", "File too large"]);
    assert!(!workspace.path("runs/text").exists() || names(&workspace.path("runs/text")) == [".lock"]);
}

/// Drivers that look for a session say nothing where there is none.
/// Their complaint would stand above the list of devices, as if something were wrong with them.
#[test]
fn a_machine_without_a_session_is_told_nothing_of_it() {
    let workspace = Workspace::new();
    let found = Outcome::new(workspace.command(&["devices"]).env_remove("XDG_RUNTIME_DIR").output().unwrap());
    found.succeeded();
    assert!(!found.stderr.contains("XDG_RUNTIME_DIR"), "{found:?}");
}

/// Where a folder is expected, "no such folder" would send people to look for a name that is there.
/// Where there is nothing at all, the error says what makes a run.
#[test]
fn a_file_is_not_called_a_missing_folder() {
    let workspace = Workspace::new();
    for line in ["info text.txt", "generate --prompt a --run text.txt", "runs text.txt", "train --init-from text.txt"] {
        workspace.run(&line.split(' ').collect::<Vec<_>>()).failed(1, &["text.txt", "is no folder"]);
    }
    workspace.run(&["info"]).failed(1, &["no trained run", "hecate info DIR"]);
    workspace.run(&["runs"]).failed(1, &["no such folder", "hecate train"]);
}

/// What `hecate quantize` wrote is no text, as a run is none.
/// `--text .` learns every text below the folder, and runs stand in that folder too.
/// The identity of the text must not change with them, or no run could go on.
#[test]
fn a_quantized_model_is_no_part_of_the_folder_that_is_learned() {
    let workspace = Workspace::new();
    let train = "train --text . --layers 1 --width 64 --mlp 64 --heads 2 --batch 1 --tokens 8 --steps 1";
    let learned = |out: &str| {
        let line = format!("{train} --out {out}");
        workspace.run(&line.split(' ').collect::<Vec<_>>()).succeeded();
        let path = workspace.path(out).join("checkpoint-00000001/training.json");
        let said: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        said["plan"]["identity"].clone()
    };
    // The second run finds the first one and the quantized model beside its text.
    let before = learned("runs/one");
    workspace.run(&["quantize", "--run", "runs/one", "--to", "q8_0", "--out", "small"]).succeeded();
    assert_eq!(learned("runs/two"), before);
}
