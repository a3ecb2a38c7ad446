//! From a kernel to something the driver loads.
//!
//! First a cubin in the cache on disk, of the compiler that is there. Next the run-time compiler (NVRTC), for exactly
//! this GPU. Last the PTX in this crate, which the driver compiles. What was tried and why it failed is in the error.
//! Kernels are compiled one by one, when they are first started; `prepare.rs` compiles those of some work at once.

use crate::{error::unsupported, nvrtc::Nvrtc, ptx, source::KernelSource};
use hecate_core::Result;
use std::{
    env, fmt, fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};
use tempfile::NamedTempFile;

/// Code that the driver takes.
pub(crate) enum Image {
    /// Machine code of one architecture.
    Cubin(Vec<u8>),
    /// An assembly language that the driver compiles.
    Ptx(String),
}

/// Makes images for one GPU.
pub(crate) struct Compiler {
    /// Of the GPU, major and minor.
    capability: (u32, u32),
    /// Version of CUDA that the driver speaks, as `1000 major + 10 minor`.
    driver: u32,
    /// Found when it is first needed.
    nvrtc: OnceLock<std::result::Result<Nvrtc, String>>,
    /// Its folder on disk.
    cache: Option<PathBuf>,
}

impl Compiler {
    /// For a GPU of this compute capability and a driver of this version.
    pub(crate) fn new(capability: (u32, u32), driver: u32) -> Self {
        Self { capability, driver, nvrtc: OnceLock::new(), cache: cache() }
    }

    /// With its cache in this folder.
    #[cfg(test)]
    pub(crate) fn in_folder(self, folder: PathBuf) -> Self {
        Self { cache: Some(folder), ..self }
    }

    /// Where no compiler is found.
    #[cfg(test)]
    pub(crate) fn without_nvrtc(self) -> Self {
        Self { nvrtc: Err("none here".to_owned()).into(), ..self }
    }

    /// The compiler, looked for once; or why there is none.
    fn nvrtc(&self) -> std::result::Result<&Nvrtc, &str> {
        self.nvrtc.get_or_init(|| self.find_nvrtc()).as_ref().map_err(String::as_str)
    }

    /// Whether kernels are compiled for exactly this GPU.
    pub(crate) fn is_there(&self) -> bool {
        self.nvrtc().is_ok()
    }

    /// A compiler that knows this GPU and whose machine code this driver takes: of its own major version, or an earlier one.
    fn find_nvrtc(&self) -> std::result::Result<Nvrtc, String> {
        let nvrtc = Nvrtc::find()?;
        let (version, path) = (nvrtc.version(), nvrtc.path());
        if !nvrtc.knows(self.capability) {
            let architecture = self.architecture();
            return Err(format!("{version} ({path}) does not know {architecture}: `pip install -U nvidia-cuda-nvrtc`"));
        }
        let major = self.driver / 1000;
        if nvrtc.major() <= major {
            return Ok(nvrtc);
        }
        Err(format!(
            "{version} ({path}) is newer than the driver, which speaks CUDA {major}: `pip install nvidia-cuda-nvrtc-cu{major}`"
        ))
    }

    /// `sm_90a` where the GPU has instructions of its own, else `sm_86`.
    fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// The kernel's file in the cache; none where there is no folder for caches, or no compiler to name the file by.
    fn file(&self, source: &KernelSource, kernel: &str, options: &[String]) -> Option<PathBuf> {
        self.cache.as_ref().and_then(|folder| Some(folder.join(self.key(source, kernel, options).ok()?)))
    }

    /// Whether what is compiled can be kept: there is a folder, and a file can be written there.
    pub(crate) fn keeps(&self) -> bool {
        // Rights alone do not tell: a disk may be full, or only be read.
        let probe = |folder: &PathBuf| {
            fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)?.write_all(&[0])
        };
        self.cache.as_ref().is_some_and(|folder| probe(folder).is_ok())
    }

    /// Whether the compiler is there and a cache for what it makes, and this kernel is not in it.
    ///
    /// What is damaged counts as there: it is built again when it is loaded.
    pub(crate) fn lacks(&self, source: &KernelSource, kernel: &str) -> bool {
        let options = options(&self.architecture(), Some(kernel));
        self.file(source, kernel, &options).is_some_and(|file| !file.exists())
    }

    /// Puts a kernel into the cache.
    pub(crate) fn fill(&self, source: &KernelSource, kernel: &str) -> Result<()> {
        // Whether the driver takes it is found when it is loaded.
        self.load(source, kernel, |image| match image {
            Image::Cubin(_) => Ok(()),
            Image::Ptx(_) => Err("not for the cache".to_owned()),
        })
    }

    /// For which GPU and driver.
    pub(crate) fn target(&self) -> ((u32, u32), u32) {
        (self.capability, self.driver)
    }

    /// The first image of a kernel that `load` takes.
    ///
    /// # Errors
    /// [`hecate_core::Error::Unsupported`] with everything that was tried.
    pub(crate) fn load<T>(
        &self,
        source: &KernelSource,
        kernel: &str,
        mut load: impl FnMut(Image) -> std::result::Result<T, String>,
    ) -> Result<T> {
        // What was tried and why it failed.
        let mut tried = Vec::new();
        let options = options(&self.architecture(), Some(kernel));
        let file = self.file(source, kernel, &options);
        if let Some(file) = &file
            && let Some(cubin) = read(file)
        {
            match cubin.and_then(|cubin| load(Image::Cubin(cubin))) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => tried.push(format!("the cached {}: {error}", file.display())),
            }
            // Damaged or of another driver: it is built again.
            let _ = fs::remove_file(file);
        }
        // Then the compiler, for exactly this GPU.
        match self.nvrtc().map_err(str::to_owned).and_then(|nvrtc| nvrtc.compile(source, &options)) {
            Ok(compiled) => match load(Image::Cubin(compiled.cubin.clone())) {
                Ok(loaded) => {
                    if let Some(file) = &file {
                        // A cache that cannot be written costs time at the next start, nothing else.
                        if let Err(error) = keep(file, &compiled.cubin) {
                            tracing::info!(file = %file.display(), %error, "this kernel is not cached");
                        }
                    }
                    return Ok(loaded);
                }
                Err(error) => tried.push(format!("what NVRTC made for {}: {error}", self.architecture())),
            },
            Err(error) => tried.push(format!("NVRTC: {error}")),
        }
        // Last the PTX of this crate, which the driver compiles.
        match self.embedded(source, kernel).and_then(|ptx| load(Image::Ptx(ptx))) {
            Ok(loaded) => return Ok(loaded),
            Err(error) => tried.push(format!("embedded PTX {}: {error}", ptx::VERSION)),
        }
        let why = format!(
            "`{kernel}` of {} could not be made for {} and a driver of CUDA {}. Tried {}. Install NVRTC (`pip install \
             nvidia-cuda-nvrtc`, with a driver of CUDA 12 `nvidia-cuda-nvrtc-cu12`), or update the driver",
            source.name,
            self.architecture(),
            version(self.driver),
            tried.join("; ")
        );
        Err(unsupported("these kernels", why))
    }

    /// The module in this crate, where this GPU can run it.
    fn embedded(&self, source: &KernelSource, kernel: &str) -> std::result::Result<String, String> {
        // The driver would refuse it with less to say.
        let ((major, minor), (least, and)) = (self.capability, ptx::CAPABILITY);
        if self.capability < ptx::CAPABILITY {
            return Err(format!(
                "for GPUs of compute capability {least}.{and} and later, this one has {major}.{minor}"
            ));
        }
        ptx::module(source, kernel)
    }

    /// Name of a cubin in the cache: everything it depends on.
    fn key(&self, source: &KernelSource, kernel: &str, options: &[String]) -> std::result::Result<String, String> {
        // Another compiler makes other machine code.
        let compiler = self.nvrtc()?.version();
        let options = options.iter().map(String::as_str);
        let hash = source.hash([compiler.as_str(), env!("CARGO_PKG_VERSION")].into_iter().chain(options));
        Ok(format!("{kernel}-{hash}.cubin"))
    }
}

/// Where kernels come from.
impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nvrtc(), &self.cache) {
            (Ok(nvrtc), Some(folder)) => {
                write!(f, "NVRTC {} ({}), cached in {}", nvrtc.version(), nvrtc.path(), folder.display())
            }
            (Ok(nvrtc), None) => write!(f, "NVRTC {} ({}), not cached", nvrtc.version(), nvrtc.path()),
            (Err(error), _) if self.capability >= ptx::CAPABILITY => {
                write!(f, "embedded PTX {}, compiled by the driver (NVRTC: {error})", ptx::VERSION)
            }
            (Err(error), _) => write!(f, "none can be compiled: {error}"),
        }
    }
}

/// Options of every compilation, of one kernel or of a whole file. No fast arithmetic: results are to be those of the
/// other backends.
pub(crate) fn options(architecture: &str, kernel: Option<&str>) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    if architecture.starts_with("sm") {
        options.push("--ptxas-options=-v".into());
    }
    if let Some(kernel) = kernel {
        options.extend(["-DONE_KERNEL".into(), format!("-DWANTED_{kernel}=0,")]);
    }
    options
}

/// `13020` as `13.2`.
pub(crate) fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// `HECATE_CACHE`, or the user's folder for caches.
fn cache() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = folder("HECATE_CACHE");
    let user = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let windows = || folder("LOCALAPPDATA");
    Some(own.or_else(|| Some(user().or_else(windows)?.join("hecate")))?.join("cuda"))
}

/// Machine code of a file in the cache; none where there is no such file. A driver would run what is damaged, or end the
/// program.
pub(crate) fn read(file: &Path) -> Option<std::result::Result<Vec<u8>, String>> {
    let mut bytes = fs::read(file).ok()?;
    let whole = |(sum, cubin): (&[u8; blake3::OUT_LEN], &[u8])| blake3::hash(cubin) == *sum;
    if !bytes.split_first_chunk().is_some_and(whole) {
        return Some(Err("damaged, its checksum does not fit its content".to_owned()));
    }
    bytes.drain(..blake3::OUT_LEN);
    Some(Ok(bytes))
}

/// Writes machine code into the cache, after its checksum.
pub(crate) fn keep(file: &Path, cubin: &[u8]) -> std::io::Result<()> {
    write(file, &[blake3::hash(cubin).as_bytes(), cubin].concat())
}

/// Writes under another name first, so that nobody reads half a file.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Of a name that nobody else has; removed where it does not get its own.
    let mut unfinished = NamedTempFile::new_in(folder)?;
    unfinished.write_all(bytes)?;
    unfinished.persist(file)?;
    Ok(())
}
