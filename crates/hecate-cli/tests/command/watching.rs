//! What somebody sees who watches: bars that fit a terminal, and lines where there is none.

use super::harness::{Outcome, TINY, Workspace};
use nix::{
    fcntl::OFlag,
    pty::{grantpt, posix_openpt, ptsname_r, unlockpt},
};
use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    process::{Command, Stdio},
};

/// A rule with a long name, and more steps than anybody waits for.
// `--enough 0`: no run ends before its last step, however well it learned.
const SWEEPS: [&str; 2] = [
    "bench recall --rules yaad_momentum --pairs 1,3 --keys 4 --values 2 --width 8 --key-dim 4 --value-dim 4 --batch 2 \
     --examples 5 --rates 1e-2,1e-3 --seeds 2 --enough 0 --steps",
    "bench state-tracking --rules delta --length 4 --test-length 9 --width 8 --key-dim 4 --value-dim 4 --batch 2 \
     --examples 5 --rates 1e-2,1e-3 --seeds 2 --enough 0 --steps",
];

/// A terminal that nobody sees: what is written to the program's end is read at the other.
struct Terminal {
    /// What a terminal's user would see is read here.
    screen: File,
    /// What the command has for its standard output or error.
    program: File,
}

impl Terminal {
    /// With lines of so many columns.
    fn new(columns: u16) -> Self {
        // Neither end may reach children of other tests, which would keep it open.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        // The kernel makes the other end, once this one is told to.
        let screen = posix_openpt(flags).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname_r(&screen).unwrap();
        let program = File::options().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(name).unwrap();
        // Programs ask the terminal itself how wide it is.
        let set = ["rows", "24", "columns", &columns.to_string()].map(str::to_owned);
        assert!(Command::new("stty").args(set).stdin(program.try_clone().unwrap()).status().unwrap().success());
        Self { screen: File::from(OwnedFd::from(screen)), program }
    }

    /// The program's end, as one of its streams.
    fn stream(&self) -> Stdio {
        self.program.try_clone().unwrap().into()
    }

    /// Runs a command to its end: its status, and the lines that the terminal showed one after another.
    fn run(mut self, line: &str) -> (Option<i32>, Vec<String>) {
        let workspace = Workspace::new();
        let mut command = workspace.command(&line.split_whitespace().collect::<Vec<_>>());
        // Without a name, a terminal is taken for one that moves no cursor.
        command.env("TERM", "xterm").stdout(self.stream()).stderr(self.stream());
        let mut child = command.spawn().unwrap();
        // From here on the child alone holds that end; reading ends with an error once it is gone.
        drop((command, self.program));
        // More than the system holds back may come: it is read while the child runs.
        let mut written = Vec::new();
        let _ = self.screen.read_to_end(&mut written);
        (child.wait().unwrap().code(), shown(&String::from_utf8_lossy(&written)))
    }
}

/// Text between two jumps of the cursor to the start of a line, without what only moves it or sets colours.
fn shown(written: &str) -> Vec<String> {
    // What clears a line or moves the cursor up changes nothing of what lines hold.
    let mut plain = String::new();
    let mut rest = written.chars();
    while let Some(c) = rest.next() {
        match c {
            // `ESC [`, parameters, and a letter.
            '\u{1b}' => while !rest.next().is_none_or(|c| c.is_ascii_alphabetic()) {},
            // The last state of a bar fills its line, and the next bar begins below it.
            '█' | '░' if !plain.ends_with(['█', '░']) => plain.extend(['\n', c]),
            _ => plain.push(c),
        }
    }
    plain.split(['\r', '\n']).map(str::to_owned).collect()
}

/// The lines that show a bar with these words, each of them narrower than the terminal.
fn bars<'a>(lines: &'a [String], columns: usize, told: &str) -> Vec<&'a String> {
    let bars: Vec<_> = lines.iter().filter(|line| line.starts_with(['█', '░']) && line.contains(told)).collect();
    assert!(!bars.is_empty(), "no bar with `{told}` in {lines:#?}");
    // Bars are padded to the whole width, which no terminal breaks.
    for bar in &bars {
        assert!(bar.trim_end().chars().count() < columns, "{columns} columns: {bar:?}");
    }
    bars
}

/// Terminals break a line that is as wide as they are, and the next bar would go below it.
#[test]
fn bars_fit_their_terminal() {
    for columns in [80, 40] {
        for sweep in SWEEPS {
            // Three runs: two rates, then the second seed.
            let (code, lines) = Terminal::new(columns).run(&format!("{sweep} 300"));
            assert_eq!(code, Some(0), "{lines:#?}");
            let bars = bars(&lines, columns.into(), "run 2/");
            assert!(bars.iter().all(|bar| bar.contains(" left")), "{bars:#?}");
            // With room for it, who it is that learns.
            assert_eq!(bars.iter().any(|bar| bar.contains("rate 0.001, seed 0")), columns == 80, "{bars:#?}");
        }
        // A training's bar and that of its last measurement.
        let text = format!("{TINY} --steps 30").replace("text.txt", "text.txt --measure all --holdout 0.5");
        let (code, lines) = Terminal::new(columns).run(&text);
        assert_eq!(code, Some(0), "{lines:#?}");
        bars(&lines, columns.into(), "step 3");
        bars(&lines, columns.into(), "tokens measured");
        // Lines that stay come between, whole.
        assert!(lines.iter().any(|line| line.starts_with("step 30: ") && line.contains("one pass over")), "{lines:#?}");
    }
}

/// Tables have no bar: rows come one by one.
#[test]
fn tables_fit_a_terminal() {
    for line in
        ["check --threads 1", "bench speed --rules all,gated_delta --shapes 1x8x1x4 --seconds 0.001 --threads 1"]
    {
        let (code, lines) = Terminal::new(80).run(line);
        assert_eq!(code, Some(0), "{lines:#?}");
        // Rows stay on the screen, and may fill it to the last column.
        for line in &lines {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        // Rows are not told of twice where they are seen.
        assert!(!lines.iter().any(|line| line.contains("cells checked") || line.contains("timed: ")), "{lines:#?}");
        // The last rule's row, with all figures.
        let figures = |line: &String| line.split_whitespace().count();
        assert!(lines.iter().any(|line| line.starts_with("yaad_momentum") && figures(line) >= 5), "{lines:#?}");
    }
}

/// Every two seconds at first, on standard error.
#[test]
fn long_work_is_told_of_where_no_terminal_is() {
    let workspace = Workspace::new();
    // Both outputs are pipes here.
    let run = |line: &str| {
        let found = workspace.run(&line.split(' ').collect::<Vec<_>>());
        found.succeeded();
        found
    };
    let found = run("check --threads 1");
    let told: Vec<_> = found.stderr.lines().filter(|line| line.contains(" cells checked, ")).collect();
    // How many cells come first in a line.
    let count = |line: &&str| line.split(' ').next().unwrap().parse::<usize>().unwrap();
    assert!(!told.is_empty() && told.iter().all(|line| line.ends_with(" last") && count(line) > 0), "{found:?}");
    // Six figures of 0.7 seconds each: a line is due at the third or so.
    let found = run("bench speed --rules delta,titans --shapes 1x64x1x16 --seconds 0.7 --threads 1");
    let told: Vec<_> = found.stderr.lines().filter(|line| line.starts_with("timed: ")).collect();
    assert!(matches!(told[..], [first, ..] if first.starts_with("timed: delta, ")), "{found:?}");
    assert!(told.len() < 6, "a line a row: {told:?}");
}

/// Until somebody has seen enough; the status is that of the signal.
#[test]
fn sweeps_are_told_of_where_no_terminal_is() {
    let workspace = Workspace::new();
    for (sweep, name) in SWEEPS.iter().zip(["yaad_momentum, rate 0.01, seed 0", "delta, steps to 1, rate 0.01, seed 0"])
    {
        let line = format!("{sweep} 100000000");
        let mut child = workspace.spawn(&line.split_whitespace().collect::<Vec<_>>());
        // Its other end stays open until the child ends.
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("run 1/") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended without a line");
        }
        for part in [name, "  step ", "/100000000  loss "] {
            assert!(line.contains(part), "`{part}` is not in {line}");
        }
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        // Otherwise the child might wait for somebody to read.
        stderr.read_to_string(&mut line).unwrap();
        let outcome = Outcome::new(child.wait_with_output().unwrap());
        assert_eq!(outcome.code, Some(143), "{outcome:?} {line}");
    }
}

/// A terminal that is gone takes no line, nor does it end a training; that is said once where it can be.
#[test]
fn a_terminal_that_is_gone_is_told_of() {
    let workspace = Workspace::new();
    let Terminal { mut screen, program } = Terminal::new(80);
    // Fifteen lines are said between the bars, each of which fails.
    let line = format!("{TINY} --steps 300 --eval-every 20");
    let mut command = workspace.command(&line.split(' ').collect::<Vec<_>>());
    let child = command.stdout(Stdio::piped()).stderr(program).spawn().unwrap();
    drop(command);
    // It has begun: the terminal was one when it looked.
    screen.read_exact(&mut [0; 300]).unwrap();
    drop(screen);
    let outcome = Outcome::new(child.wait_with_output().unwrap());
    outcome.succeeded();
    let told = "standard error cannot be written (Input/output error";
    assert_eq!(outcome.stdout.matches(told).count(), 1, "{outcome:?}");
    assert_eq!(workspace.saved("runs/text"), Some(300));
}
