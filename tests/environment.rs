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

/// Names in literals behind calls that read the environment: `env::var("NAME")`, `folder("NAME")` over it.
fn read_directly(text: &str) -> BTreeSet<String> {
    let calls = text.split("env::var").skip(1);
    let name = |call: &str| {
        let (_, rest) = call.split_once("(\"").filter(|(before, _)| before.is_empty() || *before == "_os")?;
        rest.split_once('"').map(|(name, _)| name.to_owned())
    };
    calls.filter_map(name).collect()
}

#[test]
fn the_page_lists_every_variable() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/environment.md")).expect("docs/environment.md");
    let mut files = Vec::new();
    ["crates", "tests"].iter().for_each(|folder| sources(&root.join(folder), &mut files));
    files.push(root.join(".ci/run"));
    assert!(files.len() > 100, "only {} sources were found", files.len());
    let (mut used, mut direct) = (BTreeSet::new(), BTreeSet::new());
    for file in files.iter().filter(|file| !file.ends_with("tests/environment.rs")) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        used.extend(variables(&text));
        if file.extension().is_some_and(|extension| extension == "rs") {
            direct.extend(read_directly(&text));
        }
    }
    // Cargo sets these itself.
    direct.retain(|name| !name.starts_with("CARGO") && name != "OUT_DIR");
    assert!(used.contains("HECATE_CACHE") && direct.contains("UPDATE"), "{used:?} {direct:?}");
    let listed = variables(&page);
    assert_eq!(used, listed, "left: in the sources; right: in docs/environment.md");
    for name in direct {
        assert!(page.contains(&format!("`{name}`")), "docs/environment.md has no `{name}`");
    }
}
