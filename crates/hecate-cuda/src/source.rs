//! A file of kernels: its text, the headers that it reaches, and its PTX.

use crate::headers::HEADERS;

/// A file of kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelSource {
    /// Name without extension.
    pub(crate) name: &'static str,
    /// CUDA C++; `#include "hecate.cuh"` is all it can include.
    pub(crate) text: &'static str,
    /// The same as PTX for machines without a compiler; [`crate::ptx`] says what is in it.
    pub(crate) ptx: &'static [u8],
}

/// A file of kernels beside this one: `kernel_source!("map", "map.cu")`; its PTX is `src/ptx/map.ptx.br`.
macro_rules! kernel_source {
    ($name:literal, $file:literal) => {
        $crate::source::KernelSource {
            name: $name,
            text: include_str!($file),
            ptx: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ptx/", $name, ".ptx.br")),
        }
    };
}
pub(crate) use kernel_source;

impl KernelSource {
    /// The file and the headers that it reaches, the file first.
    pub(crate) fn texts(&self) -> Vec<&'static str> {
        // Headers are searched for headers in turn.
        let mut texts = vec![self.text];
        let mut next = 0;
        while let Some(text) = texts.get(next) {
            let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            let headers = names.filter_map(|name| Some(HEADERS.iter().find(|header| header.0 == name)?.1));
            let new: Vec<_> = headers.filter(|header| !texts.contains(header)).collect();
            texts.extend(new);
            next += 1;
        }
        texts
    }

    /// A name for all that a compilation depends on: the code of the texts, and `more`.
    pub(crate) fn hash<'a>(&self, more: impl IntoIterator<Item = &'a str>) -> String {
        let mut hash = blake3::Hasher::new();
        let code = self.texts().into_iter().map(code);
        for part in code.chain(more.into_iter().map(str::to_owned)) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().to_hex().to_string()
    }
}

/// A text without its comments and blank lines. A test makes sure that no string in a kernel holds `//`.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}
