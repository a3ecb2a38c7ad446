//! Dependencies: under which licences they come, and from where.

use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// Licences that `deny.toml` allows.
fn allowed() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    let text = fs::read_to_string(path).expect("deny.toml beside the workspace's Cargo.toml");
    let (_, rest) = text.split_once("allow = [").expect("a list of licences");
    let (list, _) = rest.split_once(']').expect("its end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an expression of licences can be met by these: `AND` binds closer than `OR`, and `/` is an old `OR`.
struct Expression<'a> {
    words: Vec<&'a str>,
    at: usize,
    allowed: &'a [String],
}

impl Expression<'_> {
    fn next_is(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> bool {
        let mut met = self.all();
        while self.next_is("OR") {
            met |= self.all();
        }
        met
    }

    fn all(&mut self) -> bool {
        let mut met = self.one();
        while self.next_is("AND") {
            met &= self.one();
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.next_is("(") {
            let met = self.any();
            return self.next_is(")") && met;
        }
        let licence = self.words.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        if self.next_is("WITH") {
            // An exception of its own is another licence; none is in the list.
            self.at += 1;
            return false;
        }
        self.allowed.iter().any(|allowed| allowed == licence)
    }
}

fn met(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut expression = Expression { words, at: 0, allowed };
    expression.any() && expression.at == expression.words.len()
}

#[test]
fn expressions_are_read_as_they_are_meant() {
    let allowed = ["MIT", "Zlib"].map(str::to_owned);
    for text in ["MIT", "GPL-3.0 OR MIT", "MIT AND Zlib", "GPL-3.0/MIT", "(GPL-3.0 OR MIT) AND Zlib", "MIT OR A AND B"]
    {
        assert!(met(text, &allowed), "{text}");
    }
    for text in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT WITH exception", "MIT GPL-3.0", "(MIT OR Zlib) AND B"] {
        assert!(!met(text, &allowed), "{text}");
    }
}

/// What cargo knows of everything that the lock file names, also for systems other than this one.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut ask = Command::new(cargo);
    ask.args(["metadata", "--format-version", "1", "--all-features", "--locked", "--manifest-path"]).arg(manifest);
    let answer = ask.output().expect("cargo starts");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let answer: Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    let packages = answer["packages"].as_array().expect("a list of packages").clone();
    assert!(packages.len() > 50, "only {} packages", packages.len());
    packages
}

#[test]
fn licences_and_sources_are_those_allowed() {
    let allowed = allowed();
    for package in packages() {
        let name = format!("{} {}", package["name"], package["version"]);
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(met(licence, &allowed), "{name} is under `{licence}`, and deny.toml allows {}", allowed.join(", "));
        let source = package["source"].as_str();
        let known =
            source.is_none_or(|source| source.starts_with("registry+https://github.com/rust-lang/crates.io-index"));
        assert!(known, "{name} comes from {source:?}");
    }
}

/// A crate that takes any version of another breaks with the other's next one.
#[test]
fn every_dependency_names_a_version() {
    let mut checked = 0;
    for package in packages().iter().filter(|package| package["source"].is_null()) {
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            let named = dependency["req"].as_str().is_some_and(|version| !version.contains('*'));
            // Cargo leaves out of packages what only tests take from a folder.
            let stays = dependency["kind"] == "dev" && !dependency["path"].is_null();
            assert!(named || stays, "{} takes any version of {}", package["name"], dependency["name"]);
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} dependencies");
}

/// A package holds what lies in its folder, so each has the texts themselves.
#[test]
fn every_crate_has_the_licences() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates: Vec<_> =
        fs::read_dir(root.join("crates")).expect("crates").map(|entry| entry.expect("a crate")).collect();
    assert!(crates.len() >= 8, "only {} crates", crates.len());
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let text = fs::read(root.join(name)).expect("a licence beside the workspace's Cargo.toml");
        for folder in &crates {
            let file = folder.path().join(name);
            let link = file.symlink_metadata().is_ok_and(|found| found.is_symlink());
            assert!(!link, "{} is a link; a checkout may have its path for a text", file.display());
            let own = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(own == text, "{} is not the workspace's; copy it", file.display());
        }
    }
}

/// A build of an example compiles what programs need, and neither the suite nor its equations.
#[test]
fn examples_need_what_programs_need() {
    let all = packages();
    let facade = all.iter().find(|package| package["name"] == "hecate-memory").expect("the package of `hecate`");
    let dependencies = facade["dependencies"].as_array().expect("a list of dependencies");
    let always: Vec<_> = dependencies
        .iter()
        .filter(|one| one["optional"] == false && one["kind"].is_null())
        .map(|one| &one["name"])
        .collect();
    let of_tests = dependencies.iter().filter(|one| one["kind"] == "dev").map(|one| &one["name"]);
    // A model of one's own has a configuration that is written and read.
    assert_eq!(of_tests.collect::<Vec<_>>(), ["serde"], "dev-dependencies are built for every example");
    assert_eq!(always, ["hecate-memory-core", "tracing"]);
}

/// Packages have names that nobody else has on crates.io, and libraries the short ones.
#[test]
fn names_are_our_own() {
    let all = packages();
    let own: Vec<_> = all.iter().filter(|package| package["source"].is_null()).collect();
    assert!(own.len() >= 9, "only {} packages", own.len());
    for package in own {
        let name = package["name"].as_str().expect("a name");
        assert!(!["hecate", "hecate-cli", "hecate-core"].contains(&name), "`{name}` is another's on crates.io");
    }
    let library = |package: &str| {
        let targets = all.iter().find(|one| one["name"] == package).expect("a package")["targets"].as_array();
        let of_kind = |target: &&Value| target["kind"][0] == "lib";
        targets.and_then(|targets| targets.iter().find(of_kind)).expect("a library")["name"].clone()
    };
    assert_eq!(["hecate-memory", "hecate-memory-core"].map(library), ["hecate", "hecate_core"]);
}
