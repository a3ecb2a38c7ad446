//! Configurations that make no sense are refused by name, the others survive being written down.

use super::all;
use hecate_models::{Config, MixerConfig};

#[test]
fn configurations_survive_json() {
    for (name, config) in all() {
        let json = config.to_json().expect("JSON");
        assert_eq!(Config::from_json(&json).expect(&name), config, "{json}");
    }
    for name in ["mag", "mal", "mac"] {
        Config::uniform(name, 2, 64, 4).expect(name);
        let short = format!(r#"{{"layers": [{{"mixer": {{"kind": "{name}"}}}}]}}"#);
        Config::from_json(&short).expect(name);
    }
    let lmm = Config::from_json(r#"{"layers": [{"mixer": {"kind": "lmm"}}]}"#).expect("a configuration");
    assert!(matches!(lmm.layers[0].mixer, MixerConfig::Memory(_)));
}

#[test]
fn wrong_configurations_are_refused() {
    let mixer = |kind: &str, fields: &str| {
        format!(r#"{{"hidden_size": 8, "layers": [{{"mixer": {{"kind": "{kind}", {fields}}}}}]}}"#)
    };
    let cases: [(String, &[&str]); 11] = [
        (mixer("mac", r#""segment": 0"#), &["layers[0].mixer.segment", "at least 1"]),
        (mixer("mac", r#""segment": 18446744073709551615"#), &["layers[0].mixer.segment", "at most"]),
        (
            mixer("mac", r#""segment": 10, "memory": {"rule": {"name": "delta", "frozen": 4}}"#),
            &["layers[0].mixer.segment", "multiple of 4", "frozen"],
        ),
        (mixer("mag", r#""segment": 4"#), &["segment", "persistent"]),
        (mixer("mag", r#""persistent": 18446744073709551615"#), &["layers[0].mixer.persistent", "at most"]),
        (mixer("mal", r#""memory": {"heads": 3}"#), &["layers[0].mixer.memory.heads", "divisor"]),
        (mixer("mal", r#""attention": {"window": 1}"#), &["layers[0].mixer.attention.window", "at least 2"]),
        (mixer("mac", r#""attention": {"head_dim": 3}"#), &["layers[0].mixer.attention.head_dim", "even"]),
        (mixer("mac", r#""memory": {"rule": {"name": "moneto"}}"#), &["moneto", "titans"]),
        (
            mixer("mac", r#""memory": {"rule": {"name": "lif"}}"#),
            &["layers[0].mixer.memory.rule", "lif", "without a write"],
        ),
        (mixer("mab", r#""persistent": 1"#), &["mab", "mag", "mal", "mac"]),
    ];
    for (json, words) in cases {
        let message = Config::from_json(&json).expect_err(&json).to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "{json}: `{word}` is not in: {message}"));
    }
}
