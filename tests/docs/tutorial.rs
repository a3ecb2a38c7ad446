//! The tutorial is made of whole programs, and prints the example of a model of one's own as it is.

use std::{fs, path::Path};

/// A file of the repository.
fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The Rust blocks of a document.
fn blocks(text: &str) -> Vec<&str> {
    text.split("\n```rust\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

#[test]
fn the_tutorial_prints_the_example() {
    let (tutorial, example) = (file("docs/tutorial.md"), file("crates/hecate/examples/own_model.rs"));
    let program = example.split_once("\n\n").unwrap().1;
    assert!(blocks(&tutorial).contains(&program.trim_end()), "docs/tutorial.md has another own_model.rs");
}

/// Documentation tests would complete what is left out or hidden: a reader cannot.
#[test]
fn every_block_is_a_whole_program() {
    let tutorial = file("docs/tutorial.md");
    let blocks = blocks(&tutorial);
    assert!(blocks.len() >= 4);
    for block in blocks {
        assert!(block.contains("\nfn main() -> "), "no program: {block}");
        assert!(!block.lines().any(|line| line == "#" || line.starts_with("# ")), "hidden lines: {block}");
    }
    // Attributes as `no_run` would skip one.
    assert!(!tutorial.contains("```rust,") && !tutorial.contains("```ignore"));
}
