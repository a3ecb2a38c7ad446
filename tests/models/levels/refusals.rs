//! Configurations that make no sense are refused by name.

use hecate_models::{Config, Error};

#[test]
fn wrong_configurations_are_refused() {
    let refused = |kind: &str, fields: &str, words: &[&str]| {
        let json = format!(r#"{{"hidden_size": 8, "layers": [{{"mixer": {{"kind": "{kind}", {fields}}}}}]}}"#);
        let message = match Config::from_json(&json) {
            Err(error @ Error::Config { .. }) => error.to_string(),
            other => panic!("{json}: {other:?}"),
        };
        words.iter().for_each(|word| assert!(message.contains(word), "{json}: `{word}` is not in: {message}"));
    };
    for kind in ["cms", "conductor"] {
        refused(kind, r#""periods": []"#, &["layers[0].mixer.periods", "at least 1"]);
        refused(kind, r#""periods": [0]"#, &["layers[0].mixer.periods[0]", "at least 1"]);
        refused(kind, r#""periods": [4, 4]"#, &["layers[0].mixer.periods[1]", "is 4", "more than"]);
        refused(kind, r#""periods": [18446744073709551615]"#, &["layers[0].mixer.periods[0]", "at most"]);
        refused(kind, r#""wiring": "ring""#, &["ring", "chained", "independent"]);
        let frozen = r#""memory": {"rule": {"name": "delta", "frozen": 4}}"#;
        refused(kind, frozen, &["layers[0].mixer.memory.rule.frozen", "is 4", "null"]);
        refused(kind, r#""memory": {"heads": 3}"#, &["layers[0].mixer.memory.heads", "divisor of hidden_size"]);
    }
    let decayed = r#""memory": {"rule": {"name": "delta", "erase": "decayed"}}"#;
    refused("cms", decayed, &["layers[0].mixer.memory.rule", "frozen", "decayed"]);
    refused("tnt", decayed, &["layers[0].mixer.memory.rule", "frozen", "decayed"]);
    refused("cms", r#""periods": [16777216], "memory": {"key_dim": 4096}"#, &["layers[0].mixer.periods", "at most"]);
    refused("tnt", r#""locals": []"#, &["layers[0].mixer.locals", "at least 1"]);
    refused("tnt", r#""locals": [3], "shard": 8"#, &["layers[0].mixer.locals[0]", "is 3", "divisor of shard = 8"]);
    refused("tnt", r#""chunk": 0"#, &["layers[0].mixer.chunk", "at least 1"]);
    refused("tnt", r#""shard": 0"#, &["layers[0].mixer.shard", "at least 1"]);
    refused("hope", r#""heads": 3"#, &["layers[0].mixer.heads", "divisor of hidden_size = 8", "head_dim"]);
    refused("hope", r#""chunk": 0"#, &["layers[0].mixer.chunk", "at least 1"]);
    refused("hope", r#""conv": 1"#, &["layers[0].mixer.conv", "at least 2 taps"]);
    refused("hope", r#""head_dim": 16777216"#, &["heads × head_dim × head_dim", "at most"]);
}
