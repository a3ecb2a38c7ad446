//! The matrix that readers see is that of the runs recorded in docs/conformance.tsv. Every rule is in the one list, and
//! every column is tested as a whole.

use hecate_conformance::record::{COLUMNS, Record, rules};
use std::{
    fs,
    path::{Path, PathBuf},
};

const BEGIN: &str = "<!-- matrix -->";
const END: &str = "<!-- /matrix -->";

/// What rewrites the files that these tests compare.
const UPDATE: &str = "`UPDATE=1 cargo test -p hecate-tests --test matrix` rewrites it";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Compares a file with what it should be, or writes it where `UPDATE` is set.
fn hold(file: &str, found: &str, wanted: &str) {
    if found == wanted {
        return;
    }
    assert!(std::env::var_os("UPDATE").is_some(), "{file} is not as it should be; {UPDATE}. It should be:\n{wanted}");
    fs::write(path(file), wanted).unwrap_or_else(|error| panic!("{file}: {error}"));
}

/// The record with a row for each cell of each column.
fn record() -> Record {
    let text = read("docs/conformance.tsv");
    let mut record = Record::parse(&text).unwrap_or_else(|why| panic!("docs/conformance.tsv: {why}"));
    record.complete();
    hold("docs/conformance.tsv", &text, &record.to_string());
    record
}

/// What the README says between its marks. It counts and names no rules, so that a new one changes nothing here.
fn block(record: &Record) -> String {
    format!(
        "Errors are relative to 64-bit equations, the root mean square over an array. [Rules](docs/rules.md) lists all \
         rules; [docs/conformance.tsv](docs/conformance.tsv) has the errors of every rule on every \
         backend, as `hecate check --record` wrote them on the device named here.\n\n{}",
        record.table(),
    )
}

#[test]
fn readme_shows_the_record() {
    let text = read("README.md");
    let (before, rest) = text.split_once(BEGIN).unwrap_or_else(|| panic!("README.md has no line `{BEGIN}`"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("README.md has no line `{END}`"));
    hold("README.md", &text, &format!("{before}{BEGIN}\n{}{END}{after}", block(&record())));
}

/// Continuous integration can run these two; CUDA's rows wait for a GPU, and the table says so where they do.
#[test]
fn columns_that_run_anywhere_are_recorded() {
    let record = record();
    for column in ["cpu", "wgpu"] {
        let missing = record.unrecorded(column);
        let way_out = format!("run `hecate check --device {column} --record docs/conformance.tsv`");
        assert!(missing.is_empty(), "nothing is recorded of {} on {column}: {way_out}", missing.join(", "));
    }
}

/// Each column's file makes its tests from the one list, and looks whether it has them all.
#[test]
fn every_column_is_tested_as_a_whole() {
    for column in COLUMNS {
        let mut source = read(&format!("tests/{column}.rs"));
        // What columns on GPUs share.
        if source.contains("\nmod gpu;\n") {
            source += &read("tests/gpu/mod.rs");
        }
        for call in ["conformance!(backends);", "every_cell_is_tested();", "assert_recorded("] {
            assert!(source.contains(call), "tests/{column}.rs does not call `{call}`");
        }
    }
}

/// Types of a source's rules: those that it implements a rule's trait for, and other names of theirs.
fn rules_of(source: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let traits = [" Rule for ", " DeepRule for ", " LinearRule for "];
    let implemented = source.lines().filter(|line| line.starts_with("impl")).filter_map(|line| {
        let (before, of) = traits.iter().find_map(|wanted| line.split_once(wanted))?;
        // A family's `impl<R: DeepRule> Rule for R` is of no rule, nor is that of what holds any rule.
        (!before.contains("Rule>")).then(|| name(of))
    });
    let mut found: Vec<String> = implemented.collect();
    let aliases = source.lines().filter_map(|line| line.strip_prefix("pub type ")?.split_once(" = "));
    let aliases: Vec<_> = aliases.filter(|(_, of)| found.contains(&name(of))).map(|(alias, _)| name(alias)).collect();
    found.extend(aliases);
    found
}

/// Adds the text of every Rust file of a folder.
fn sources(folder: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            sources(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push(fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        }
    }
}

/// A rule outside of the list would compile, and no test of any column would be made of it.
#[test]
fn every_rule_is_in_the_list() {
    macro_rules! types {
        ($($rule:ident),*) => { vec![$(stringify!($rule)),*] };
    }
    let listed = hecate_core::for_each_rule!(types);
    let mut texts = Vec::new();
    sources(&path("crates/hecate-core/src"), &mut texts);
    let found: Vec<String> = texts.iter().flat_map(|text| rules_of(text)).collect();
    let missing: Vec<_> = found.iter().filter(|rule| !listed.contains(&rule.as_str())).collect();
    assert!(missing.is_empty(), "`rule_list!` in crates/hecate-core/src/rules/mod.rs does not name {missing:?}");
    // What the search overlooks it cannot miss.
    let unseen: Vec<_> = listed.iter().filter(|rule| !found.iter().any(|name| name == *rule)).collect();
    assert!(unseen.is_empty(), "no `impl Rule`, `impl LinearRule` or `impl DeepRule` was found of {unseen:?}");
}

#[test]
fn rules_are_found_in_sources() {
    let source = "impl Rule for Foo {\nimpl<M: Memory> DeepRule for Bar<M> {\nimpl<R: DeepRule> Rule for R {\n\
                  pub type BarMatrix = Bar<Matrix>;\npub type Other = Vec<u8>;\n/// impl Rule for Baz\n";
    assert_eq!(rules_of(source), ["Foo", "Bar", "BarMatrix"]);
}

/// The first cell of a row names a rule, or several.
#[test]
fn every_rule_is_documented() {
    let text = read("docs/rules.md");
    let cells: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next()).collect();
    let has = |rule: &str| cells.iter().any(|cell| cell.split('`').any(|name| name == rule));
    let missing: Vec<_> = rules().into_iter().filter(|rule| !has(rule)).collect();
    assert!(missing.is_empty(), "the table of docs/rules.md has no row of {missing:?}");
}
