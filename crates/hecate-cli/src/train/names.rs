//! Names that papers and other libraries have for what Hecate has under flags.

use clap::{
    Arg, Command,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
};
use hecate::models::RuleConfig;
use std::ffi::OsStr;

/// A name in small letters without joints, the flags that it is here, and what is not the same, if anything.
/// Without joints `GatedDeltaNet`, `gated-delta-net` and `gated_delta_net` are one name.
type OtherName = (&'static str, &'static str, &'static str);

/// Rules of one name are looked for here before they are unknown.
const OTHER_NAMES: [OtherName; 33] = [
    // Memories that are written to without erasing, and that forget by gates.
    ("linearattention", "--rule hebbian", "layers learn step sizes and how much is kept; there both are 1"),
    ("gatedlinearattention", "--rule gla", ""),
    ("simplegla", "--rule hebbian", ""),
    ("mamba2", "--rule hebbian", "the layer around it is not Mamba's"),
    ("ssd", "--rule hebbian", ""),
    // Those that forget at constant rates, one a head.
    ("retnet", "--rule lightning", "heads forget at other constant rates"),
    ("lightningattention", "--rule lightning", ""),
    // Delta rules: what a key holds is erased before its new value is written.
    ("deltanet", "--rule delta", "layers learn how much is kept; there it is all"),
    ("deltarule", "--rule delta", ""),
    ("gateddelta", "--rule delta --erase decayed", ""),
    ("gateddeltanet", "--rule delta --erase decayed", ""),
    ("gdn", "--rule delta --erase decayed", ""),
    ("deltaproduct", "--rule delta --writes-per-token 2", ""),
    ("gateddeltaproduct", "--rule delta --erase decayed --writes-per-token 2", ""),
    ("gateddeltanet2", "--rule gdn2", ""),
    ("kimideltaattention", "--rule kda", "maps to gates are whole, and not of low rank"),
    ("kimilinear", "--rule kda", "maps to gates are whole, and not of low rank"),
    ("rwkv", "--rule rwkv7", "the layer around it is not RWKV's"),
    // Test-time training: tokens of a mini-batch share a gradient, which `--frozen` counts.
    ("ttt", "--rule delta --frozen 16", "the memory has no layer norm, and forgets"),
    ("tttlinear", "--rule delta --frozen 16", "the memory has no layer norm, and forgets"),
    ("tttmlp", "--rule titans_mlp --frozen 16", "the memory has momentum, and forgets"),
    ("lact", "--rule titans_mlp --frozen 64 --renorm", "columns are set back where LaCT does so with rows"),
    // Titans by its forms of momentum.
    ("titanslookahead", "--rule titans --momentum-form look_ahead", ""),
    ("titansmomentum", "--rule titans", ""),
    // What stands in place of a memory or around it is a mixer, and no rule.
    ("attention", "--mixer attention", ""),
    ("softmax", "--mixer attention", ""),
    ("transformer", "--mixer attention", ""),
    ("mag", "--mixer mag", ""),
    ("mal", "--mixer mal", ""),
    ("mac", "--mixer mac", ""),
    ("cms", "--mixer cms", ""),
    ("tnt", "--mixer tnt", ""),
    ("hope", "--mixer hope", ""),
];

/// Reads the value of `--rule`: a rule's name. Another name for it, or for a rule with options, leads to the flags.
/// The value stays a name: its options are other flags, which may come after it.
#[derive(Clone)]
pub(super) struct RuleNames(PossibleValuesParser);

impl RuleNames {
    /// All rules by their names.
    pub(super) fn new() -> Self {
        Self(PossibleValuesParser::new(RuleConfig::NAMES))
    }
}

impl TypedValueParser for RuleNames {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        // As papers write them, and as files and flags do.
        let plain = value.to_string_lossy().to_lowercase().replace(['_', '-', ' '], "");
        // A rule's own name goes first.
        let known = RuleConfig::NAMES.into_iter().any(|name| value == name);
        let other = OTHER_NAMES.iter().find(|(name, ..)| *name == plain && !known);
        // Rules, and names that nobody knows, are clap's to accept or to refuse with its list.
        let Some((_, flags, differs)) = other else { return self.0.parse_ref(command, arg, value) };
        let name = value.to_string_lossy();
        let told = match *differs {
            "" => format!("`{name}` is `{flags}` here"),
            differs => format!("the nearest to `{name}` is `{flags}`; {differs}"),
        };
        // As other wrong values are told, and with their status.
        Err(command.clone().error(ErrorKind::InvalidValue, told))
    }

    // For `--help`, and for what is close to a name that is unknown.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        defaults,
        train::arguments::{COMPOSED, TrainArgs},
    };
    use clap::Parser;
    use hecate::models::{Config, Vocabulary};

    /// The flags of training alone.
    #[derive(Parser)]
    struct Train {
        #[command(flatten)]
        args: TrainArgs,
    }

    /// What the flags make, or what is said of them.
    /// Bytes need no tokenizer, and no vocabulary changes what a rule is.
    fn config(flags: &str) -> Result<Config, String> {
        let words = ["train"].into_iter().chain(flags.split(' '));
        let train = Train::try_parse_from(words).map_err(|error| error.to_string())?;
        train.args.model().config(&Vocabulary::Bytes).map_err(|error| error.to_string())
    }

    /// Each name is told with its flags, however it is written, and the flags train what they say.
    #[test]
    fn other_names_lead_to_flags_that_are_there() {
        for (name, flags, _) in OTHER_NAMES {
            let told = config(&format!("--rule {name}")).expect_err(name);
            assert!(told.contains(&format!("`{flags}`")), "{told}");
            config(flags).unwrap_or_else(|told| panic!("{name}: {flags}: {told}"));
        }
        // As papers, repositories and configurations write it.
        for name in ["GatedDeltaNet", "gated-deltanet", "gated_delta_net", "Gated_Delta"] {
            let told = config(&format!("--rule {name}")).expect_err(name);
            assert!(told.contains(&format!("`{name}` is `--rule delta --erase decayed` here")), "{told}");
        }
        // No rule of Hecate is hidden by a name of others.
        for name in RuleConfig::NAMES {
            config(&format!("--rule {name}")).unwrap_or_else(|told| panic!("{name}: {told}"));
        }
        let unknown = config("--rule elephant").expect_err("no such rule");
        assert!(unknown.contains("possible values") && unknown.contains("hebbian"), "{unknown}");
    }

    /// What the library makes of a name is what the command trains by it.
    /// Otherwise one name would be two models, by whether a program or a flag says it.
    #[test]
    fn the_command_and_the_library_have_the_same_defaults() {
        let (layers, width, heads) = (defaults::LAYERS, defaults::WIDTH, defaults::HEADS);
        let rules = RuleConfig::NAMES.map(|name| (name, format!("--rule {name}")));
        let mixers = COMPOSED.map(|name| (name, format!("--mixer {name}")));
        for (name, flags) in rules.into_iter().chain(mixers) {
            let library = Config::uniform(name, layers, width, heads).expect(name);
            assert_eq!(library, config(&flags).expect(name), "{name}");
        }
    }
}
