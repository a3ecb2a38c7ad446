//! A disk that fills costs no checkpoint, and no run that finds room again.

use super::harness::{Outcome, TINY, Workspace};
use hecate_conformance::require;
use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

/// A small disk of its own, as long as this lives.
struct Disk(PathBuf);

impl Disk {
    /// Mounted there, where this system lets tests do so; large enough for three checkpoints and a picture.
    fn mount(at: &Path) -> Option<Self> {
        Self::of(at, 2 << 20)
    }

    /// As [`Disk::mount`], of so many bytes.
    fn of(at: &Path, bytes: u64) -> Option<Self> {
        fs::create_dir(at).unwrap();
        // In memory.
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "hecate"]).arg(at).output();
        mount.is_ok_and(|found| found.status.success()).then(|| Self(at.to_owned()))
    }

    /// Fills it to the last byte.
    fn fill(&self) -> Ballast {
        let ballast = Ballast(self.0.join("ballast"));
        ballast.grow();
        ballast
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A failure here must not hide that of a test; the folder's own removal would tell.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// What fills a disk; it goes away with this.
struct Ballast(PathBuf);

impl Ballast {
    /// Takes what room there is by now.
    fn grow(&self) {
        let mut file = File::options().append(true).create(true).open(&self.0).unwrap();
        // Blocks, then bytes: what is left is not even room for a line.
        for block in [&[0; 4096][..], &[0]] {
            while file.write_all(block).is_ok() {}
        }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// Ten checkpoints between two measurements.
const FLAGS: &str = "--save-every 4 --eval-every 40 --steps";

/// Final weights, best weights and steps of the record.
fn end(workspace: &Workspace, run: &str) -> ([Vec<u8>; 2], Vec<u64>) {
    let read = |name: &str| match fs::read(workspace.path(run).join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => panic!("no {name}"),
        found => found.unwrap(),
    };
    (["model.safetensors", "best.safetensors"].map(read), workspace.recorded_steps(run))
}

/// The same of a run with all the room there is.
fn undisturbed(steps: &str) -> ([Vec<u8>; 2], Vec<u64>) {
    let workspace = Workspace::new();
    let flags = format!("--save-every 1000 --eval-every 40 --steps {steps}");
    workspace.train(&flags.split(' ').collect::<Vec<_>>()).succeeded();
    end(&workspace, "runs/text")
}

/// Waits until this is said in the log; the run must not end before, and gets no room meanwhile.
fn wait_for(workspace: &Workspace, child: &mut std::process::Child, ballast: &Ballast, told: &str) {
    while !fs::read_to_string(workspace.path("log")).unwrap_or_default().contains(told) {
        let ended = child.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "the run ended before it said `{told}`: {:?}",
            fs::read_to_string(workspace.path("log"))
        );
        // A checkpoint that was under way leaves what it had taken.
        ballast.grow();
        sleep(Duration::from_millis(1));
    }
}

/// It says what is not saved, keeps lines of the record in memory, and saves all of it once there is room.
#[test]
fn a_run_goes_on_while_its_disk_is_full() {
    let workspace = Workspace::new();
    let Some(disk) = Disk::mount(&workspace.path("disk")) else {
        return require::skip("disk", "this system lets no test mount one; another test limits the size of files");
    };
    let line = format!("exec \"$HECATE\" {TINY} {FLAGS} 800 --out disk/run 2>log");
    let mut child = workspace.shell(&line).spawn().unwrap();
    while workspace.saved("disk/run").unwrap_or(0) < 8 {
        assert!(child.try_wait().unwrap().is_none(), "{:?}", fs::read_to_string(workspace.path("log")));
        sleep(Duration::from_millis(1));
    }
    let ballast = disk.fill();
    // At one of the next checkpoints: those before may still have found room.
    wait_for(&workspace, &mut child, &ballast, " is not saved: ");
    // The record's last block of the disk may have room for a while.
    wait_for(&workspace, &mut child, &ballast, "the record has to wait");
    // What was saved can be used meanwhile.
    let before = workspace.saved("disk/run").unwrap();
    workspace.run(&["generate", "--run", "disk/run", "--prompt", "1", "--tokens", "3"]).succeeded();
    let log = fs::read_to_string(workspace.path("log")).unwrap();
    for told in ["No space left on device", "stays, and the next try comes after step", "the record has to wait"] {
        assert!(log.contains(told), "`{told}` is not in {log}");
    }
    // Once, however many lines wait.
    assert_eq!(log.matches("the record has to wait").count(), 1, "{log}");
    drop(ballast);
    while workspace.saved("disk/run").unwrap() <= before {
        assert!(child.try_wait().unwrap().is_none(), "{:?}", fs::read_to_string(workspace.path("log")));
        sleep(Duration::from_millis(1));
    }
    Outcome::new(child.wait_with_output().unwrap()).succeeded();
    assert!(end(&workspace, "disk/run") == undisturbed("800"), "another end than with room");
    assert_no_rest(&workspace, "disk/run");
}

/// Files are written under another name and then renamed; those that a full disk refused are removed.
fn assert_no_rest(workspace: &Workspace, run: &str) {
    let names: Vec<_> = fs::read_dir(workspace.path(run)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().ends_with(".partial")), "{names:?}");
}

/// It fills and stays full: the run ends with an error that says how to go on, and going on needs no room but for the next
/// checkpoint.
#[test]
fn a_run_ends_on_a_full_disk_with_a_way_out() {
    let workspace = Workspace::new();
    let Some(disk) = Disk::mount(&workspace.path("disk")) else {
        return require::skip("disk", "this system lets no test mount one; another test limits the size of files");
    };
    let train = |flags: &str| workspace.run(&flags.split(' ').collect::<Vec<_>>());
    // The only checkpoint, which gives way to none.
    train(&format!("{TINY} {FLAGS} 40 --keep 1 --out disk/run")).succeeded();
    let ballast = disk.fill();
    // The second time it goes on from where the first time left it.
    for _ in 0..2 {
        let told = ["step 60 is not saved", "No space left", "of step 40", "train --resume disk/run"];
        train("train --resume disk/run --steps 60").failed(1, &told);
        assert_eq!(workspace.saved("disk/run"), Some(40));
        assert_no_rest(&workspace, "disk/run");
        train("generate --run disk/run --prompt 1 --tokens 3").succeeded();
    }
    // A new run in the place of the old one is refused before that is touched.
    train(&format!("{TINY} --steps 1 --out disk/run --overwrite")).failed(1, &["No space left"]);
    assert_eq!(workspace.saved("disk/run"), Some(40));
    drop(ballast);
    train("train --resume disk/run --steps 60").succeeded();
    assert_eq!(workspace.recorded_steps("disk/run"), (1..=60).collect::<Vec<_>>());
    assert_no_rest(&workspace, "disk/run");
}

/// Bytes that the files of a folder take, each counted once, in the pages of a disk in memory.
fn room_of(folder: &Path) -> u64 {
    // The standard library tells lengths, not what they take.
    let found = Command::new("du").args(["-s", "--block-size=1"]).arg(folder).output().unwrap();
    String::from_utf8(found.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// Two checkpoints are all that a run needs room for: its newest, and the one that supersedes it. What the run's folder has
/// of either is no third, nor is what a resumed run puts there.
#[test]
fn a_disk_of_two_checkpoints_is_enough() {
    let workspace = Workspace::new();
    let train = |flags: &str| {
        let found = workspace.run(&flags.split(' ').collect::<Vec<_>>());
        found.succeeded();
        assert!(!found.stderr.contains("is not saved"), "{found:?}");
    };
    // Large files, which take room once. Every step is measured, and each of the first has another best.
    let flags = "--width 256 --keep 1 --save-every 2 --eval-every 1 --steps";
    train(&format!("{TINY} {flags} 4 --out whole"));
    // A checkpoint by itself, and not what is beside it.
    let whole = room_of(&workspace.path("whole/checkpoint-00000004"));
    let weights = fs::metadata(workspace.path("whole/model.safetensors")).unwrap().len();
    // Half a copy of the weights is left over, for the record, the picture and the folders.
    let Some(_disk) = Disk::of(&workspace.path("disk"), 2 * whole + weights / 2) else {
        return require::skip("disk", "this system lets no test mount one; another test compares files");
    };
    train(&format!("{TINY} {flags} 4 --out disk/run"));
    // The folder's own names of its files are gone, and are made again as the run goes on.
    for name in ["model.safetensors", "best.safetensors"] {
        fs::remove_file(workspace.path("disk/run").join(name)).unwrap();
    }
    train("train --resume disk/run --steps 8");
    assert_eq!(workspace.saved("disk/run"), Some(8));
    assert_no_rest(&workspace, "disk/run");
    let taken = room_of(&workspace.path("disk/run"));
    assert!(taken < whole + weights / 2, "{taken} bytes, and {whole} of a checkpoint");
}

/// As a full disk, where none can be mounted: files may have 4 KB, which no checkpoint's have.
#[test]
fn files_that_cannot_be_written_cost_no_checkpoint() {
    let workspace = Workspace::new();
    let limited = |flags: &str| {
        // Blocks of 512 bytes. The signal that would end the program is ignored, so that writing fails.
        let line = format!("ulimit -f 8; trap '' XFSZ; exec \"$HECATE\" {flags}");
        Outcome::new(workspace.shell(&line).output().unwrap())
    };
    let flags = format!("{TINY} {FLAGS} 40");
    limited(&flags).failed(1, &["cannot write", "safetensors", "File too large"]);
    // A run that could not begin is none.
    assert_eq!(workspace.saved("runs/text"), None, "half a run");
    assert_no_rest(&workspace, "runs/text");
    workspace.run(&flags.split(' ').collect::<Vec<_>>()).succeeded();
    let told = ["step 60 is not saved", "File too large", "of step 40", "train --resume runs/text"];
    let found = limited("train --resume --steps 60");
    found.failed(1, &told);
    assert!(found.stderr.contains("next try comes after step 48"), "{found:?}");
    assert_eq!(workspace.saved("runs/text"), Some(40));
    assert_no_rest(&workspace, "runs/text");
    workspace.run(&["train", "--resume", "--steps", "60"]).succeeded();
    assert_eq!(workspace.recorded_steps("runs/text"), (1..=60).collect::<Vec<_>>());
}
