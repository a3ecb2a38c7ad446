//! The features of this build, and the command that makes a program with more of them.

use hecate::{BackendKind, models::Vocabulary};

/// Features of the package, as Cargo takes them, and whether this build has them.
fn features() -> impl Iterator<Item = (&'static str, bool)> {
    let backends = BackendKind::ALL.map(|backend| (backend.name(), backend.is_built_in()));
    let own = [("serve", cfg!(feature = "serve")), ("tokenizer", Vocabulary::READS_TOKENIZERS)];
    backends.into_iter().chain(own)
}

/// What to type in the repository's folder for a program with what this one has and `lacking`. Every later `hecate` is that
/// program, whatever else is built.
pub(crate) fn install(lacking: &[&str]) -> String {
    // A build has the processor unless it was asked to do without.
    let wanted = |(name, has): (&'static str, bool)| (lacking.contains(&name) || has && name != "cpu").then_some(name);
    let all: Vec<_> = features().filter_map(wanted).collect();
    format!("`cargo install --path crates/hecate-cli --features {}`", all.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A build without what the last one had would break what somebody does with it.
    #[test]
    fn nothing_is_lost_by_a_new_build() {
        for (lacking, _) in features() {
            let told = install(&[lacking]);
            let list = told.trim_matches('`').split_once("--features ").expect("a list").1;
            let told: Vec<_> = list.split(',').collect();
            let expected = features().filter(|&(name, has)| name == lacking || has && name != "cpu");
            assert_eq!(told, expected.map(|(name, _)| name).collect::<Vec<_>>());
        }
    }
}
