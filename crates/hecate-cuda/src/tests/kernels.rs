//! Every file of kernels, for every architecture.

use super::nvrtc;
use crate::{compile::options, sources::ALL};

/// Most registers of a thread: what an instruction can name. Whoever needs more spills.
const REGISTERS: u32 = 255;

/// Bytes of spills a thread at most, stores and loads together: the scans at wide keys and the backwards of networks
/// spill some to fit another block beside them.
const SPILLS: u32 = 512;

/// What the compiler says of a kernel.
#[derive(Debug, Default)]
struct Usage {
    /// Its name.
    kernel: String,
    /// Of a thread.
    registers: Option<u32>,
    /// Bytes, stores and loads together.
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

/// Every kernel compiles, keeps to its registers and spills little.
fn fits(architecture: &str) {
    let Some(nvrtc) = nvrtc() else { return };
    // All that do not fit are named at once.
    let mut failed = Vec::new();
    for source in ALL {
        let compiled = match nvrtc.compile(source, &options(architecture, None)) {
            Ok(compiled) => compiled,
            Err(error) => panic!("{} for {architecture}: {error}", source.name),
        };
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {architecture}: no machine code", source.name);
        let all = usage(&compiled.log);
        // Each `KERNEL` line is a kernel; macros make more of them.
        let declared = source.text.lines().filter(|line| line.starts_with("KERNEL(")).count();
        assert!(all.len() >= declared.max(1), "{} for {architecture}: {all:?} of {declared}", source.name);
        // A kernel of which the log says nothing does not fit.
        let fit = |usage: &Usage| {
            usage.spilled.is_some_and(|n| n <= SPILLS) && usage.registers.is_some_and(|n| n <= REGISTERS)
        };
        failed.extend(all.into_iter().filter(|usage| !fit(usage)).map(|usage| (source.name, usage)));
    }
    assert!(
        failed.is_empty(),
        "for {architecture}, more than {REGISTERS} registers or {SPILLS} bytes of spills: {failed:#?}"
    );
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

/// Names are the keys of everything: modules, the cache.
#[test]
fn names_differ() {
    let mut names: Vec<_> = ALL.iter().map(|source| source.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len(), "{names:?}");
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
