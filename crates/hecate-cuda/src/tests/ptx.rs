//! The PTX in this crate: made from the kernels as they are, for every one of them, and by the compiler as it is.

use super::{
    alone::{self, each},
    compiles_all, nvrtc, say, unrecorded,
    usage::Record,
};
use crate::{
    compile::{options, write},
    nvrtc::Nvrtc,
    ptx::{self, ARCHITECTURE, Modules, VERSION},
    source::KernelSource,
    sources::ALL,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::Path,
    sync::Mutex,
};

/// A kernel's module.
/// Alone, as it is embedded: the driver then compiles one kernel at its first launch and not its whole file.
fn module(source: &KernelSource, kernel: &str) -> String {
    alone::compile(source, ARCHITECTURE, Some(kernel)).ptx
}

/// Names of a file's kernels: it is compiled with nothing in them.
fn names(nvrtc: &Nvrtc, source: &KernelSource) -> Vec<String> {
    let empty = "\n#undef KERNEL\n#define KERNEL(name, Args, ...) ENTRY(name, Args, __VA_ARGS__) {} \\\n\
                 LEFT_OUT(name##_, Args, )\n";
    let after = source.text.rfind("#include").and_then(|at| Some(at + source.text[at..].find('\n')?));
    // After the last `#include`, where kernels begin.
    let (includes, rest) = source.text.split_at(after.expect("a line that includes something"));
    let text: &'static str = format!("{includes}{empty}{rest}").leak();
    let compiled = nvrtc.compile(&KernelSource { text, ..*source }, &options(ARCHITECTURE, None));
    let ptx = compiled.unwrap_or_else(|error| panic!("{}: {error}", source.name)).ptx;
    entries(&ptx).into_iter().map(str::to_owned).collect()
}

/// Kernels of a module.
/// In PTX's own words: `.visible .entry name(`.
fn entries(module: &str) -> Vec<&str> {
    let lines = module.lines().filter_map(|line| line.trim().strip_prefix(".visible .entry "));
    lines.map(|line| line.trim_end_matches('(')).collect()
}

/// Whether the modules of a file are of another version of it, or none.
fn old(source: &KernelSource) -> bool {
    Modules::of(source).map_or(true, |modules| modules.made_from() != Some(&ptx::made_from(source)))
}

/// Compiles a file's kernels and puts them where the next build finds them.
fn renew(nvrtc: &Nvrtc, source: &KernelSource) {
    let names = names(nvrtc, source);
    let modules = names.iter().map(|name| (name.as_str(), module(source, name)));
    let text = ptx::file(source, modules);
    let mut packed = Vec::new();
    // The best there is, over all that lies before.
    let parameters = brotli::enc::BrotliEncoderParams { quality: 11, lgwin: 24, ..Default::default() };
    brotli::BrotliCompress(&mut text.as_bytes(), &mut packed, &parameters).expect("writes to memory");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/ptx/{}.ptx.br", source.name));
    write(&file, &packed).expect("a write");
    note(source, &packed);
    say(&format!("renewed {}: {} bytes of {}", source.name, packed.len(), text.len()));
}

/// A name for modules and for what they are made from.
/// It changes with the code, with the packed bytes, and with what PTX is made for.
fn pair(source: &KernelSource, packed: &[u8]) -> String {
    source.hash([ARCHITECTURE, VERSION, blake3::hash(packed).to_hex().as_str()])
}

/// Puts down that these modules were seen to be those of the file.
fn note(source: &KernelSource, packed: &[u8]) {
    // Files are compiled side by side.
    static RECORD: Mutex<()> = Mutex::new(());
    let _alone = RECORD.lock().expect("no panic");
    let mut record = Record::read(ARCHITECTURE);
    record.files.retain(|name, _| ALL.iter().any(|source| source.name == name));
    record.files.insert(source.name.to_owned(), (pair(source, packed), Vec::new()));
    write(&Record::path(ARCHITECTURE), record.text().as_bytes()).expect("a write");
}

/// Every file's modules are of that file; with `UPDATE=1`, those that are not are made again.
#[test]
fn up_to_date() {
    // Those whose first line names other code.
    let old: Vec<_> = ALL.iter().copied().filter(|source| old(source)).collect();
    if env::var_os("UPDATE").is_some() {
        let nvrtc = nvrtc().expect("NVRTC, to compile kernels");
        return each(&old, |source| renew(&nvrtc, source));
    }
    let names: Vec<_> = old.iter().map(|source| source.name).collect();
    assert!(
        names.is_empty(),
        "src/ptx is not of these kernels any more: {names:?}; `UPDATE=1 cargo test -p hecate-cuda up_to_date` renews it with \
         NVRTC 13.0 (`pip install nvidia-cuda-nvrtc==13.0.88`)"
    );
}

/// How often each instruction stands in a module.
fn instructions(module: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for line in module.lines() {
        // A predicate stands in front of an instruction.
        let words = line.split_whitespace().filter(|word| !word.starts_with('@'));
        let instruction = words.take(1).find(|word| word.starts_with(char::is_lowercase));
        *counts.entry(instruction.unwrap_or_default()).or_default() += 1;
    }
    counts
}

/// Instructions that one module has and the other has not.
fn different(a: &str, b: &str) -> usize {
    let (a, b) = (instructions(a), instructions(b));
    let names: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let count = |of: &BTreeMap<&str, usize>, name| of.get(name).copied().unwrap_or(0);
    names.into_iter().map(|name| count(&a, name).abs_diff(count(&b, name))).sum()
}

/// Instructions that may differ between two processes that compile the same kernel.
const FEW: usize = 8;

/// Processes that compile a kernel before its module is said to be of another one.
const TRIES: usize = 4;

/// Each module is its kernel, alone, as the compiler makes it. Some of the compiler's choices hang on addresses in its
/// memory, which lie elsewhere in each process. So instructions are counted and not compared one by one, and a few may
/// differ. Where more do, other processes decide: it was one in forty, of one kernel.
///
/// A record says of which files this was seen; only others are compiled, and all with `HECATE_KERNELS=all`.
#[test]
fn as_compiled() {
    let Some(nvrtc) = nvrtc() else { return };
    let record = Record::read(ARCHITECTURE);
    let seen = |source: &KernelSource| {
        record.files.get(source.name).is_some_and(|(seen, _)| *seen == pair(source, source.ptx))
    };
    let wanted: Vec<_> = ALL.iter().copied().filter(|source| compiles_all() || !seen(source)).collect();
    unrecorded(ARCHITECTURE, wanted.len());
    each(&wanted, |source| {
        let modules = Modules::of(source).expect("modules");
        assert_eq!(names(&nvrtc, source), modules.all().map(|(name, _)| name).collect::<Vec<_>>(), "{}", source.name);
        for (kernel, module) in modules.all() {
            let made = self::module(source, kernel);
            if ptx::compiler(&made) != modules.made_by() {
                return say(&format!("skipped: as_compiled: the modules are of {:?}", modules.made_by()));
            }
            assert_eq!(entries(module), [kernel], "{}", source.name);
            assert!(module.starts_with(&format!(".version {VERSION}\n.target sm_80\n")), "{kernel}");
            // Instructions are counted by name, whatever their order.
            let difference = |made: &str| different(module, &ptx::trimmed(made));
            let others = (1..TRIES).map(|_| difference(&self::module(source, kernel)));
            let different = std::iter::once(difference(&made)).chain(others).find(|&count| count <= FEW);
            assert!(different.is_some(), "`{kernel}` of {}: {} instructions differ", source.name, difference(&made));
        }
        if env::var_os("UPDATE").is_some() {
            note(source, source.ptx);
        }
    });
}

/// A comment changes no name; code does. What is cut off as a comment is never part of a string.
#[test]
fn names_are_of_code() {
    let source = |text| ptx::made_from(&KernelSource { text, ..*ALL[0] });
    assert_eq!(source("int x;  // a comment\n\n    // another\nint y;\n"), source("int x;\nint y;\n"));
    assert_ne!(source("int x;\n"), source("int y;\n"));
    assert_ne!(source("int x;\n  int y;\n"), source("int x;\nint y;\n"));
    for text in ALL.iter().flat_map(|source| source.texts()) {
        for line in text.lines() {
            let quotes = line.split("//").next().unwrap_or_default().matches('"').count();
            assert!(quotes.is_multiple_of(2) && !line.contains("/*"), "a string or another comment: `{line}`");
        }
    }
}

/// What is in the files can be had, and nothing else.
#[test]
fn found_by_name() {
    for source in ALL {
        let modules = Modules::of(source).expect("modules");
        assert!(modules.all().count() > 0, "{}", source.name);
        for (kernel, module) in modules.all() {
            assert_eq!(ptx::module(source, kernel).as_deref(), Ok(module));
        }
        assert_eq!(ptx::module(source, "another").expect_err("no such kernel"), "none for this kernel");
    }
}

/// Modules of other kernels than those that the program knows are not run.
#[test]
fn of_other_kernels() {
    let source = KernelSource { text: "// changed", ..*ALL[0] };
    // Of changed code, of a broken file, of none: each is refused in its own words.
    let kernel = Modules::of(&source).expect("modules").all().next().expect("a module").0.to_owned();
    assert!(ptx::module(&source, &kernel).expect_err("an error").contains("another version"));
    let broken = KernelSource { ptx: &ALL[0].ptx[..100], ..*ALL[0] };
    assert!(ptx::module(&broken, &kernel).expect_err("an error").contains("broken"));
    let none = KernelSource { ptx: b"", ..*ALL[0] };
    assert!(ptx::module(&none, &kernel).expect_err("an error").contains("none"));
}
