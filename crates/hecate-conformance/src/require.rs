//! Tests that cannot run everywhere: `HECATE_REQUIRE` names those that must not be skipped.

use std::io::Write;

/// What `HECATE_REQUIRE` can name: the backends that have a column, what a WebGPU adapter may have, NVIDIA's compiler and
/// assembler, the test vectors of another implementation, a small disk that a test may mount, and a network that it may take away.
pub const NAMES: [&str; 11] =
    ["cpu", "cuda", "disk", "f16", "matrices", "network", "nvrtc", "ptxas", "subgroups", "vectors", "wgpu"];

/// What `HECATE_REQUIRE` names; nothing where it is not set.
///
/// # Panics
/// If it holds a name that is none of [`NAMES`], which would require nothing.
pub fn required() -> Vec<String> {
    let list = std::env::var("HECATE_REQUIRE").unwrap_or_default();
    parse(&list).unwrap_or_else(|unknown| {
        panic!("HECATE_REQUIRE={list}: `{unknown}` is unknown; known are {}", NAMES.join(", "))
    })
}

/// Says that what `name` stands for is skipped, and the way out.
///
/// # Panics
/// If `HECATE_REQUIRE` names it.
pub fn skip(name: &str, way_out: &str) {
    assert!(!required().iter().any(|required| required == name), "HECATE_REQUIRE asks for {name}: {way_out}");
    say(&format!("skipped: {name}: {way_out}"));
}

/// A line that is seen even where the output of passing tests is not, so it goes around the test harness.
pub fn say(line: &str) {
    // Nobody is left to tell where standard error is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Names between commas, or the first that is unknown.
fn parse(list: &str) -> Result<Vec<String>, String> {
    // A list that is unset or ends with a comma names nothing there.
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(|name| if NAMES.contains(&name) { Ok(name.to_owned()) } else { Err(name.to_owned()) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_taken() {
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("vectors, cpu"), Ok(vec!["vectors".into(), "cpu".into()]));
        assert_eq!(parse("cpu,vector"), Err("vector".into()));
    }
}
