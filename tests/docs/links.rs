//! Links, paths and targets of `cargo` that the documents name are there.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders under the root whose paths are checked wherever code names them. Build outputs and runs are not there at first.
const FOLDERS: [&str; 4] = ["crates/", "docs/", "tests/", ".ci/"];
/// Stand for what a reader adds; what comes before them in a path has to be there.
const PLACEHOLDERS: [&str; 4] = ["<", "…", "foo", "bar"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All documents of the workspace: `*.md` anywhere but in build outputs and hidden folders.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "runs" {
            documents(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// What of a document is not there: links from `folder`, paths and targets from `root`.
fn missing(root: &Path, folder: &Path, text: &str) -> Vec<String> {
    let mut missing: Vec<_> = links(text).filter(|link| !leads_somewhere(folder, text, link)).collect();
    for code in code(text) {
        missing.extend(paths(code).filter(|path| !exists(root, path)));
        missing.extend(code.lines().flat_map(|line| targets(root, line)));
    }
    missing
}

/// Targets of links and pictures but those on the web.
fn links(text: &str) -> impl Iterator<Item = String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|link| !link.contains("://")).map(str::to_owned)
}

/// Whether a link's file is there, and has the heading that follows `#`.
fn leads_somewhere(folder: &Path, text: &str, link: &str) -> bool {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let path = folder.join(file);
    let Some(heading) = heading else { return path.exists() };
    let text = if file.is_empty() { Ok(text.to_owned()) } else { fs::read_to_string(path) };
    text.is_ok_and(|text| text.lines().any(|line| line.starts_with('#') && anchor(line) == heading))
}

/// The name that web pages give a heading.
fn anchor(line: &str) -> String {
    let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    title.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// What stands between backticks, in blocks and in lines.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("```").enumerate();
    blocks.flat_map(|(i, part)| {
        let inline = if i % 2 == 0 { part.split('`').skip(1).step_by(2).collect() } else { vec![part] };
        inline.into_iter()
    })
}

/// Words of a piece of code that are paths under [`FOLDERS`], with every choice between braces.
fn paths(code: &str) -> impl Iterator<Item = String> {
    let words = code.split(|c: char| c.is_whitespace() || "\"'()|=;".contains(c));
    let words = words.map(|word| word.trim_end_matches([',', '.', ':']));
    words.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder))).flat_map(choices)
}

/// `a/{b,c}/d` as `a/b/d` and `a/c/d`.
fn choices(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (inside, after))) = parts else { return vec![path.to_owned()] };
    inside.split(',').flat_map(|choice| choices(&format!("{before}{choice}{after}"))).collect()
}

/// Whether a path is there; `*` stands for part of a name.
fn exists(root: &Path, path: &str) -> bool {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let known = parts.take_while(|part| !PLACEHOLDERS.iter().any(|placeholder| part.contains(placeholder)));
    let mut places = vec![root.to_owned()];
    for part in known {
        places = places.iter().flat_map(|place| entries(place, part)).collect();
    }
    !places.is_empty()
}

/// Entries of a folder with this name, of which a part may be `*`.
fn entries(folder: &Path, name: &str) -> Vec<PathBuf> {
    let Some((start, end)) = name.split_once('*') else {
        return Some(folder.join(name)).into_iter().filter(|path| path.exists()).collect();
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(start) && name.ends_with(end)
    };
    paths.filter(fits).collect()
}

/// Packages, benchmarks, tests and examples of a `cargo` command that no member has.
fn targets(root: &Path, line: &str) -> Vec<String> {
    let Some((_, command)) = line.split_once("cargo ") else { return Vec::new() };
    let words: Vec<_> = command.split([' ', '`']).take_while(|&word| word != "--" && word != "|").collect();
    let named = words.windows(2).filter(|pair| ["-p", "--bench", "--test", "--example"].contains(&pair[0]));
    named.filter(|pair| !is_target(root, pair[0], pair[1])).map(|pair| format!("{} {}", pair[0], pair[1])).collect()
}

/// Whether a member's `Cargo.toml` names the target, or an example is where `cargo` looks for it.
fn is_target(root: &Path, flag: &str, name: &str) -> bool {
    if PLACEHOLDERS.contains(&name) {
        return true;
    }
    let section = if flag == "-p" { "[package]".to_owned() } else { format!("[[{}]]", &flag[2..]) };
    let wanted = format!("{section}\nname = \"{name}\"\n");
    let manifests = ["crates/*/Cargo.toml", "tests/Cargo.toml"].map(|pattern| found(root, pattern)).concat();
    let declared = manifests.iter().any(|manifest| fs::read_to_string(manifest).unwrap().contains(&wanted));
    let folder = format!("{}s", flag.trim_start_matches('-'));
    declared || !found(root, &format!("crates/*/{folder}/{name}.rs")).is_empty()
}

/// Paths that a pattern stands for.
fn found(root: &Path, pattern: &str) -> Vec<PathBuf> {
    pattern
        .split('/')
        .fold(vec![root.to_owned()], |places, part| places.iter().flat_map(|place| entries(place, part)).collect())
}

#[test]
fn documents_name_what_is_there() {
    let mut all = Vec::new();
    documents(&root(), &mut all);
    assert!(all.iter().any(|path| path.ends_with("README.md")), "{all:?}");
    let mut problems = String::new();
    for path in all {
        let text = fs::read_to_string(&path).unwrap();
        for missing in missing(&root(), path.parent().unwrap(), &text) {
            problems.push_str(&format!("{}: `{missing}` is not there\n", path.display()));
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

#[test]
fn what_is_missing_is_found() {
    let root = root();
    let of = |text: &str| missing(&root, &root, text);
    assert_eq!(of("[a](README.md) [b](nowhere.md) [c](https://example.org/x.md)"), ["nowhere.md"]);
    assert_eq!(
        of("# One thing\n[a](#one-thing) [b](#another) [c](README.md#nowhere)"),
        ["#another", "README.md#nowhere"]
    );
    assert_eq!(of("`tests/Cargo.toml`, `tests/none.rs`, `crates/*/Cargo.toml`"), ["tests/none.rs"]);
    assert_eq!(of("`crates/hecate-{cpu,none}/src/lib.rs`"), ["crates/hecate-none/src/lib.rs"]);
    assert_eq!(of("`crates/hecate-core/src/rules/foo.rs`, `crates/none/foo.rs`"), ["crates/none/foo.rs"]);
    assert_eq!(of("```sh\npython3 tests/benches/none.py --json\n```"), ["tests/benches/none.py"]);
    let cargo = "`cargo bench -p hecate-tests --bench none -- --bench x` and `cargo test -p nobody --test docs`";
    assert_eq!(of(cargo), ["--bench none", "-p nobody"]);
}
