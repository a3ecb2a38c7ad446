//! Kernels of some work, compiled beside each other before it runs.
//!
//! The work runs once without starting a kernel, which tells which ones it needs. NVRTC compiles one at a time in a program,
//! whatever the number of threads. So each is compiled by a program of its own, which leaves it in the cache on disk; from there
//! the work takes it. What fails there is compiled when it is first started, as ever.

use crate::{Cuda, compile::Compiler, error::unsupported, modules::Wanted, sources};
use hecate_core::Result;
use std::{
    num::NonZero,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A program that compiles the kernels that its arguments name.
#[derive(Debug)]
pub(crate) struct CompilingProgram {
    pub(crate) path: PathBuf,
    /// Before those that [`arguments`] makes.
    pub(crate) first: Vec<String>,
}

/// The program that compiles.
static PROGRAM: OnceLock<CompilingProgram> = OnceLock::new();

/// Kernels that many calls need are compiled by this program from here on, several at once. It is started with the arguments
/// `first` and those that [`compile_kernel`] takes. The first program that is named stays.
pub fn compile_through(path: PathBuf, first: Vec<String>) {
    let _ = PROGRAM.set(CompilingProgram { path, first });
}

/// Compiles a kernel for the cache: what a program of [`compile_through`] does with `[capability, driver, file, kernel]`.
///
/// # Errors
/// [`hecate_core::Error::Unsupported`] for other arguments, and where it cannot be compiled.
pub fn compile_kernel(arguments: &[String]) -> Result<()> {
    let wrong = || unsupported("these arguments", format!("found {arguments:?}, expected those of `compile_through`"));
    let [capability, driver, file, kernel] = arguments else { return Err(wrong()) };
    let (major, minor) = capability.split_once('.').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let source = sources::ALL.iter().find(|source| source.name == file).ok_or_else(wrong)?;
    Compiler::new((number(major)?, number(minor)?), number(driver)?).fill(source, kernel)
}

/// What [`compile_kernel`] takes for a kernel of this compiler's GPU.
pub(crate) fn arguments(compiler: &Compiler, &(source, kernel): &Wanted) -> [String; 4] {
    let ((major, minor), driver) = compiler.target();
    [format!("{major}.{minor}"), driver.to_string(), source.name.to_owned(), kernel.to_owned()]
}

/// Puts all kernels of `work` that are not there yet into the cache.
pub(crate) fn prepare(device: &Cuda, work: &mut dyn FnMut(), tell: &mut dyn FnMut(usize)) {
    // Without one they are compiled one by one, when they are first started.
    let Some(program) = PROGRAM.get() else { return };
    let Some(wanted) = device.modules().gather(work) else { return };
    // Another thread may be about the same kernels: they are there after it.
    static COMPILES: Mutex<()> = Mutex::new(());
    let _alone = COMPILES.lock().unwrap_or_else(PoisonError::into_inner);
    fill(device.modules().compiler(), program, wanted, tell);
}

/// Puts those of these kernels that the cache lacks into it, and says before how many there are.
pub(crate) fn fill(
    compiler: &Compiler,
    program: &CompilingProgram,
    mut wanted: Vec<Wanted>,
    tell: &mut dyn FnMut(usize),
) {
    // A cache that has them, or a driver that compiles PTX, leaves nothing to do.
    wanted.retain(|(source, kernel)| compiler.lacks(source, kernel));
    // Without a cache that can be written, other programs would compile for nobody.
    if wanted.is_empty() || !compiler.keeps() {
        return;
    }
    tell(wanted.len());
    compile_all(compiler, program, &wanted);
}

/// As many programs as there are processors, each with one kernel after another.
fn compile_all(compiler: &Compiler, program: &CompilingProgram, wanted: &[Wanted]) {
    let next = AtomicUsize::new(0);
    let compile = || {
        while let Some(wanted) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut command = Command::new(&program.path);
            command.args(&program.first).args(arguments(compiler, wanted));
            // What it has to say is said again by whoever starts the kernel.
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if let Err(error) = command.status() {
                return tracing::info!(%error, "the program that compiles kernels does not start");
            }
        }
    };
    // A thread here only waits for its program.
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(wanted.len());
    thread::scope(|scope| {
        // Where the system starts no thread, those that there are do its share.
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, compile)));
        compile();
    });
}
