//! Fields of a configuration by the flags that set them: whoever typed `--width` is not told of `hidden_size` alone.
//!
//! The library checks configurations, whoever made them, and names fields by their paths in `config.json`. Errors of a
//! file keep these names: they are what its writer can change.

use crate::error::Error;

/// Fields and their flags; a field that several mixers have has one flag.
// A field that is missing here keeps its own name, so that a new one is no error.
const FLAGS: [(&str, &str); 20] = [
    ("hidden_size", "--width"),
    ("intermediate_size", "--mlp"),
    ("layers", "--layers"),
    ("heads", "--heads"),
    ("key_dim", "--key-dim"),
    ("value_dim", "--value-dim"),
    // Heads of attention and hope have one width.
    ("head_dim", "--key-dim"),
    ("conv", "--conv"),
    ("window", "--window"),
    ("persistent", "--persistent"),
    ("segment", "--segment"),
    ("periods", "--periods"),
    ("chunk", "--chunk"),
    ("locals", "--locals"),
    ("shard", "--shard"),
    ("momentum", "--momentum"),
    ("retain", "--retain"),
    ("horizon", "--horizon"),
    ("writes_per_token", "--writes-per-token"),
    // One flag sets three shares, of which this one is looked at first.
    ("attention_dropout", "--dropout"),
];

/// Options of a rule whose flags have other names than those of the layer.
const OF_RULES: [(&str, &str); 3] =
    [("rule.frozen", "--frozen"), ("rule.momentum", "--momentum-form"), ("rule.renorm", "--renorm")];

/// The error of a configuration that was made of flags: beside the field it names the flags.
pub(crate) fn by_flags(error: hecate::models::Error) -> Error {
    // Anything else, such as a device's failure, is no matter of flags.
    let hecate::models::Error::Config { field, found, expected } = error else { return error.into() };
    let (flags, expected) = (flags_of(&field), in_flags(&field, expected));
    // Such as the number of parameters, which no one flag decides.
    if flags.is_empty() {
        return hecate::models::Error::config(field, found, expected).into();
    }
    Error::flag(format!("{} ({field})", flags.join(", ")), format!("{found}, expected {expected}"))
}

/// Flags that a field is set by, or the sizes that are its factors.
fn flags_of(field: &str) -> Vec<&'static str> {
    if let Some((_, flag)) = OF_RULES.iter().find(|(option, _)| field.ends_with(option)) {
        return vec![flag];
    }
    // Beside a memory these heads share the width of the stream: `--key-dim` is the memory's.
    if field.ends_with("attention.head_dim") {
        return vec!["--width", "--heads"];
    }
    // After its place in the model: `layers` of a path is no size.
    let own = field.rsplit('.').next().unwrap_or(field);
    let words = own.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let mut flags: Vec<_> = words.filter_map(|word| Some(FLAGS.iter().find(|(name, _)| *name == word)?.1)).collect();
    // A factor may come twice.
    flags.dedup();
    flags
}

/// What is accepted, with flags in the place of other fields' names.
fn in_flags(field: &str, expected: String) -> String {
    // No flag gives these heads a width.
    let expected = if field.contains("attention.") { expected.replace(", or head_dim given", "") } else { expected };
    // Other names are words as well.
    let fields = FLAGS.iter().filter(|(name, _)| name.ends_with("_size") || name.ends_with("_dim"));
    fields.fold(expected, |text, (name, flag)| text.replace(name, &format!("`{flag}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_by_their_flags() {
        let told =
            |field: &str, expected: &str| by_flags(hecate::models::Error::config(field, 3, expected)).to_string();
        for (field, expected, message) in [
            ("hidden_size", "at least 4", "--width (hidden_size): 3, expected at least 4"),
            // Other fields that would help are flags too.
            (
                "layers[0].mixer.heads",
                "a divisor of hidden_size = 8, or key_dim and value_dim given",
                "--heads (layers[0].mixer.heads): 3, expected a divisor of `--width` = 8, or `--key-dim` and `--value-dim` given",
            ),
            // These heads have a width of their own in files alone.
            (
                "layers[0].mixer.attention.heads",
                "a divisor of hidden_size = 8, or head_dim given",
                "--heads (layers[0].mixer.attention.heads): 3, expected a divisor of `--width` = 8",
            ),
            // A product is named by its factors.
            (
                "layers[0].mixer.heads × head_dim × head_dim",
                "at most 2",
                "--heads, --key-dim (layers[0].mixer.heads × head_dim × head_dim): 3, expected at most 2",
            ),
            // A word that the layer has too, for a number.
            (
                "layers[0].mixer.memory.rule.momentum",
                "heavy_ball",
                "--momentum-form (layers[0].mixer.memory.rule.momentum): 3, expected heavy_ball",
            ),
            (
                "layers[0].mixer.attention.head_dim",
                "an even number",
                "--width, --heads (layers[0].mixer.attention.head_dim): 3, expected an even number",
            ),
            // What no flag sets, and what no one flag does.
            ("norm_eps", "more", "`norm_eps` is 3, expected more"),
            ("number of parameters", "at most 2", "`number of parameters` is 3, expected at most 2"),
        ] {
            assert_eq!(told(field, expected), message);
        }
    }
}
