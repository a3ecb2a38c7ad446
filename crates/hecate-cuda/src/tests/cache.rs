//! The cache of machine code, with closures in the driver's place.

use super::nvrtc;
use crate::{
    compile::{Compiler, Image, keep, read, write},
    prepare::{CompilingProgram, arguments, compile_kernel, fill},
    primitives::optimizer,
    source::KernelSource,
};
use hecate_core::Error;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// One kernel that writes one element.
const SOURCE: KernelSource = KernelSource {
    name: "tiny",
    text: "#include \"hecate.cuh\"\nstruct Args { float* x; };\nKERNEL(tiny, Args, 32) { *args.x = 1.0f; }\n",
    ptx: b"",
};

/// A compiler for a GPU of 2020, with its cache in this folder.
fn compiler(folder: &Path) -> Compiler {
    Compiler::new((8, 0), 13_000).in_folder(folder.to_owned())
}

/// As the driver would: takes machine code if it is some.
// An ELF file begins so; NVRTC makes no other machine code.
fn machine_code(image: Image) -> Result<Vec<u8>, String> {
    match image {
        Image::Cubin(bytes) if bytes.starts_with(b"\x7fELF") => Ok(bytes),
        Image::Cubin(_) => Err("this is no cubin".into()),
        Image::Ptx(_) => Err("this driver takes no PTX".into()),
    }
}

/// As a driver that takes no machine code.
fn only_ptx(image: Image) -> Result<String, String> {
    match image {
        Image::Cubin(_) => Err("another architecture".to_owned()),
        Image::Ptx(text) => Ok(text),
    }
}

/// All files of a folder, none where there is no folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The only file of a cache after one compilation.
fn cached(folder: &Path) -> PathBuf {
    let files = files(folder);
    assert!(files.len() == 1 && files[0].extension().is_some_and(|end| end == "cubin"), "{files:?}");
    files[0].clone()
}

/// A second device finds what the first one compiled, and takes it.
/// Compiling takes seconds, so a second process must not do it again.
#[test]
fn compiled_once() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let made = compiler(folder.path()).load(&SOURCE, "tiny", machine_code).expect("machine code");
    // The name depends on all that the machine code depends on.
    let file = cached(folder.path());
    assert_eq!(read(&file), Some(Ok(made.clone())));
    // What is there is taken as it is: a mark put into it comes back.
    let marked = [b"\x7fELF marked".as_slice(), &made].concat();
    keep(&file, &marked).expect("a write");
    assert_eq!(compiler(folder.path()).load(&SOURCE, "tiny", machine_code).expect("machine code"), marked);
}

/// Another source, header or architecture is another file.
/// A name that left one of them out would give old machine code to new arguments.
#[test]
fn keys_differ() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // One constant differs.
    let other = KernelSource { text: SOURCE.text.replace("1.0f", "2.0f").leak(), ..SOURCE };
    for (capability, source) in [((8, 0), SOURCE), ((8, 6), SOURCE), ((9, 0), SOURCE), ((8, 0), other)] {
        let compiler = Compiler::new(capability, 13_000).in_folder(folder.path().to_owned());
        compiler.load(&source, "tiny", machine_code).expect("machine code");
    }
    assert_eq!(files(folder.path()).len(), 4);
}

/// Whatever stands in a file of the cache, kernels run, and the file is whole afterwards.
#[test]
fn broken_files_are_built_again() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let made = compiler(folder.path()).load(&SOURCE, "tiny", machine_code).expect("machine code");
    let file = cached(folder.path());
    let whole = fs::read(&file).expect("the cached file");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    // Empty, cut off, of another kind, as it was written before there were checksums, and one bit of another value.
    for broken in [&b""[..], &whole[..whole.len() - 1], b"not a cubin at all", &made, &flipped] {
        fs::write(&file, broken).expect("a write");
        // The driver is never asked for what is damaged.
        let mut asked = 0;
        let load = |image| machine_code(image).inspect(|_| asked += 1);
        assert_eq!(compiler(folder.path()).load(&SOURCE, "tiny", load).expect("machine code"), made);
        assert_eq!(asked, 1);
        assert_eq!(fs::read(cached(folder.path())).expect("the cached file"), whole);
    }
    // Whole, and of another kind: the driver refuses it once.
    keep(&file, b"not a cubin at all").expect("a write");
    let mut refused = 0;
    let load = |image| machine_code(image).inspect_err(|_| refused += 1);
    assert_eq!(compiler(folder.path()).load(&SOURCE, "tiny", load).expect("machine code"), made);
    assert_eq!((refused, fs::read(cached(folder.path())).ok()), (1, Some(whole)));
}

/// Every bit that can flip, every length it can be cut to, and bytes too many.
/// A driver may run damaged machine code without a word: numbers would be wrong.
#[test]
fn damage_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.cubin");
    let cubin = b"\x7fELF machine code";
    // No file is no damage.
    assert_eq!(read(&file), None);
    keep(&file, cubin).expect("a write");
    assert_eq!(read(&file), Some(Ok(cubin.to_vec())));
    let whole = fs::read(&file).expect("the file");
    let cuts = (0..whole.len()).map(|length| whole[..length].to_vec());
    let flips = (0..8 * whole.len()).map(|bit| {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let longer = [[&whole[..], b"x"].concat(), [b"x", &whole[..]].concat()];
    for damaged in cuts.chain(flips).chain(longer) {
        fs::write(&file, &damaged).expect("a write");
        let told = read(&file).expect("a file").expect_err("damage");
        assert!(told.contains("checksum"), "{told}");
    }
    // A folder is no file of the cache.
    assert_eq!(read(folder.path()), None);
}

/// What other programs are started for: they put a kernel where the first one finds it.
#[test]
fn kernels_that_other_programs_compile() {
    let wanted = (&optimizer::SOURCE, "adamw");
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(arguments(&compiler(folder.path()), &wanted), ["8.0", "13000", "optimizer", "adamw"]);
    for wrong in
        [&["8.0", "13000", "optimizer"][..], &["8", "13000", "optimizer", "adamw"], &["8.0", "1", "x", "adamw"]]
    {
        let wrong: Vec<_> = wrong.iter().map(|&word| word.to_owned()).collect();
        assert!(matches!(compile_kernel(&wrong), Err(Error::Unsupported { .. })), "{wrong:?}");
    }
    // Without a compiler there is nothing to wait for: the driver compiles the PTX.
    assert!(!compiler(folder.path()).without_nvrtc().lacks(wanted.0, wanted.1));
    let Some(_) = nvrtc() else { return };
    let lacks = || compiler(folder.path()).lacks(wanted.0, wanted.1);
    assert!(lacks());
    compiler(folder.path()).fill(wanted.0, wanted.1).expect("a cubin");
    assert!(!lacks());
}

/// The process that [`fill`] starts here: what it is to compile are its last arguments, its cache is in the environment.
#[test]
#[ignore = "compiles for another test"]
fn compiling_program() {
    let all: Vec<String> = std::env::args().collect();
    compile_kernel(&all[all.len() - 4..]).expect("a cubin");
}

/// All kernels that the cache lacks are compiled by programs of their own, which is said once; those that it has are not.
#[cfg(unix)]
#[test]
fn many_are_compiled_beside_each_other() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let own = std::env::current_exe().expect("this program").display().to_string();
    // The shell names the cache; filters that no test has are of no effect.
    let script =
        r#"HECATE_CACHE="$1" exec "$2" tests::cache::compiling_program --exact --ignored -- "$3" "$4" "$5" "$6""#;
    let first = ["-c", script, "sh", &folder.path().display().to_string(), &own].map(str::to_owned).to_vec();
    let program = CompilingProgram { path: "/bin/sh".into(), first };
    let compiler = compiler(&folder.path().join("cuda"));
    let wanted = || vec![(&optimizer::SOURCE, "adamw"), (&optimizer::SOURCE, "squares")];
    let mut told = Vec::new();
    fill(&compiler, &program, wanted()[..1].to_vec(), &mut |kernels| told.push(kernels));
    assert_eq!(
        wanted().iter().map(|(source, kernel)| compiler.lacks(source, kernel)).collect::<Vec<_>>(),
        [false, true]
    );
    // One is there by now, and then both.
    fill(&compiler, &program, wanted(), &mut |kernels| told.push(kernels));
    fill(&compiler, &program, wanted(), &mut |kernels| told.push(kernels));
    assert_eq!(told, [1, 1]);
    assert!(wanted().iter().all(|(source, kernel)| !compiler.lacks(source, kernel)));
    // A program that does not start is no failure: kernels are then compiled when they are first started.
    let other = tempfile::tempdir().expect("a folder");
    let nothing = CompilingProgram { path: folder.path().join("no program"), first: Vec::new() };
    let compiler = Compiler::new((8, 0), 13_000).in_folder(other.path().to_owned());
    fill(&compiler, &nothing, wanted(), &mut |kernels| told.push(kernels));
    assert_eq!(told, [1, 1, 2]);
    assert!(wanted().iter().all(|(source, kernel)| compiler.lacks(source, kernel)));
}

/// What the driver refuses is not kept, the PTX is tried last, and the error names everything.
#[test]
fn refused_by_the_driver() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, kernel) = (&optimizer::SOURCE, "adamw");
    // A driver that refuses machine code may still take PTX.
    let ptx = compiler(folder.path()).load(source, kernel, only_ptx).expect("PTX");
    assert!(ptx.contains(".entry adamw("), "{ptx}");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());

    compiler(folder.path()).load(source, kernel, machine_code).expect("machine code");
    // A driver that takes nothing at all.
    let nothing = |_| Err::<(), _>("no room".to_owned());
    let error = compiler(folder.path()).load(source, kernel, nothing).expect_err("an error").to_string();
    for expected in ["`adamw`", "sm_80", "CUDA 13.0", "the cached", "NVRTC", "embedded PTX 8.0: no room", "Install"] {
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

/// Without a compiler the PTX is taken, by GPUs that it is for; nothing is cached, the driver does that itself.
#[test]
fn without_a_compiler() {
    let folder = tempfile::tempdir().expect("a folder");
    let compiler = |capability| Compiler::new(capability, 12_000).in_folder(folder.path().to_owned()).without_nvrtc();
    let (source, kernel) = (&optimizer::SOURCE, "adamw");
    // The PTX is for the first of these and all later ones.
    for capability in [(8, 0), (9, 0), (12, 1)] {
        let ptx = compiler(capability).load(source, kernel, only_ptx).expect("PTX");
        assert!(ptx.starts_with(".version 8.0\n.target sm_80\n"), "{ptx}");
        assert!(compiler(capability).to_string().contains("embedded PTX 8.0, compiled by the driver"));
    }
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    // Older GPUs than the PTX is for.
    let error = compiler((7, 5)).load(source, kernel, only_ptx).expect_err("an old GPU").to_string();
    for expected in ["`adamw`", "sm_75", "CUDA 12.0", "compute capability 8.0 and later", "7.5", "Install NVRTC"] {
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
    assert!(compiler((7, 5)).to_string().contains("none can be compiled"));
}

/// Machine code of a compiler that is newer than the driver would not run: such a compiler is left alone, which is said.
#[test]
fn compilers_newer_than_the_driver() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // One version older than what the compiler is of.
    let compiler = Compiler::new((8, 0), nvrtc.major() * 1000 - 10).in_folder(folder.path().to_owned());
    compiler.load(&optimizer::SOURCE, "adamw", only_ptx).expect("PTX");
    let text = compiler.to_string();
    assert!(text.contains("embedded PTX 8.0") && text.contains("newer than the driver"), "{text}");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

/// A cache that cannot be written costs time, nothing else.
/// Homes may be read only, or full.
#[test]
fn no_place_for_a_cache() {
    let Some(_) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a file, not a folder");
    fs::write(&file, "").expect("a write");
    compiler(&file).load(&SOURCE, "tiny", machine_code).expect("machine code");
    // Whoever would compile for it is told so, and asking leaves nothing behind.
    assert_eq!([compiler(&file).keeps(), compiler(folder.path()).keeps()], [false, true]);
    assert_eq!(files(folder.path()), [file]);
}

/// Whoever reads a file while others write it sees one of them whole.
#[test]
fn written_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("deeper").join("x.cubin");
    write(&file, &[0; 100_000]).expect("a write");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Three writers of files that differ in every byte, and one reader.
        let writers: Vec<_> = (1..4u8)
            .map(|byte| {
                let file = &file;
                scope.spawn(move || (0..30).for_each(|_| write(file, &[byte; 100_000]).expect("a write")))
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let read = fs::read(&file).expect("a file at any time");
                assert!(read.len() == 100_000 && read.iter().all(|byte| *byte == read[0]), "a mixture");
            }
        });
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        written.into_iter().for_each(|result| result.expect("a writer"));
    });
    assert_eq!(files(&folder.path().join("deeper")), [file]);
}

/// A write that fails leaves nothing behind.
#[test]
fn failed_writes_leave_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = folder.path().join("x.cubin");
    // A folder stands where the file should go.
    fs::create_dir(&taken).expect("a folder");
    fs::write(taken.join("inside"), "").expect("a write");
    write(&taken, b"bytes").expect_err("a folder has this name");
    assert_eq!(files(folder.path()), [taken]);
}
