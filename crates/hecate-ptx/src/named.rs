//! Kernels by a line of text: a name and sizes.

use crate::{
    Attention, Elementwise, Error, GemmNaive, GemmTensorCore, GemmTiled, HalfType, LayerNorm, Module, Norm,
    QuantizedGemm, Softmax, Specification,
};

/// Names of kernels with sizes, and what those are; `Elementwise` has no sizes.
pub const FORMS: [(&str, &[&str]); 10] = [
    ("gemm_naive", &["M", "N", "K"]),
    ("gemm_tiled", &["M", "N", "K", "tile"]),
    ("gemm_tensor_core_f16", &["M", "N", "K"]),
    ("gemm_tensor_core_bf16", &["M", "N", "K"]),
    ("q4k_gemm_fused", &["M", "N", "K"]),
    ("softmax_warp", &["rows", "length"]),
    ("layernorm", &["rows", "hidden"]),
    ("rmsnorm", &["rows", "hidden"]),
    ("flash_attention", &["tokens", "heads", "key_heads", "head_dim"]),
    ("flash_attention_causal", &["tokens", "heads", "key_heads", "head_dim"]),
];

/// Epsilon of norms.
const EPSILON: f32 = 1e-6;

/// Writes the kernel that a line asks for: `softmax_warp:1024,4096`, sizes in the order of [`FORMS`], or the name of an operation on
/// arrays, such as `add_f32`. Norms have an epsilon of 1e-6.
///
/// # Errors
/// A name that is unknown, another number of sizes, a size that is no whole number of 32 bits, and those of the specification.
///
/// ```
/// let softmax = hecate_ptx::named("softmax_warp:1024,4096")?;
/// assert_eq!(softmax.name(), "softmax_warp");
/// assert_eq!(hecate_ptx::named("add_f32")?.name(), "add_f32");
/// let error = hecate_ptx::named("softmax_warp:1024").unwrap_err();
/// assert_eq!(error.to_string(), "`softmax_warp:1024` is no kernel; give it as softmax_warp:rows,length");
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
pub fn named(line: &str) -> Result<Module, Error> {
    // Names of operations have no colon, and no form has an operation's name.
    if let Some(operation) = Elementwise::all().find(|operation| operation.name() == line) {
        return operation.write();
    }
    // Without a colon there are no sizes, which is not what any form asks for.
    let (name, sizes) = line.split_once(':').unwrap_or((line, ""));
    let Some((name, expected)) = FORMS.into_iter().find(|(form, _)| *form == name) else {
        let operations = Elementwise::all().map(|operation| operation.name());
        let names: Vec<String> = FORMS.iter().map(|form| form.0.to_owned()).chain(operations).collect();
        return Err(Error::Unknown { found: line.to_owned(), expected: format!("one of {}", names.join(", ")) });
    };
    // Another number of sizes and what is no number are told of alike: by what the form looks like.
    let refused = || Error::Unknown { found: line.to_owned(), expected: format!("{name}:{}", expected.join(",")) };
    let sizes: Vec<u32> = sizes.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| refused())?;
    specification(name, &sizes).ok_or_else(refused)??.write()
}

/// The specification of this name; none for another number of sizes.
fn specification(name: &str, sizes: &[u32]) -> Option<Result<Specification, Error>> {
    Some(match (name, sizes) {
        ("gemm_naive", &[m, n, k]) => GemmNaive::new(m, n, k).map(Into::into),
        ("gemm_tiled", &[m, n, k, tile]) => GemmTiled::new(m, n, k, tile).map(Into::into),
        ("gemm_tensor_core_f16", &[m, n, k]) => GemmTensorCore::new(HalfType::F16, m, n, k).map(Into::into),
        ("gemm_tensor_core_bf16", &[m, n, k]) => GemmTensorCore::new(HalfType::Bf16, m, n, k).map(Into::into),
        ("q4k_gemm_fused", &[m, n, k]) => QuantizedGemm::new(m, n, k).map(Into::into),
        ("softmax_warp", &[rows, length]) => Softmax::new(rows, length).map(Into::into),
        ("layernorm", &[rows, hidden]) => LayerNorm::new(Norm::Mean, rows, hidden, EPSILON).map(Into::into),
        ("rmsnorm", &[rows, hidden]) => LayerNorm::new(Norm::Rms, rows, hidden, EPSILON).map(Into::into),
        ("flash_attention", &[tokens, heads, key_heads, columns]) => {
            Attention::new(tokens, [heads, key_heads], columns, false).map(Into::into)
        }
        ("flash_attention_causal", &[tokens, heads, key_heads, columns]) => {
            Attention::new(tokens, [heads, key_heads], columns, true).map(Into::into)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form is a kernel of its own name.
    #[test]
    fn forms_are_names_of_kernels() {
        for (name, sizes) in FORMS {
            let line = format!("{name}:{}", vec!["32"; sizes.len()].join(","));
            assert_eq!(named(&line).map(|module| module.name().to_owned()), Ok(name.to_owned()));
            for wrong in
                [name.to_owned(), format!("{name}:"), format!("{line},1"), format!("{name}:x"), format!(" {line}")]
            {
                assert!(matches!(named(&wrong), Err(Error::Unknown { .. })), "{wrong}");
            }
        }
        for operation in Elementwise::all() {
            assert_eq!(named(&operation.name()).map(|module| module.name().to_owned()), Ok(operation.name()));
        }
        // What a specification refuses is its own error.
        assert!(matches!(named("gemm_tiled:1,1,1,7"), Err(Error::Size { size: "tile", .. })));
        assert!(matches!(named("softmax_warp:0,1"), Err(Error::Size { .. })));
        assert!(named("softmax_warp:4294967296,1").is_err() && named("add_f16").is_err() && named("").is_err());
    }
}
