//! The documentation of a library says of what needs a feature that it needs it.

use std::{fs, path::Path};

#[test]
fn documentation_names_features() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut seen = 0;
    for entry in fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        // A program has no page, and a crate without features nothing to say.
        let Ok(library) = fs::read_to_string(folder.join("src/lib.rs")) else { continue };
        if !manifest.contains("\n[features]\n") {
            continue;
        }
        seen += 1;
        let name = folder.display();
        assert!(manifest.contains(r#"rustdoc-args = ["--cfg", "docsrs"]"#), "{name}/Cargo.toml");
        assert!(library.contains("#![cfg_attr(docsrs, feature(doc_cfg))]"), "{name}/src/lib.rs");
    }
    assert!(seen > 0, "no crate has features");
}
