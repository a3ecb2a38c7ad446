//! Every file of kernels, for the architectures that can tell: the first and the last of each path through its conditions.
//!
//! Of a file without conditions all see the same code, so those between have nothing new to say. `sm_90a` is always one of them:
//! registers are shared out for it. NVRTC compiles one program at a time in a process, so each architecture has its own.

use super::nvrtc;
use crate::{compile::options, source::KernelSource, sources::ALL};
use std::{env, process::Command};

/// From the earliest on.
const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];

/// What kernels are tuned for.
const TUNED: &str = "sm_90a";

/// Names the architecture that [`one_architecture`] compiles for.
const VARIABLE: &str = "HECATE_ARCHITECTURE";

/// What a file and its headers ask of the architecture, and whether it is so: the path through them.
fn path(source: &KernelSource, architecture: &str) -> Vec<bool> {
    let digits: String = architecture.chars().filter(char::is_ascii_digit).collect();
    let number = 10 * digits.parse::<u32>().expect("a number");
    let texts = source.texts();
    // Anything that is not a comment.
    let code = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.split("//").next());
    let conditions = code.filter(|line| line.contains("__CUDA_ARCH"));
    let holds = |line: &str| match line.trim() {
        "#if defined(__CUDA_ARCH_FEAT_SM90_ALL)" => architecture == "sm_90a",
        line => {
            let least = line.strip_prefix("#if __CUDA_ARCH__ >= ").and_then(|number| number.parse::<u32>().ok());
            number >= least.unwrap_or_else(|| panic!("{}: `{line}` is to be read here too", source.name))
        }
    };
    conditions.map(holds).collect()
}

/// Whether a file is compiled for this architecture: it is tuned for it, or the path of one beside it is another, or there is none.
fn tells(source: &KernelSource, architecture: &str) -> bool {
    let at = ARCHITECTURES.iter().position(|&name| name == architecture).expect("one of them");
    let beside = [at.checked_sub(1), Some(at + 1)].map(|at| ARCHITECTURES.get(at?));
    architecture == TUNED
        || beside.iter().any(|name| name.is_none_or(|name| path(source, name) != path(source, architecture)))
}

/// Most registers of a thread: what an instruction can name. Whoever needs more spills.
const REGISTERS: u32 = 255;

/// Bytes of spills of a function at most, stores and loads together: the scans at wide keys and the backwards of networks
/// spill some to fit another block beside them.
const SPILLS: u32 = 512;

/// The same where kernels were not timed: their registers are shared out for [`TUNED`].
const SPILLS_ELSEWHERE: u32 = 1024;

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
            // A kernel's functions that are not inlined have such a line each.
            last.spilled = last.spilled.max(Some(stores + number_before(line, " bytes spill loads").unwrap_or(0)));
        }
        last.registers = number_before(line, " registers").or(last.registers);
    }
    all
}

/// Every kernel compiles, keeps to its registers and spills little; in a process of its own.
fn fits(architecture: &str) {
    if nvrtc().is_none() {
        return;
    }
    let mut process = Command::new(env::current_exe().expect("this program"));
    process.args(["tests::kernels::one_architecture", "--exact", "--ignored", "--test-threads", "1"]);
    let done = process.env(VARIABLE, architecture).output().expect("a process");
    let said = String::from_utf8_lossy(&done.stdout);
    // A name that fits no test would run none.
    assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
}

/// The process of [`fits`].
#[test]
#[ignore = "compiles all kernels for another test"]
fn one_architecture() {
    let architecture = &env::var(VARIABLE).expect("the architecture");
    let nvrtc = nvrtc().expect("NVRTC");
    let most = if architecture == TUNED { SPILLS } else { SPILLS_ELSEWHERE };
    // All that do not fit are named at once.
    let mut failed = Vec::new();
    for source in ALL.iter().filter(|source| tells(source, architecture)) {
        let compiled = match nvrtc.compile(source, &options(architecture, None)) {
            Ok(compiled) => compiled,
            Err(error) => panic!("{} for {architecture}: {error}", source.name),
        };
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {architecture}: no machine code", source.name);
        // Calls between products of groups make the compiler wait for each product by itself.
        assert!(
            !compiled.log.contains("instructions are serialized"),
            "{} for {architecture}: {}",
            source.name,
            compiled.log
        );
        let all = usage(&compiled.log);
        // Each `KERNEL` line is a kernel; macros make more of them.
        let declared = source.text.lines().filter(|line| line.starts_with("KERNEL(")).count();
        assert!(all.len() >= declared.max(1), "{} for {architecture}: {all:?} of {declared}", source.name);
        // A kernel of which the log says nothing does not fit.
        let fit =
            |usage: &Usage| usage.spilled.is_some_and(|n| n <= most) && usage.registers.is_some_and(|n| n <= REGISTERS);
        failed.extend(all.into_iter().filter(|usage| !fit(usage)).map(|usage| (source.name, usage)));
    }
    assert!(
        failed.is_empty(),
        "for {architecture}, more than {REGISTERS} registers or {most} bytes of spills: {failed:#?}"
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

/// Each architecture says something, and so does each path of each file: its first and its last.
#[test]
fn paths_are_compiled() {
    for architecture in ARCHITECTURES {
        assert!(ALL.iter().any(|source| tells(source, architecture)), "{architecture}");
    }
    for source in ALL {
        for architecture in ARCHITECTURES {
            let same = |name: &&&str| path(source, name) == path(source, architecture);
            let path: Vec<_> = ARCHITECTURES.iter().filter(same).collect();
            let ends = [path[0], path[path.len() - 1]];
            assert!(ends.iter().all(|name| tells(source, name)), "{} for {ends:?}", source.name);
        }
    }
    // Instructions of one architecture, a branch by number, and none.
    let conditions = |text| {
        let source = KernelSource { text, ..*ALL[0] };
        ARCHITECTURES.map(|architecture| tells(&source, architecture))
    };
    assert_eq!(conditions("int x;\n"), [true, false, false, true, false, true]);
    assert_eq!(conditions("#if __CUDA_ARCH__ >= 890\n"), [true, true, true, true, false, true]);
    assert_eq!(conditions("#if defined(__CUDA_ARCH_FEAT_SM90_ALL)\n"), [true, false, true, true, true, true]);
}

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
               ptxas info    : Function properties for f\n\
               ptxas         .     0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads\n\
               ptxas info    : Compiling entry function 'b' for 'sm_80'\n";
    let all = usage(log);
    assert_eq!((all[0].kernel.as_str(), all[0].registers, all[0].spilled), ("a", Some(32), Some(20)));
    assert_eq!((all[1].kernel.as_str(), all[1].registers, all[1].spilled), ("b", None, None));
}
