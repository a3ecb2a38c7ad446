//! Every file of kernels, for the architectures that can tell: the first and the last of each path through its conditions.
//!
//! Of a file without conditions all see the same code, so those between have nothing new to say. `sm_90a` is always one of them:
//! registers are shared out for it. A record of each architecture says what the same code came to: `UPDATE=1` compiles what
//! was changed since, and `HECATE_KERNELS=all` compiles everything.

use super::{
    alone::{compile, each},
    compiles_all, nvrtc, say, unrecorded,
    usage::{Record, Usage, usage},
};
use crate::{
    compile::write,
    ptx::{Modules, compiler},
    source::KernelSource,
    sources::ALL,
};
use std::{collections::BTreeSet, env, sync::Mutex};

/// From the earliest on.
const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];

/// What kernels are tuned for.
const TUNED: &str = "sm_90a";

/// What a file and its headers ask of the architecture, and whether it is so: the path through them.
/// Conditions are read as text, since a compiler would have to be there to ask it. Other forms of them panic: they are
/// to be taught here first.
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

/// The same of images of states with an anchor, whose sweep back has four matrices in registers: what these held before is put by
/// once a group.
const SPILLS_WITH_ANCHOR: u32 = 1024;

/// The same of those whose powers are logarithms and exponentials: timed with 1,076.
const SPILLS_OF_POWERS: u32 = 1088;

/// The same where kernels were not timed: their registers are shared out for [`TUNED`].
const SPILLS_ELSEWHERE: u32 = 1024;

/// What the compiler says of a file's kernels. Machine code that one of its warnings speaks against is refused.
/// Warnings come from ptxas, which alone knows where products of groups of warps wait.
fn compiled(source: &KernelSource, architecture: &str) -> Vec<Usage> {
    let log = compile(source, architecture, None).log;
    // Calls between products of groups make the compiler wait for each product by itself.
    assert!(!log.contains("instructions are serialized"), "{} for {architecture}: {log}", source.name);
    usage(&log)
}

/// Kernels of a file that need more than there is. A kernel of which nothing is said does not fit.
fn too_large(source: &KernelSource, architecture: &str, all: &[Usage]) -> Vec<Usage> {
    // Each `KERNEL` line is a kernel; macros make more of them.
    let declared = source.text.lines().filter(|line| line.starts_with("KERNEL(")).count();
    assert!(all.len() >= declared.max(1), "{} for {architecture}: {all:?} of {declared}", source.name);
    let most = match architecture {
        TUNED if source.name == "moneta_groups_powers_anchored" => SPILLS_OF_POWERS,
        TUNED if source.name.ends_with("_groups_anchored") => SPILLS_WITH_ANCHOR,
        TUNED => SPILLS,
        _ => SPILLS_ELSEWHERE,
    };
    let fits =
        |usage: &&Usage| usage.spilled.is_some_and(|n| n <= most) && usage.registers.is_some_and(|n| n <= REGISTERS);
    all.iter().filter(|usage| !fits(usage)).cloned().collect()
}

/// All that do not fit are named at once.
fn all_fit<'a>(architecture: &str, all: impl IntoIterator<Item = (&'a KernelSource, Vec<Usage>)>) {
    let too_large =
        |(source, all): (&'a KernelSource, Vec<Usage>)| (source.name, too_large(source, architecture, &all));
    let failed: Vec<_> = all.into_iter().map(too_large).filter(|(_, usages)| !usages.is_empty()).collect();
    assert!(failed.is_empty(), "{architecture}: too many of {REGISTERS} registers, or spills: {failed:#?}");
}

/// Every kernel that an architecture has code of its own for compiles for it, keeps to its registers and spills little.
/// A record that is missing or old fails, unless the architecture is the one that kernels are tuned for.
fn recorded(architecture: &str) {
    let told: Vec<_> = ALL.iter().copied().filter(|source| tells(source, architecture)).collect();
    let record = Record::read(architecture);
    let unknown = told.iter().any(|source| record.of(source, architecture).is_none());
    let update = env::var_os("UPDATE").is_some();
    // What kernels are tuned for needs no record, which only spares the time.
    let record = if update || unknown && architecture == TUNED {
        if unknown && nvrtc().is_none() {
            return;
        }
        renew(architecture, &told, record, update)
    } else {
        record
    };
    let old = |source: &&&KernelSource| record.of(source, architecture).is_none();
    let old: BTreeSet<_> = told.iter().filter(old).map(|source| source.name).collect();
    assert!(
        old.is_empty(),
        "src/tests/usage/{architecture}.tsv is not of these kernels any more: {old:?}; `UPDATE=1 cargo test -p \
         hecate-cuda kernels` compiles them with NVRTC 13.0 (`pip install nvidia-cuda-nvrtc==13.0.88`)"
    );
    // Nothing is left of files that were taken out.
    let kept = record.files.keys().filter(|name| !told.iter().any(|source| source.name == **name)).collect::<Vec<_>>();
    assert!(kept.is_empty(), "{architecture}: the record has {kept:?}, which have no code for it");
    let usages = told.iter().map(|source| (*source, record.of(source, architecture).unwrap_or_default().to_vec()));
    all_fit(architecture, usages);
    if compiles_all() && nvrtc().is_some() {
        let made = Mutex::new(Vec::new());
        each(&told, |source| {
            let all = compiled(source, architecture);
            made.lock().expect("no panic").push((source, all));
        });
        all_fit(architecture, made.into_inner().expect("no panic"));
    }
}

/// The compiler still makes what is recorded: one file for each architecture is compiled again, the shortest.
#[test]
fn compiler_agrees_with_the_records() {
    if nvrtc().is_none() {
        return;
    }
    for architecture in ARCHITECTURES {
        let record = Record::read(architecture);
        let told = ALL.iter().filter(|source| tells(source, architecture));
        let source = told.min_by_key(|source| source.texts().iter().map(|text| text.len()).sum::<usize>());
        let source = source.expect("a file for each architecture");
        let (made, modules) = (compile(source, architecture, None), Modules::of(source).expect("modules"));
        if compiler(&made.ptx) != modules.made_by() {
            return say(&format!("skipped: compiler_agrees_with_the_records: they are of {:?}", modules.made_by()));
        }
        let Some(recorded) = record.of(source, architecture) else { continue };
        assert_eq!(sorted(usage(&made.log)), recorded, "{} for {architecture}", source.name);
    }
}

/// Kernels by name: the compiler lists them in no order.
fn sorted(mut usages: Vec<Usage>) -> Vec<Usage> {
    usages.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    usages
}

/// The record with what was changed compiled again; with `keep` it is written where the next run finds it.
/// Files whose code did not change keep their lines, so that a change costs its own compilation only.
fn renew(architecture: &str, told: &[&'static KernelSource], mut record: Record, keep: bool) -> Record {
    record.files.retain(|name, _| told.iter().any(|source| source.name == name));
    let old: Vec<_> = told.iter().copied().filter(|source| record.of(source, architecture).is_none()).collect();
    if !keep {
        unrecorded(architecture, old.len());
    }
    let made = Mutex::new(&mut record);
    each(&old, |source| {
        let file = (Record::code(source, architecture), sorted(compiled(source, architecture)));
        made.lock().expect("no panic").files.insert(source.name.to_owned(), file);
    });
    if keep {
        write(&Record::path(architecture), record.text().as_bytes()).expect("a write");
        say(&format!("renewed {architecture}.tsv: {} files of {}", old.len(), told.len()));
    }
    record
}

macro_rules! architectures {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            recorded(stringify!($name));
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

/// Kernels that need too much are named, and those of which nothing is known.
#[test]
fn what_does_not_fit_is_named() {
    let usage = |registers, spilled| Usage { kernel: "a".to_owned(), registers, spilled };
    let source = KernelSource { text: "KERNEL(a, Args) {}\n", ..*ALL[0] };
    let of = |architecture: &str, usage: Usage| too_large(&source, architecture, &[usage]).len();
    assert_eq!(of(TUNED, usage(Some(255), Some(512))), 0);
    assert_eq!(of("sm_80", usage(Some(255), Some(1024))), 0);
    for bad in [usage(Some(256), Some(0)), usage(Some(255), Some(513)), usage(None, Some(0)), usage(Some(1), None)] {
        assert_eq!(of(TUNED, bad), 1);
    }
    assert_eq!(of("sm_80", usage(Some(255), Some(1025))), 1);
}

/// Names are the keys of everything: modules, the cache.
/// Two files of one name would share an image, and one would run the other's code.
#[test]
fn names_differ() {
    let mut names: Vec<_> = ALL.iter().map(|source| source.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len(), "{names:?}");
}
