//! The page of environment variables is the sources'.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Files in which programs and tests read the environment.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            sources(&path, found);
        } else if [".rs", ".py"].iter().any(|extension| name.ends_with(extension)) {
            found.push(path);
        }
    }
}

/// Words of capitals that begin with `HECATE_`.
fn variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_' || letter.is_ascii_digit()));
    words.filter(|word| word.starts_with("HECATE_") && word.len() > "HECATE_".len()).map(str::to_owned).collect()
}

/// Names of capitals between two `quote`s, as variables are named.
fn capitals(text: &str, quote: char) -> BTreeSet<String> {
    let capital = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    let is_name = |word: &&str| word.len() > "MIT".len() && !word.starts_with(|first: char| first.is_ascii_digit());
    let names = text.split(quote).filter(is_name).filter(|word| word.chars().all(capital));
    names.map(str::to_owned).collect()
}

/// What sources that read the environment have in capitals and that is no variable.
const WORDS: [&str; 6] = ["BF16", "JSON", "LLVM", "NVRTC", "WITH", "__CUDA_ARCH"];

/// What drivers and libraries read, and the page tells of.
const OF_LIBRARIES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "RAYON_NUM_THREADS", "VK_DRIVER_FILES"];

#[test]
fn the_page_lists_every_variable() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/environment.md")).expect("docs/environment.md");
    let mut files = Vec::new();
    ["crates", "tests"].iter().for_each(|folder| sources(&root.join(folder), &mut files));
    files.push(root.join(".ci/run"));
    assert!(files.len() > 100, "only {} sources were found", files.len());
    let mut used: BTreeSet<String> = OF_LIBRARIES.map(str::to_owned).into();
    for file in files.iter().filter(|file| !file.ends_with("tests/environment.rs")) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        used.extend(variables(&text));
        // Names may reach the call through a closure or a constant, so all of the file's literals count.
        if text.contains("env::var") || text.contains("environ[") || text.contains("getenv") {
            used.extend(capitals(&text, '"'));
        }
    }
    // Cargo sets these itself.
    used.retain(|name| !name.starts_with("CARGO") && name != "OUT_DIR" && !WORDS.contains(&name.as_str()));
    for name in ["HECATE_CACHE", "RUST_LOG", "UPDATE", "XDG_CACHE_HOME"] {
        assert!(used.contains(name), "`{name}` was not found in the sources: {used:?}");
    }
    assert_eq!(used, capitals(&page, '`'), "left: in the sources; right: in docs/environment.md");
}
