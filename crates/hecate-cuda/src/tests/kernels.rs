//! Every file of kernels, for every architecture.
//!
//! `UPDATE=1 cargo test -p hecate-cuda embedded` writes the PTX in `src/ptx` again, with the compiler found here.

use super::{nvrtc, say};
use crate::{
    compile::{HEADERS, options},
    launch::Source,
    nvrtc::Compiled,
    sources::ALL,
};
use std::{env, fs, path::Path};

/// Most registers of a thread: what an instruction can name. Whoever needs more spills, which no kernel here does.
const REGISTERS: u32 = 255;

/// What the embedded PTX is written for: every GPU from it on.
const OLDEST: &str = "compute_80";

/// The version of PTX that drivers of CUDA 12.0 read; compilers write their own, whatever they use of it.
const PTX: &str = ".version 8.0";

/// What the compiler says of a kernel.
#[derive(Debug, Default)]
struct Usage {
    kernel: String,
    registers: Option<u32>,
    spilled: Option<u32>,
}

/// Registers and spills of each kernel, from the log of `--ptxas-options=-v`.
fn usage(log: &str) -> Vec<Usage> {
    let number_before = |line: &str, what: &str| {
        let before = line.split(what).next().filter(|before| before.len() < line.len())?;
        before.split_whitespace().next_back()?.parse::<u32>().ok()
    };
    let mut all: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(Usage { kernel, ..Usage::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some(stores) = number_before(line, " bytes spill stores") {
            last.spilled = Some(stores + number_before(line, " bytes spill loads").unwrap_or(0));
        }
        last.registers = number_before(line, " registers").or(last.registers);
    }
    all
}

/// Every kernel compiles, keeps to its registers and spills nothing.
fn fits(architecture: &str) {
    let Some(nvrtc) = nvrtc() else { return };
    let mut failed = Vec::new();
    for source in ALL {
        let compiled = match nvrtc.compile(source, &options(architecture)) {
            Ok(compiled) => compiled,
            Err(error) => panic!("{} for {architecture}: {error}", source.name),
        };
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {architecture}: no machine code", source.name);
        let all = usage(&compiled.log);
        let declared = source.text.lines().filter(|line| line.starts_with("KERNEL(")).count();
        assert!(all.len() >= declared.max(1), "{} for {architecture}: {all:?} of {declared}", source.name);
        let fit = |usage: &Usage| usage.spilled == Some(0) && usage.registers.is_some_and(|n| n <= REGISTERS);
        failed.extend(all.into_iter().filter(|usage| !fit(usage)).map(|usage| (source.name, usage)));
    }
    assert!(failed.is_empty(), "for {architecture}, more than {REGISTERS} registers or spills: {failed:#?}");
}

macro_rules! architectures {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            fits(stringify!($name));
        }
    )* };
}
architectures!(sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a);

/// The source and the headers that it reads, directly or through others, as a number.
fn fingerprint(source: &Source) -> String {
    let mut texts = vec![source.text];
    let mut at = 0;
    while at < texts.len() {
        let text = texts[at];
        let read = HEADERS.iter().filter(|(name, _)| text.contains(&format!("#include \"{name}\"")));
        let new: Vec<&str> = read.map(|(_, header)| *header).filter(|header| !texts.contains(header)).collect();
        texts.extend(new);
        at += 1;
    }
    let mut hash = blake3::Hasher::new();
    for part in texts.into_iter().map(str::to_owned).chain(options(OLDEST)).chain([PTX.to_owned()]) {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().to_hex()[..16].to_owned()
}

/// What is embedded: the compiler's PTX in an older version, behind a line that says what it was made from.
fn embeddable(source: &Source, compiled: &Compiled) -> String {
    let lower = |line| if str::starts_with(line, ".version ") { PTX } else { line };
    let lines: Vec<&str> = compiled.ptx.trim_end().lines().map(lower).collect();
    format!("// {} {}\n{}\n", source.name, fingerprint(source), lines.join("\n"))
}

/// The compiler that PTX says it comes from.
fn compiler(ptx: &str) -> Option<&str> {
    ptx.lines().find(|line| line.contains("Cuda compilation tools"))
}

/// The embedded PTX comes from the sources as they are now; where the same compiler is here, it gives the same again.
#[test]
fn embedded_ptx_is_up_to_date() {
    let update = env::var_os("UPDATE").is_some_and(|value| value == "1");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ptx");
    let nvrtc = nvrtc();
    let mut stale = Vec::new();
    for source in ALL {
        let compile = |nvrtc: &crate::nvrtc::Nvrtc| nvrtc.compile(source, &options(OLDEST));
        let compiled = nvrtc.as_ref().map(compile).transpose().unwrap_or_else(|error| panic!("{error}"));
        let fresh = compiled.map(|compiled| embeddable(source, &compiled));
        if let Some(fresh) = fresh.as_ref().filter(|_| update) {
            let file = folder.join(format!("{}.ptx", source.name));
            fs::write(&file, fresh).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            continue;
        }
        let line = format!("// {} {}", source.name, fingerprint(source));
        let same_compiler = fresh.as_ref().filter(|fresh| compiler(fresh) == compiler(source.ptx));
        if source.ptx.lines().next() != Some(&line) || same_compiler.is_some_and(|fresh| fresh != source.ptx) {
            stale.push(source.name);
        }
    }
    assert!(stale.is_empty(), "old PTX: {stale:?}; `UPDATE=1 cargo test -p hecate-cuda embedded` writes it again");
    if update {
        say(if nvrtc.is_some() { "wrote src/ptx" } else { "src/ptx was not written: no NVRTC" });
    }
}

/// Embedded PTX is of the version that old drivers read, has every kernel, and does not know where it was made.
#[test]
fn embedded_ptx_is_portable() {
    for source in ALL {
        let version = source.ptx.lines().find(|line| line.starts_with(".version"));
        assert_eq!(version, Some(PTX), "{}", source.name);
        assert!(source.ptx.contains(".target sm_80"), "{}", source.name);
        for path in [".file", ".loc", env!("CARGO_MANIFEST_DIR"), "/tmp/", "/home/"] {
            assert!(!source.ptx.contains(path), "{} holds `{path}`", source.name);
        }
        for kernel in source.text.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.split(',').next()) {
            assert!(source.ptx.contains(&format!(".entry {kernel}(")), "{}: no {kernel}", source.name);
        }
    }
}

/// Names are the keys of everything: files of PTX, modules, the cache.
#[test]
fn names_differ() {
    let mut names: Vec<_> = ALL.iter().map(|source| source.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len(), "{names:?}");
    let embedded = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ptx")).expect("the folder of PTX");
    let mut files: Vec<String> = embedded.flatten().map(|file| file.file_name().to_string_lossy().into()).collect();
    files.sort_unstable();
    let mut expected: Vec<String> = names.iter().map(|name| format!("{name}.ptx")).collect();
    expected.sort_unstable();
    assert_eq!(files, expected, "files in src/ptx");
}

/// The log is read as ptxas writes it.
#[test]
fn logs_are_read() {
    let log = "ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
               ptxas         .     8 bytes stack frame, 16 bytes spill stores, 4 bytes spill loads\n\
               ptxas info    : Used 32 registers, used 0 barriers\n\
               ptxas info    : Compiling entry function 'b' for 'sm_80'\n";
    let all = usage(log);
    assert_eq!((all[0].kernel.as_str(), all[0].registers, all[0].spilled), ("a", Some(32), Some(20)));
    assert_eq!((all[1].kernel.as_str(), all[1].registers, all[1].spilled), ("b", None, None));
}
