//! Gathers the workspace's own sources into one text, which `hecate train` learns when it is given no other.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Folders of the workspace that are gathered; files beside them too.
const FOLDERS: [&str; 2] = ["crates", "tests"];
/// What is text among them.
/// Kernels are left out, which are another language, and documents: an edit of one would build the command again.
const EXTENSIONS: [&str; 2] = ["rs", "toml"];

/// Writes `sources.txt`, in the order of paths. In a package of its own, without the workspace, it is the package's sources.
fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let root = package.join("../..");
    let mut files = Vec::new();
    if fs::read_to_string(root.join("Cargo.toml")).is_ok_and(|text| text.contains("[workspace]")) {
        gather(&root, false, &mut files)?;
        for folder in FOLDERS.map(|name| root.join(name)).iter().filter(|folder| folder.is_dir()) {
            gather(folder, true, &mut files)?;
            // The folder too: files that are added or removed change no other file.
            println!("cargo:rerun-if-changed={}", folder.display());
        }
    // As published: the workspace is not there.
    } else {
        gather(&package, false, &mut files)?;
        gather(&package.join("src"), true, &mut files)?;
        println!("cargo:rerun-if-changed=src");
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

/// Adds the files of `folder`, with `deep` those below it too; hidden ones and build results are left out.
fn gather(folder: &Path, deep: bool, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" {
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
