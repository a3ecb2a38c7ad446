//! Kernels as PTX, for machines that have a driver and no compiler.
//!
//! `src/ptx/<file>.ptx.br` holds one module for each kernel of a file, compressed with Brotli. It begins with a line that
//! says what the file was compiled from, so that a kernel which was changed since is neither shipped nor run.

use crate::source::KernelSource;
use std::io::Read as _;

/// What the modules are compiled for: all GPUs of this capability and later ones.
pub(crate) const CAPABILITY: (u32, u32) = (8, 0);
/// The same, as the compiler names it.
pub(crate) const ARCHITECTURE: &str = "compute_80";
/// The language's version that is written over the compiler's own, which only drivers of its age would take. Drivers of
/// CUDA 12.0 and later take this one, and it has all that the kernels use.
pub(crate) const VERSION: &str = "8.0";

/// First line of a file of modules, before the hash; the second is the compiler's own that has its version.
const MADE_FROM: &str = "// made from ";
/// Line before a module, before the kernel's name.
const KERNEL: &str = "// kernel ";

/// A file of modules.
pub(crate) struct Modules {
    /// All modules of a file, decompressed.
    text: String,
}

impl Modules {
    /// Those of a file of kernels.
    ///
    /// # Errors
    /// Where there are none, or something else.
    pub(crate) fn of(source: &KernelSource) -> Result<Self, String> {
        if source.ptx.is_empty() {
            return Err("none for these kernels".into());
        }
        // A few hundred kilobytes of text, and only where there is no compiler.
        let mut text = String::new();
        let read = brotli_decompressor::Decompressor::new(source.ptx, 1 << 16).read_to_string(&mut text);
        read.map_err(|error| format!("the file of these kernels is broken: {error}"))?;
        Ok(Self { text })
    }

    /// What the modules were compiled from; to be compared with [`made_from`].
    pub(crate) fn made_from(&self) -> Option<&str> {
        self.text.lines().next()?.strip_prefix(MADE_FROM)
    }

    /// The compiler's line.
    #[cfg(test)]
    pub(crate) fn made_by(&self) -> Option<&str> {
        compiler(&self.text)
    }

    /// Every kernel's name and module.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let (_, modules) = self.text.split_once('\n').unwrap_or_default();
        let modules = modules.split(KERNEL).skip(1);
        modules.filter_map(|module| module.split_once('\n'))
    }
}

/// The module of a kernel.
///
/// # Errors
/// Where there is none that can be used.
pub(crate) fn module(source: &KernelSource, kernel: &str) -> Result<String, String> {
    let modules = Modules::of(source)?;
    // A launch hands over a structure whose layout is that of today's kernel.
    if modules.made_from() != Some(&made_from(source)) {
        return Err("made from another version of these kernels".into());
    }
    let module = modules.all().find(|(name, _)| *name == kernel).ok_or("none for this kernel")?.1;
    Ok(module.to_owned())
}

/// A name for everything that a module depends on, beside the compiler.
pub(crate) fn made_from(source: &KernelSource) -> String {
    source.hash([ARCHITECTURE, VERSION])
}

/// The line that says which compiler wrote this.
pub(crate) fn compiler(ptx: &str) -> Option<&str> {
    ptx.lines().take(9).find(|line| line.contains("Cuda compilation tools"))
}

/// A file of modules as the compiler wrote them, not compressed yet.
pub(crate) fn file<'a>(source: &KernelSource, modules: impl Iterator<Item = (&'a str, String)>) -> String {
    let (mut text, mut by) = (String::new(), None);
    for (name, module) in modules {
        by = by.or_else(|| compiler(&module).map(str::to_owned));
        text += &format!("{KERNEL}{name}\n{}", trimmed(&module));
    }
    format!("{MADE_FROM}{}\n{}\n{text}", made_from(source), by.unwrap_or_default())
}

/// What the compiler wrote, with the language's version lowered and without lines that say nothing. One hint is younger
/// than that version and is left out: that a load does not use all that it loads.
pub(crate) fn trimmed(ptx: &str) -> String {
    let lines = ptx.lines().map(|line| match line.strip_prefix(".version ") {
        Some(_) => format!(".version {VERSION}\n"),
        None => format!("{}\n", line.trim()),
    });
    let idle = |line: &str| line.starts_with("//") || line.starts_with(".pragma \"used_bytes_mask") || line == "\n";
    lines.filter(|line| !idle(line)).collect()
}
