//! NVIDIA's run-time compiler: finding it, and using it.
#![allow(unsafe_code)]

use crate::{headers::HEADERS, source::KernelSource};
use cudarc::nvrtc::{result, sys};
use std::{
    env,
    ffi::{CStr, CString, OsString, c_char},
    path::{Path, PathBuf},
    ptr,
};

/// The compiler, loaded.
pub(crate) struct Nvrtc {
    /// Where it was found, in words.
    path: String,
    /// Major and minor.
    version: (i32, i32),
}

/// What a compilation gave.
pub(crate) struct Compiled {
    /// Machine code; empty for an architecture named `compute_…`.
    pub(crate) cubin: Vec<u8>,
    /// The same in the language between.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) ptx: String,
    /// What the compiler had to say: registers and spills of each kernel.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) log: String,
}

/// What is called of it.
const FUNCTIONS: [&[u8]; 13] = [
    b"nvrtcVersion\0",
    b"nvrtcGetNumSupportedArchs\0",
    b"nvrtcGetSupportedArchs\0",
    b"nvrtcCreateProgram\0",
    b"nvrtcCompileProgram\0",
    b"nvrtcGetProgramLogSize\0",
    b"nvrtcGetProgramLog\0",
    b"nvrtcGetPTXSize\0",
    b"nvrtcGetPTX\0",
    b"nvrtcGetCUBINSize\0",
    b"nvrtcGetCUBIN\0",
    b"nvrtcGetErrorString\0",
    b"nvrtcDestroyProgram\0",
];

impl Nvrtc {
    /// The library where the system finds it, or in the folders of toolkits and of Python packages.
    ///
    /// # Errors
    /// Where it was looked for.
    pub(crate) fn find() -> Result<Self, String> {
        if env::var_os("HECATE_NVRTC").is_some_and(|value| value == "off") {
            return Err("turned off by HECATE_NVRTC=off".into());
        }
        let folders = folders();
        // Named folders first: whoever names one means it.
        let preloaded = folders.iter().find_map(|folder| preload(folder));
        // SAFETY: looks for a library by name and opens it.
        if !unsafe { sys::is_culib_present() } {
            return Err("libnvrtc not found by the system, in toolkits or in Python's site-packages".into());
        }
        // Where a library of this name lacks a function, calling it would panic.
        // SAFETY: the library is there, and the address is not used.
        let has = |name: &[u8]| unsafe { sys::culib().get::<*const ()>(name) }.is_ok();
        if let Some(missing) = FUNCTIONS.into_iter().find(|name| !has(name)) {
            let missing = String::from_utf8_lossy(&missing[..missing.len() - 1]).into_owned();
            return Err(format!("the libnvrtc found lacks {missing}; CUDA 12.0 and later have it"));
        }
        let mut version = (0, 0);
        // SAFETY: writes two integers.
        unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) }.result().map_err(|error| format!("{error:?}"))?;
        Ok(Self { path: preloaded.map_or_else(|| "the system's".into(), |path| path.display().to_string()), version })
    }

    /// `13.0`.
    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// `13`.
    pub(crate) fn major(&self) -> u32 {
        self.version.0.unsigned_abs()
    }

    /// Whether it knows GPUs of this compute capability.
    pub(crate) fn knows(&self, (major, minor): (u32, u32)) -> bool {
        let mut count = 0;
        // SAFETY: writes an integer.
        let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result();
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: writes as many integers as it said.
        let listed = counted.and_then(|()| unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }.result());
        listed.is_ok() && known.contains(&((10 * major + minor) as i32))
    }

    /// Where it was found, in words.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Compiles a file of kernels.
    ///
    /// # Errors
    /// The compiler's log.
    pub(crate) fn compile(&self, source: &KernelSource, options: &[String]) -> Result<Compiled, String> {
        let c = |text: &str| CString::new(text).map_err(|_| "a zero byte in a source".to_owned());
        let (text, name) = (c(source.text)?, c(&format!("{}.cu", source.name))?);
        // All headers are handed over; the compiler takes those that are included.
        let headers = HEADERS.iter().map(|(_, text)| c(text)).collect::<Result<Vec<_>, _>>()?;
        let names = HEADERS.iter().map(|(name, _)| c(name)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
        let (headers, names) = (pointers(&headers), pointers(&names));
        let mut program = ptr::null_mut();
        // SAFETY: all strings outlive the call, which copies them.
        unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                headers.as_ptr(),
                names.as_ptr(),
            )
        }
        .result()
        .map_err(|error| format!("{error:?}"))?;
        let program = Program(program);
        // SAFETY: the program is alive.
        let compiled = unsafe { result::compile_program(program.0, options) };
        let log = program.log();
        compiled.map_err(|error| format!("{error:?}: {log}"))?;
        Ok(Compiled { cubin: program.cubin()?, ptx: program.ptx(), log })
    }
}

/// A program, freed in the end.
struct Program(sys::nvrtcProgram);

impl Program {
    /// What the compiler said.
    fn log(&self) -> String {
        // SAFETY: the program is alive.
        unsafe { result::get_program_log(self.0) }.map(text).unwrap_or_default()
    }

    /// The language between, as text.
    fn ptx(&self) -> String {
        // SAFETY: the program is alive.
        unsafe { result::get_ptx(self.0) }.map(text).unwrap_or_default()
    }

    /// Machine code.
    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program is alive; the buffer is as long as the library says.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut size).result().map_err(|error| format!("{error:?}"))?;
            // Empty for architectures named `compute_…`.
            let mut cubin = vec![0u8; size];
            if size > 0 {
                sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()).result().map_err(|error| format!("{error:?}"))?;
            }
            Ok(cubin)
        }
    }
}

impl Drop for Program {
    /// Frees the program and its source; code that was read of it stays.
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// A C string that came as characters.
fn text(characters: Vec<c_char>) -> String {
    let bytes: Vec<u8> = characters.into_iter().map(|c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Opens the compiler in a folder and keeps it open, its other half first: whoever asks for it by name then gets it.
fn preload(folder: &Path) -> Option<PathBuf> {
    let find = |start: &str| {
        let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        names.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))).min()
    };
    let (builtins, compiler) = (find("libnvrtc-builtins.so."), find("libnvrtc.so.")?);
    for library in builtins.iter().chain([&compiler]) {
        // SAFETY: NVIDIA's library, whose initialisers only set itself up.
        std::mem::forget(unsafe { libloading::Library::new(library) }.ok()?);
    }
    Some(compiler)
}

/// Where a compiler may lie that the system does not find: the folder that `HECATE_NVRTC` names, toolkits, and the
/// packages of the Python that comes first in `PATH`.
fn folders() -> Vec<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(named).chain([PathBuf::from("/usr/local/cuda")]);
    let mut folders: Vec<_> = named("HECATE_NVRTC").into_iter().collect();
    folders.extend(toolkits.flat_map(|toolkit| [toolkit.join("lib64"), toolkit.join("lib")]));
    for site in pythons().iter().flat_map(|lib| sites(lib)) {
        folders.extend(["cu13/lib", "cuda_nvrtc/lib"].map(|folder| site.join("nvidia").join(folder)));
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Folders that hold `python3.x` folders.
fn pythons() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    let with_python = env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    all.extend(with_python.filter_map(|folder| Some(folder.parent()?.join("lib"))));
    all.extend(env::var_os("VIRTUAL_ENV").map(|environment| PathBuf::from(environment).join("lib")));
    all.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/lib")));
    all
}

/// Folders of Python packages under a `lib` folder.
fn sites(lib: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(lib).into_iter().flatten().flatten().map(|entry| entry.path());
    let pythons =
        versions.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
    pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|folder| python.join(folder))).collect()
}
