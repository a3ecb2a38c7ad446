//! Files that are called as the driver's library and are none.

use crate::Cuda;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Another library, which is there wherever this program runs.
/// It opens like any library and has none of the driver's functions, which a file of text cannot show.
fn other_library() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.split_whitespace().last()).map(Path::new);
    paths
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libgcc_s")))
        .map(Path::to_owned)
        .next()
}

/// Each is one typed error, which tells a file that is there from none; nothing else is printed.
#[cfg(target_os = "linux")]
#[test]
fn broken_drivers() {
    let Some(other) = other_library() else { return super::say("skipped: broken_drivers: no other library is loaded") };
    let whole = fs::read(&other).expect("a library");
    // Name of the case, what the file holds, and what the error says of it.
    let broken: [(&str, &[u8], &str); 3] = [
        ("text", &[b'x'; 5000], "libcuda.so.1 cannot be opened"),
        ("empty", b"", "libcuda.so.1 cannot be opened"),
        ("another", &whole, "lacks functions that were asked for (Missing symbol cuInit"),
    ];
    for (name, content, expected) in broken {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("libcuda.so.1"), content).expect("a file");
        // A process of its own: a library that was opened once stays open, and the loader reads its path at the start.
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["tests::driver::asking", "--exact", "--ignored", "--nocapture"]);
        let output = command.env("LD_LIBRARY_PATH", folder.path()).output().expect("it ran");
        let (told, printed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(told.contains(expected), "{name}, {}: {told}{printed}", output.status);
        assert!(output.status.success() && printed.is_empty(), "{name}, {}: {printed}", output.status);
    }
}

/// Says what it found, for the test above.
#[test]
#[ignore = "asks the driver for another test"]
fn asking() {
    for error in [Cuda::count().map(drop), Cuda::list().map(drop), Cuda::new(0).map(drop)] {
        println!("{}", error.expect_err("no driver"));
    }
}
