//! The matrix that readers see is that of the runs recorded in docs/conformance.tsv, and every column is tested as a whole.

use hecate_conformance::record::{COLUMNS, Record, cells, rules};
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

/// What the README says between its marks.
fn block(record: &Record) -> String {
    let rules = rules();
    let names: Vec<String> = rules.iter().map(|name| format!("`{name}`")).collect();
    let (count, primitives) = (rules.len(), cells().len() - rules.len());
    format!(
        "{count} rules, {}, and {primitives} primitives run on each backend, forward and backward. Errors are relative to \
         64-bit equations, the root mean square over an array; [docs/conformance.tsv](docs/conformance.tsv) has every \
         cell's, as `hecate check --record` wrote it on the device named here.\n\n{}",
        names.join(", "),
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
