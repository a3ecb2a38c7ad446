//! Gathers the workspace's own sources into one text, which `hecate train` learns when it is given no other.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Folders of the workspace that are gathered; files beside them too.
const FOLDERS: [&str; 3] = ["crates", "docs", "tests"];
const EXTENSIONS: [&str; 3] = ["md", "rs", "toml"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let root = package.join("../..");
    let mut files = Vec::new();
    if fs::read_to_string(root.join("Cargo.toml")).is_ok_and(|text| text.contains("[workspace]")) {
        gather(&root, false, &mut files)?;
        for folder in FOLDERS.map(|name| root.join(name)).iter().filter(|folder| folder.is_dir()) {
            gather(folder, true, &mut files)?;
            println!("cargo:rerun-if-changed={}", folder.display());
        }
    } else {
        gather(&package, false, &mut files)?;
        gather(&package.join("src"), true, &mut files)?;
        println!("cargo:rerun-if-changed=src");
    }
    files.sort();
    let mut text = String::new();
    for file in &files {
        text.push_str(&fs::read_to_string(file)?);
        text.push('\n');
    }
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    fs::write(out.join("sources.txt"), text)
}

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
