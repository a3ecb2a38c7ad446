//! Gathers the workspace's own sources into one text, which `hecate train` learns when it is given no other.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// The folder of the workspace that is gathered; files beside it too.
const FOLDER: &str = "crates";
/// What is text among them.
/// Kernels are left out, which are another language, and documents: an edit of one would build the command again.
const EXTENSIONS: [&str; 2] = ["rs", "toml"];
/// Left out as well, so that an edit of a test builds no command: tests, examples and build results.
const OTHERS: [&str; 5] = ["benches", "examples", "target", "tests", "tests.rs"];

/// Writes `sources.txt`, in the order of paths. In a package of its own, without the workspace, it is the package's sources.
fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let root = package.join("../..");
    let mut files = Vec::new();
    if fs::read_to_string(root.join("Cargo.toml")).is_ok_and(|text| text.contains("[workspace]")) {
        gather(&root, false, &mut files)?;
        gather(&root.join(FOLDER), true, &mut files)?;
    // As published: the workspace is not there.
    } else {
        gather(&package, false, &mut files)?;
        gather(&package.join("src"), true, &mut files)?;
    }
    // The same text on every machine, whatever order its file system has.
    files.sort();
    let mut text = String::new();
    for file in &files {
        text.push_str(&fs::read_to_string(file)?);
        // Files end with a newline, so this is an empty line between two.
        text.push('\n');
    }
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    fs::write(out.join("sources.txt"), text)
}

/// Adds the files of `folder`, with `deep` those below it too; hidden ones are left out. Each is watched and no folder, which
/// would be watched with all that is in it: a file that is new is named by another.
fn gather(folder: &Path, deep: bool, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || OTHERS.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            if deep {
                gather(&path, deep, files)?;
            }
        } else if path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known)) {
            println!("cargo:rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}
