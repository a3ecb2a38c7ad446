//! Running the command in a folder of its own.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

/// Flags of a model and of sequences that take milliseconds.
pub(crate) const TINY: &str = "train --text text.txt --layers 1 --width 16 --heads 2 --tokens 24 --batch 2 --warmup=0";

/// A folder with a text in it.
pub(crate) struct Workspace(tempfile::TempDir);

impl Workspace {
    /// A folder with `text.txt`.
    pub(crate) fn new() -> Self {
        let workspace = Self(tempfile::tempdir().unwrap());
        fs::write(workspace.path("text.txt"), workspace.text()).unwrap();
        workspace
    }

    /// Two hundred lines of sums, some 3.5 KB.
    pub(crate) fn text(&self) -> String {
        (0..200).map(|i| format!("{} plus {i} is {}\n", i % 7, i + i % 7)).collect()
    }

    /// A path inside the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command as it was built for these tests, not started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hecate"));
        command.args(arguments).current_dir(self.0.path());
        // What the tests' own surroundings ask to be told.
        command.env_remove("HECATE_LOG").env_remove("RUST_LOG");
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::new(self.command(arguments).output().unwrap())
    }

    /// As [`Workspace::run`], with this on standard input.
    pub(crate) fn run_fed(&self, arguments: &[&str], input: &str) -> Outcome {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may end without reading; what it says then is the result.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Outcome::new(child.wait_with_output().unwrap())
    }

    /// As [`Workspace::run`], with this variable in the environment.
    pub(crate) fn run_with(&self, arguments: &[&str], (name, value): (&str, &str)) -> Outcome {
        Outcome::new(self.command(arguments).env(name, value).output().unwrap())
    }

    /// Trains the tiny model with these flags besides.
    pub(crate) fn train(&self, arguments: &[&str]) -> Outcome {
        self.run(&tiny(arguments))
    }

    /// Starts to train the tiny model.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.spawn(&tiny(arguments))
    }

    /// Starts the command.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A script of the shell in the folder, not started; `"$HECATE"` is the command.
    #[cfg(unix)]
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(self.0.path()).env("HECATE", env!("CARGO_BIN_EXE_hecate"));
        shell.env_remove("HECATE_LOG").env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }

    /// Step of a run's newest checkpoint.
    pub(crate) fn saved(&self, run: &str) -> Option<u64> {
        let entries = fs::read_dir(self.path(run)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("checkpoint-")?.parse().ok()).max()
    }

    /// Steps in a run's record.
    pub(crate) fn recorded_steps(&self, run: &str) -> Vec<u64> {
        self.record(run).iter().map(|line| line["step"].as_u64().unwrap()).collect()
    }

    /// Lines of a run's record.
    pub(crate) fn record(&self, run: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// [`TINY`], then other flags.
fn tiny<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    TINY.split(' ').chain(arguments.iter().copied()).collect()
}

/// What the command did.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// None where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// From what the system collected.
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Ended with status 0.
    pub(crate) fn succeeded(&self) {
        assert_eq!(self.code, Some(0), "{self:?}");
    }

    /// Failed with this status, said `error: …` with all of `told`, and did not panic.
    pub(crate) fn failed(&self, code: i32, told: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stderr.contains("error: ") && !self.stderr.contains("panicked"), "{self:?}");
        for part in told {
            assert!(self.stderr.contains(part), "`{part}` is not in {self:?}");
        }
    }
}
