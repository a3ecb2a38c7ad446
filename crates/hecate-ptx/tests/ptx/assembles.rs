//! NVIDIA's assembler takes every kernel without a warning, for every GPU that the kernel's first lines promise.

use crate::{golden::specifications, require};
use hecate_ptx::{Elementwise, Module};
use std::{
    env,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// GPUs from Turing to Blackwell, with their capability.
const GPUS: [(&str, u32); 7] =
    [("sm_75", 75), ("sm_80", 80), ("sm_86", 86), ("sm_89", 89), ("sm_90a", 90), ("sm_100a", 100), ("sm_120a", 120)];

/// The assembler that `HECATE_PTXAS` names, or one in `PATH`.
fn assembler() -> Option<PathBuf> {
    if let Some(named) = env::var_os("HECATE_PTXAS") {
        return Some(named.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join("ptxas")).find(|file| file.is_file())
}

/// Assembles a text for one GPU; what the assembler says, if it says anything.
fn assemble(assembler: &Path, text: &str, gpu: &str) -> Result<(), String> {
    let (input, output) = ("/dev/stdin", "/dev/null");
    let mut command = Command::new(assembler);
    command.args(["--gpu-name", gpu, "--warning-as-error", "--output-file", output, input]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ptxas starts");
    // The assembler may end before it has read everything, and says why.
    let _ = child.stdin.take().expect("an input").write_all(text.as_bytes());
    let answer = child.wait_with_output().expect("ptxas ends");
    let said = [answer.stdout, answer.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    if answer.status.success() && said.trim().is_empty() { Ok(()) } else { Err(format!("{}: {said}", answer.status)) }
}

/// GPUs that a kernel's first lines promise.
fn gpus(module: &Module) -> impl Iterator<Item = &'static str> {
    let least = module.target().capability;
    GPUS.into_iter().filter(move |(_, capability)| least <= *capability).map(|(gpu, _)| gpu)
}

fn expect(assembler: &Path, module: &Module, gpu: &str) {
    assemble(assembler, module.text(), gpu).unwrap_or_else(|said| panic!("{} for {gpu}: {said}", module.name()));
}

#[test]
fn every_kernel_assembles() {
    let Some(assembler) = assembler() else {
        return require::skip("ptxas", "set HECATE_PTXAS to the program, of the Python package nvidia-cuda-nvcc");
    };
    let specifications = specifications().into_iter().map(|specification| specification.write());
    let modules = specifications.chain(Elementwise::all().map(|kernel| kernel.write()));
    let modules: Vec<Module> = modules.collect::<Result<_, _>>().expect("kernels");
    let pairs = modules.iter().flat_map(|module| gpus(module).map(move |gpu| (module, gpu)));
    let pairs: Vec<(&Module, &str)> = pairs.collect();
    // Two programs at a time: an assembler has one thread.
    std::thread::scope(|scope| {
        for half in pairs.chunks(pairs.len().div_ceil(2)) {
            scope.spawn(|| half.iter().for_each(|(module, gpu)| expect(&assembler, module, gpu)));
        }
    });
    println!("{} kernels, {} times assembled", modules.len(), pairs.len());
}

/// The test would notice: a text that is none, one with a register of the wrong type, and one for newer GPUs.
#[test]
fn what_is_wrong_does_not_assemble() {
    let Some(assembler) = assembler() else {
        return require::skip("ptxas", "set HECATE_PTXAS to the program, of the Python package nvidia-cuda-nvcc");
    };
    let module = specifications()[0].write().expect("a kernel");
    assemble(&assembler, module.text(), "sm_80").expect("the text as it is");
    let broken = module.text().replace("fma.rn.f32 %f", "fma.rn.f32 %r");
    assert!(assemble(&assembler, &broken, "sm_80").is_err());
    let newer = module.text().replace(".target sm_70", ".target sm_90");
    assert!(assemble(&assembler, &newer, "sm_80").is_err());
}
