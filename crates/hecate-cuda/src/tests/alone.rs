//! Compilations in processes of their own: NVRTC compiles one program at a time in a process, and a few instructions of
//! thousands hang on where its memory lies, which other compilations before it change.

use super::nvrtc;
use crate::{compile::options, source::KernelSource, sources::ALL};
use std::{
    env, fs,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Names what [`one_compilation`] compiles, as `architecture/file/kernel`; all of the file's kernels where there is no name.
const WANTED: &str = "HECATE_WANTED";
/// The folder that takes what it makes.
const FOLDER: &str = "HECATE_MADE";

/// What a compilation gave.
pub(super) struct Made {
    /// The language between.
    pub(super) ptx: String,
    /// What the compiler said.
    pub(super) log: String,
}

/// Compiles a file's kernels, or one of them.
pub(super) fn compile(source: &KernelSource, architecture: &str, kernel: Option<&str>) -> Made {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = format!("{architecture}/{}/{}", source.name, kernel.unwrap_or_default());
    let mut process = Command::new(env::current_exe().expect("this program"));
    process.args(["tests::alone::one_compilation", "--exact", "--ignored", "--test-threads", "1"]);
    let done = process.env(WANTED, &wanted).env(FOLDER, folder.path()).output().expect("a process");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{wanted}: {said}{}", String::from_utf8_lossy(&done.stderr));
    let read = |name| fs::read_to_string(folder.path().join(name)).unwrap_or_else(|e| panic!("{wanted}: {name}: {e}"));
    Made { ptx: read("ptx"), log: read("log") }
}

/// The process of [`compile`].
#[test]
#[ignore = "compiles for another test"]
fn one_compilation() {
    let wanted = env::var(WANTED).expect("what is wanted");
    let parts: Vec<_> = wanted.split('/').collect();
    let [architecture, file, kernel] = parts[..] else { panic!("`{wanted}` is no architecture/file/kernel") };
    let source = ALL.iter().find(|source| source.name == file).expect("a file of kernels");
    let options = options(architecture, Some(kernel).filter(|kernel| !kernel.is_empty()));
    let made = nvrtc().expect("NVRTC").compile(source, &options).unwrap_or_else(|error| panic!("{error}"));
    // There is machine code where an architecture is asked for, and not only a capability.
    let is_code = made.cubin.starts_with(b"\x7fELF");
    assert_eq!(is_code, architecture.starts_with("sm"), "machine code");
    let folder = std::path::PathBuf::from(env::var_os(FOLDER).expect("a folder"));
    fs::write(folder.join("ptx"), made.ptx).expect("a write");
    fs::write(folder.join("log"), made.log).expect("a write");
}

/// `work` for each file, on all cores.
pub(super) fn each(sources: &[&'static KernelSource], work: impl Fn(&'static KernelSource) + Sync) {
    let next = AtomicUsize::new(0);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(source)
        }
    };
    // Threads take files in turn: some take a hundred times as long as others.
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
}
