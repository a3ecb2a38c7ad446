//! What llama.cpp calls the fields and arrays of families that are built here.

use super::{Change, metadata::Metadata};
use crate::{Error, Result, bounds::LAYERS, open::arrays::Array};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// The words of one architecture.
#[derive(Debug)]
pub(super) struct Dialect {
    /// `general.architecture`, which begins the keys of its fields.
    architecture: &'static str,
    /// The family in `config.json`.
    model_type: &'static str,
    /// Keys of whole and other numbers, and the fields that they are.
    fields: &'static [(&'static str, &'static str)],
    /// Keys that do not change what is computed, or that are looked at by themselves.
    beside: &'static [&'static str],
    /// Parts of names in blocks, the parts that they are, and what was done to the values.
    names: &'static [(&'static str, &'static str, Values)],
}

/// What was done to the values of an array.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Nothing.
    Kept,
    /// [`Change::Neighbours`], in heads of the model's width.
    Turned,
    /// [`Change::OneMore`].
    OneMore,
    /// [`Change::MinusExponential`].
    Decay,
    /// Taps `[channels, W]`, which were `[channels, 1, W]`.
    Taps,
}

/// Keys whose value has to be this one, where they are there: other values would change what is computed.
const FIXED: [(&str, &[&str]); 7] = [
    ("rope.scaling.type", &["\"none\""]),
    ("rope.scaling.factor", &["1.0", "0.0"]),
    ("rope.scale_linear", &["1.0"]),
    ("expert_count", &["0"]),
    ("expert_used_count", &["0"]),
    ("attention.causal", &["true"]),
    ("attention.sliding_window", &["0"]),
];

const LLAMA: Dialect = Dialect {
    architecture: "llama",
    model_type: "llama",
    fields: &[
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
    ],
    beside: &[],
    names: &[
        ("attn_norm.weight", "input_layernorm.weight", Values::Kept),
        ("attn_q.weight", "self_attn.q_proj.weight", Values::Turned),
        ("attn_k.weight", "self_attn.k_proj.weight", Values::Turned),
        ("attn_v.weight", "self_attn.v_proj.weight", Values::Kept),
        ("attn_output.weight", "self_attn.o_proj.weight", Values::Kept),
        ("ffn_norm.weight", "post_attention_layernorm.weight", Values::Kept),
        ("ffn_gate.weight", "mlp.gate_proj.weight", Values::Kept),
        ("ffn_up.weight", "mlp.up_proj.weight", Values::Kept),
        ("ffn_down.weight", "mlp.down_proj.weight", Values::Kept),
        ("output_norm.weight", "model.norm.weight", Values::Kept),
    ],
};

const QWEN35: Dialect = Dialect {
    architecture: "qwen35",
    model_type: "qwen3_5_text",
    fields: &[
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
        ("full_attention_interval", "full_attention_interval"),
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
    ],
    // Texts have the same position on all three axes that sections divide.
    beside: &["ssm.inner_size", "attention.recurrent_layers", "nextn_predict_layers", "rope.dimension_sections"],
    names: &[
        ("attn_norm.weight", "input_layernorm.weight", Values::OneMore),
        ("attn_q.weight", "self_attn.q_proj.weight", Values::Kept),
        ("attn_k.weight", "self_attn.k_proj.weight", Values::Kept),
        ("attn_v.weight", "self_attn.v_proj.weight", Values::Kept),
        ("attn_output.weight", "self_attn.o_proj.weight", Values::Kept),
        ("attn_q_norm.weight", "self_attn.q_norm.weight", Values::OneMore),
        ("attn_k_norm.weight", "self_attn.k_norm.weight", Values::OneMore),
        ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", Values::Kept),
        ("attn_gate.weight", "linear_attn.in_proj_z.weight", Values::Kept),
        ("ssm_beta.weight", "linear_attn.in_proj_b.weight", Values::Kept),
        ("ssm_alpha.weight", "linear_attn.in_proj_a.weight", Values::Kept),
        ("ssm_conv1d.weight", "linear_attn.conv1d.weight", Values::Taps),
        ("ssm_a", "linear_attn.A_log", Values::Decay),
        ("ssm_dt.bias", "linear_attn.dt_bias", Values::Kept),
        ("ssm_norm.weight", "linear_attn.norm.weight", Values::Kept),
        ("ssm_out.weight", "linear_attn.out_proj.weight", Values::Kept),
        ("post_attention_norm.weight", "post_attention_layernorm.weight", Values::OneMore),
        ("ffn_gate.weight", "mlp.gate_proj.weight", Values::Kept),
        ("ffn_up.weight", "mlp.up_proj.weight", Values::Kept),
        ("ffn_down.weight", "mlp.down_proj.weight", Values::Kept),
        ("output_norm.weight", "model.norm.weight", Values::OneMore),
    ],
};

/// All that are known.
const ALL: [&Dialect; 2] = [&LLAMA, &QWEN35];

/// Keys of every architecture that are looked at by themselves, or say how the model was trained.
const BESIDE: [&str; 8] = [
    "block_count",
    "context_length",
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

impl Dialect {
    /// The one that a file is in.
    ///
    /// # Errors
    /// [`Error::Config`] for an architecture that is not built, and a model in several files.
    pub(super) fn of(metadata: &Metadata) -> Result<&'static Self> {
        let architecture = metadata.text("general.architecture")?.unwrap_or("missing");
        if let Some(parts) = metadata.optional_size("split.count")?.filter(|&parts| parts > 1) {
            return Err(Error::config("split.count", parts, "1: join the files with llama-gguf-split first"));
        }
        ALL.into_iter().find(|dialect| dialect.architecture == architecture).ok_or_else(|| {
            let expected = "`llama` or `qwen35`: others are not read from GGUF files; see the families of folders";
            Error::config("general.architecture", format!("`{architecture}`"), expected)
        })
    }

    /// The fields of `config.json`.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that is missing, not understood, or of another value than it may have.
    pub(super) fn fields(&self, metadata: &Metadata, arrays: &[Array]) -> Result<Map<String, Value>> {
        self.check(metadata)?;
        let find = |name: &str| arrays.iter().find(|array| array.stored == name);
        let mut fields = Map::new();
        for (key, field) in self.fields {
            if let Some(value) = metadata.one(&self.key(key))? {
                fields.insert((*field).to_owned(), value.clone());
            }
        }
        let tokens = find("token_embd.weight").map_or(0, |table| table.rows()[0]);
        let layers = self.guessing(metadata)?.start;
        let width = self.head_width(metadata)?;
        let rest = json!({
            "model_type": self.model_type, "vocab_size": tokens, "num_hidden_layers": layers, "head_dim": width,
            "tie_word_embeddings": find("output.weight").is_none()
        });
        fields.extend(rest.as_object().cloned().unwrap_or_default());
        self.add_rotary(metadata, &mut fields, width)?;
        if self.architecture == QWEN35.architecture {
            self.add_memory(metadata, &mut fields, layers)?;
        }
        Ok(fields)
    }

    /// Numbers of the blocks behind the model's own, which guess tokens further on.
    ///
    /// # Errors
    /// [`Error::Config`] for numbers of blocks that are missing, or none.
    pub(super) fn guessing(&self, metadata: &Metadata) -> Result<Range<u64>> {
        let all = metadata.size(&self.key("block_count"))?;
        let guessing = metadata.optional_size(&self.key("nextn_predict_layers"))?.unwrap_or(0);
        Ok(all.saturating_sub(guessing)..all)
    }

    /// A key of this architecture.
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Refuses keys that are not understood, and values that would change what is computed.
    fn check(&self, metadata: &Metadata) -> Result<()> {
        let own = self.key("");
        for key in metadata.keys().filter(|key| key.starts_with(&own)) {
            let name = &key[own.len()..];
            let fixed = FIXED.iter().find(|(fixed, _)| *fixed == name);
            let known = self.fields.iter().map(|(known, _)| known).chain(self.beside).chain(&BESIDE);
            match fixed {
                Some((_, allowed)) => {
                    let found = metadata.one(key)?.unwrap_or(&Value::Null).to_string();
                    if !allowed.contains(&found.as_str()) {
                        let expected = format!("{}: nothing else is built yet", allowed.join(" or "));
                        return Err(Error::config(key, found, expected));
                    }
                }
                None if known.into_iter().any(|known| *known == name) => {}
                None => {
                    return Err(Error::config(key, "there", "keys that are understood: this one may change the model"));
                }
            }
        }
        Ok(())
    }

    /// Channels of a head.
    fn head_width(&self, metadata: &Metadata) -> Result<u64> {
        let heads = metadata.size(&self.key("attention.head_count"))?;
        let share = metadata.size(&self.key("embedding_length"))?.checked_div(heads).unwrap_or(0);
        let width = metadata.optional_size(&self.key("attention.key_length"))?.unwrap_or(share);
        let key = self.key("attention.value_length");
        match metadata.optional_size(&key)?.filter(|&values| values != width) {
            Some(values) => Err(Error::config(key, values, format!("{width}, as keys have"))),
            None => Ok(width),
        }
    }

    /// How many of a head's channels rotary positions turn.
    fn add_rotary(&self, metadata: &Metadata, fields: &mut Map<String, Value>, width: u64) -> Result<()> {
        let key = self.key("rope.dimension_count");
        let Some(channels) = metadata.optional_size(&key)?.filter(|&channels| channels != width) else {
            return Ok(());
        };
        if self.architecture == LLAMA.architecture {
            return Err(Error::config(key, channels, format!("{width}, all channels of a head")));
        }
        // A share is rounded down to whole channels.
        fields.insert("partial_rotary_factor".to_owned(), json!((channels as f64 + 0.25) / width as f64));
        Ok(())
    }

    /// Sizes of memories, and which blocks have them.
    fn add_memory(&self, metadata: &Metadata, fields: &mut Map<String, Value>, layers: u64) -> Result<()> {
        let [inner, heads] = ["ssm.inner_size", "ssm.time_step_rank"].map(|key| metadata.size(&self.key(key)));
        let (inner, heads) = (inner?, heads?);
        if heads == 0 || inner % heads != 0 {
            return Err(Error::config(self.key("ssm.inner_size"), inner, format!("a multiple of the {heads} heads")));
        }
        let keys = metadata.size(&self.key("ssm.group_count"))?;
        if keys != heads {
            let expected =
                format!("{keys}, as `ssm.group_count`: in GGUF files value heads that share a key head are not read");
            return Err(Error::config(self.key("ssm.time_step_rank"), heads, expected));
        }
        fields.insert("linear_value_head_dim".to_owned(), (inner / heads).into());
        if let Some(kinds) = metadata.list(&self.key("attention.recurrent_layers"), LAYERS)? {
            let kind = |recurrent: &Value| match recurrent {
                Value::Bool(false) => "full_attention",
                _ => "linear_attention",
            };
            // Blocks that guess tokens further on come after the others.
            let kinds: Vec<_> = kinds.iter().take(usize::try_from(layers).unwrap_or(usize::MAX)).map(kind).collect();
            fields.insert("layer_types".to_owned(), kinds.into());
        }
        Ok(())
    }

    /// An array under the name that it has in a folder, of a model with heads of this width. What is not known keeps its own.
    pub(super) fn renamed(&self, mut array: Array, width: usize, guessing: &Range<u64>) -> Array {
        let (place, part) = match array.stored.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, _)) if layer.parse().is_ok_and(|layer| guessing.contains(&layer)) => {
                array.name = format!("mtp.{}", array.stored);
                return array;
            }
            Some((layer, part)) => (format!("model.layers.{layer}."), part),
            None => (String::new(), array.stored.as_str()),
        };
        let (name, values) = match part {
            "token_embd.weight" => ("model.embed_tokens.weight", Values::Kept),
            "output.weight" => ("lm_head.weight", Values::Kept),
            part => match self.names.iter().find(|(theirs, ..)| *theirs == part) {
                Some((_, ours, values)) => (*ours, *values),
                None => return array,
            },
        };
        array.change = match values {
            Values::Kept | Values::Taps => Change::Nothing,
            Values::Turned => Change::Neighbours(width),
            Values::OneMore => Change::OneMore,
            Values::Decay => Change::MinusExponential,
        };
        if let (Values::Taps, [channels, taps]) = (values, &array.shape[..]) {
            array.shape = vec![*channels, 1, *taps];
        }
        array.name = place + name;
        array
    }
}
