//! What the fuzz tests reach: every public constructor and parser of the core, of models and of training, as their source has them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Beginnings of names of functions that take what users wrote, whatever they return.
const PARSERS: [&str; 9] = ["read", "load", "open", "parse", "decode", "resume", "named", "evaluate", "from"];

/// What is not called here, and why it need not be.
const EXCEPTIONS: [(&str, &str); 12] = [
    ("DeviceId::new", "a name for messages; each call is another identity"),
    ("Error::config", "makes a message of any text"),
    ("Error::other", "makes a message of any text"),
    ("Error::io", "makes a message of any text"),
    ("Error::checkpoint", "makes a message of any text"),
    ("LinearInputs::try_build", "lists the arrays of a call that was checked"),
    ("LinearOutputs::try_build", "lists the arrays of a call that was checked"),
    ("LinearState::try_build", "lists the matrices of a call that was checked"),
    ("Projection::new", "in a module of its crate alone; `SlidingWindow` and memories call it"),
    ("open_with", "`Run::lock` calls it"),
    ("parse_json", "`Trained::load_as` and `Trainer::resume` call it"),
    ("read_file", "`Trained::load` and `Parameters::load` call it"),
];

/// Files with types that are read from JSON, and the call that reads them here.
const FROM_JSON: [(&str, &str); 19] = [
    ("hecate-core/src/family/", "Config::from_json"),
    ("hecate-core/src/quantized/", "Config::from_json"),
    ("hecate-core/src/rule.rs", "Config::from_json"),
    ("hecate-core/src/rules/", "Config::from_json"),
    ("hecate-models/src/architectures", "Opened::open"),
    ("hecate-models/src/open/", "Opened::open"),
    ("hecate-models/src/lora.rs", "Trainer::resume_with"),
    ("hecate-models/src/config.rs", "Config::from_json"),
    ("hecate-models/src/config/", "Config::from_json"),
    ("hecate-train/src/metrics.rs", "read_metrics"),
    ("hecate-models/src/model.rs", "Trained::load_as"),
    ("hecate-train/src/monitor.rs", "read_metrics"),
    ("hecate-train/src/trainer/", "Trainer::resume"),
    ("hecate-train/src/optimizer.rs", "Trainer::resume"),
    ("hecate-models/src/precision.rs", "Trainer::resume"),
    ("hecate-models/src/random.rs", "Trainer::resume"),
    ("hecate-train/src/schedule.rs", "Trainer::resume"),
    ("hecate-models/src/text.rs", "Trainer::resume"),
    ("hecate-models/src/text/", "Trainer::resume"),
];

/// All Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false if path.extension().is_some_and(|end| end == "rs") => all.push(path),
            false => {}
        }
    }
    all.sort();
    all
}

/// Files of the core, of models and of training, as paths from `crates`, with their text up to their own tests.
fn sources() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let all =
        ["hecate-core/src", "hecate-models/src", "hecate-train/src"].map(|folder| files(&crates.join(folder))).concat();
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a file");
        let name = path.strip_prefix(&crates).expect("a path below").display().to_string().replace('\\', "/");
        (name, text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned())
    };
    all.into_iter().map(source).collect()
}

/// The type that a line begins an `impl` of.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let mut depth = 0;
    let end = rest.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        (depth == 0 && c != '>').then_some(at)
    });
    // Of a trait, what it is implemented for.
    let name = rest[end?..].trim().rsplit(" for ").next()?;
    Some(name.chars().take_while(|c| c.is_alphanumeric()).collect())
}

/// Public functions with arguments that make a value of their type, or take what users wrote.
fn found(text: &str) -> Vec<String> {
    let (mut of, mut at, mut all) = (String::new(), 0, Vec::new());
    for line in text.split_inclusive('\n') {
        let (code, whole) = (line.trim_start(), &text[at..]);
        at += line.len();
        of = implemented(code).unwrap_or(of);
        if line.starts_with('}') {
            of.clear();
        }
        let public =
            code.strip_prefix("pub fn ").or_else(|| code.strip_prefix("fn ").filter(|_| code.contains("fn from_str(")));
        if let Some(rest) = public {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let signature = signature(whole);
            all.extend(
                is_asked(&name, signature).then(|| [&of, "::", &name].concat().trim_start_matches(':').to_owned()),
            );
        }
    }
    all
}

/// What comes before a function's body; braces and semicolons of its arguments are within brackets.
fn signature(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        depth += i32::from("([".contains(c)) - i32::from(")]".contains(c));
        depth == 0 && "{;".contains(c)
    });
    &text[..end.unwrap_or(text.len())]
}

/// Whether a function of this signature is to be called by these tests.
fn is_asked(name: &str, signature: &str) -> bool {
    let words: String = signature.split_whitespace().collect::<Vec<_>>().join(" ");
    let method = words.contains("self,") || words.contains("self)");
    let makes = !method && words.rsplit_once("->").is_some_and(|(_, made)| made.contains("Self"));
    let parses = PARSERS.iter().any(|word| name == *word || name.starts_with(&format!("{word}_")));
    (makes || parses) && !words.contains(&format!("fn {name}()"))
}

/// Text of the fuzz tests, without types in calls: `Trainer::<Cpu>::resume(` is `Trainer::resume(`.
fn tests() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let own = |path: &PathBuf| !path.ends_with("complete.rs");
    let texts = files(&here).into_iter().filter(own).map(|path| fs::read_to_string(path).expect("a file"));
    texts.collect::<String>().replace("::<Cpu>", "")
}

/// Whether tests call it, or tell by its name what a method did. The first letter of a name is no part of another.
fn is_called(tests: &str, name: &str) -> bool {
    let name = name.strip_suffix("::from_str").map_or_else(|| format!("{name}("), |of| format!("parse::<{of}>("));
    let label = format!("\"{}\"", name.trim_end_matches('('));
    let starts = |at: usize| !tests[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    tests.contains(&label) || tests.match_indices(&name).any(|(at, _)| starts(at))
}

#[test]
fn every_constructor_and_parser_is_called() {
    let (tests, sources) = (tests(), sources());
    let all: BTreeSet<String> = sources.iter().flat_map(|(_, text)| found(text)).collect();
    assert!(all.len() > 60, "{all:?}");
    for (name, why) in EXCEPTIONS {
        assert!(all.contains(name), "`{name}` is no constructor any more: take it from EXCEPTIONS ({why})");
        assert!(!is_called(&tests, name), "`{name}` is called: take it from EXCEPTIONS");
    }
    let excepted = |name: &&String| EXCEPTIONS.iter().any(|(known, _)| known == name);
    let missing: Vec<_> = all.iter().filter(|name| !excepted(name) && !is_called(&tests, name)).collect();
    assert!(missing.is_empty(), "no test in tests/fuzz calls {missing:?}: call them with what makes no sense");
}

#[test]
fn every_type_from_json_is_read() {
    let (tests, sources) = (tests(), sources());
    let reads: Vec<&String> =
        sources.iter().filter(|(_, text)| text.contains("Deserialize")).map(|(path, _)| path).collect();
    // Reads any type of its crate.
    let reads = reads.into_iter().filter(|path| !path.ends_with("/json.rs"));
    let mut unused: BTreeSet<&str> = FROM_JSON.iter().map(|(place, _)| *place).collect();
    for path in reads {
        let place = FROM_JSON.iter().find(|(place, _)| path.starts_with(place));
        let (place, call) =
            place.unwrap_or_else(|| panic!("{path} has types from JSON: say in FROM_JSON what reads them"));
        assert!(is_called(&tests, call), "no test in tests/fuzz calls `{call}`, which reads {path}");
        unused.remove(place);
    }
    assert!(unused.is_empty(), "FROM_JSON names {unused:?}, which have no types from JSON");
}

#[test]
fn signatures_are_understood() {
    let text = "impl<R: Rule<Of>, T> Trait<R> for Made<R, T> {\n    pub fn new(\n        A { a }: A,\n    ) -> Result<Self> {\n    }\n    \
                pub fn none() -> Self {}\n    pub fn with(self, a: u8) -> Self {}\n    pub(crate) fn own(a: u8) -> Self {}\n}\n\
                impl FromStr for Word {\n    fn from_str(text: &str) -> Result<Self> {}\n}\npub fn read_it(a: u8) -> u8 {}\n";
    assert_eq!(found(text), ["Made::new", "Word::from_str", "read_it"]);
    for (tests, called) in [("Made::new(1)", true), ("Unmade::new(1)", false), ("\"Made::new\"", true), ("new(", false)]
    {
        assert_eq!(is_called(tests, "Made::new"), called, "{tests}");
    }
    assert!(is_called("word.parse::<Word>()", "Word::from_str"));
}
