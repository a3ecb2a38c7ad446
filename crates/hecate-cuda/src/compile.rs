//! From a file of kernels to something the driver loads.
//!
//! In this order: a cubin in the cache on disk; the run-time compiler (NVRTC), for exactly this GPU; the PTX in this
//! crate, which the driver compiles (no file of kernels has any yet). What was tried and why it failed is in the error.

use crate::{error::unsupported, launch::Source, nvrtc::Nvrtc};
use hecate_core::Result;
use std::{
    env, fmt, fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// What every file of kernels includes.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("device.cuh", include_str!("device.cuh")),
    ("hecate.cuh", include_str!("hecate.cuh")),
    ("linear.cuh", include_str!("engine/linear.cuh")),
    ("chunk.cuh", include_str!("engine/chunk.cuh")),
    ("block.cuh", include_str!("recurrent/block.cuh")),
    ("recurrent.cuh", include_str!("recurrent/recurrent.cuh")),
    ("product.cuh", include_str!("product.cuh")),
    ("newton_schulz.cuh", include_str!("rules/newton_schulz.cuh")),
    ("activation.cuh", include_str!("deep/activation.cuh")),
    ("bias.cuh", include_str!("deep/bias.cuh")),
    ("deep.cuh", include_str!("deep/deep.cuh")),
    ("deep_backward.cuh", include_str!("deep/deep_backward.cuh")),
    ("deep_options.cuh", include_str!("deep/deep_options.cuh")),
    ("layer_norm.cuh", include_str!("deep/layer_norm.cuh")),
    ("retention.cuh", include_str!("deep/retention.cuh")),
    ("attention.cuh", include_str!("primitives/attention.cuh")),
];

/// Code that the driver takes.
pub(crate) enum Image {
    /// Machine code of one architecture.
    Cubin(Vec<u8>),
    /// An assembly language that the driver compiles.
    Ptx(String),
}

/// Makes images for one architecture.
pub(crate) struct Compiler {
    capability: (u32, u32),
    nvrtc: OnceLock<std::result::Result<Nvrtc, String>>,
    cache: Option<PathBuf>,
}

impl Compiler {
    pub(crate) fn new(capability: (u32, u32)) -> Self {
        Self { capability, nvrtc: OnceLock::new(), cache: cache() }
    }

    /// With its cache in this folder.
    #[cfg(test)]
    pub(crate) fn in_folder(self, folder: PathBuf) -> Self {
        Self { cache: Some(folder), ..self }
    }

    fn nvrtc(&self) -> std::result::Result<&Nvrtc, &str> {
        self.nvrtc.get_or_init(Nvrtc::find).as_ref().map_err(String::as_str)
    }

    /// `sm_90a` where the GPU has instructions of its own, else `sm_86`.
    fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// The first image that `load` takes.
    ///
    /// # Errors
    /// [`hecate_core::Error::Unsupported`] with everything that was tried.
    pub(crate) fn load<T>(
        &self,
        source: &Source,
        mut load: impl FnMut(Image) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let mut tried = Vec::new();
        let options = self.options();
        let file = self.cache.as_ref().and_then(|folder| Some(folder.join(self.key(source, &options).ok()?)));
        if let Some(file) = &file
            && let Ok(cubin) = fs::read(file)
        {
            match load(Image::Cubin(cubin)) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => tried.push(format!("the cached {}: {error}", file.display())),
            }
            // Broken or of another driver: it is built again.
            let _ = fs::remove_file(file);
        }
        match self.nvrtc().map_err(str::to_owned).and_then(|nvrtc| nvrtc.compile(source, &options)) {
            Ok(compiled) => match load(Image::Cubin(compiled.cubin.clone())) {
                Ok(loaded) => {
                    if let Some(file) = &file {
                        // A cache that cannot be written costs time at the next start, nothing else.
                        let _ = write(file, &compiled.cubin);
                    }
                    return Ok(loaded);
                }
                Err(error) => tried.push(format!("what NVRTC made for {}: {error}", self.architecture())),
            },
            Err(error) => tried.push(format!("NVRTC: {error}")),
        }
        if source.ptx.is_empty() {
            tried.push("embedded PTX: none for these kernels".to_owned());
        } else {
            match load(Image::Ptx(source.ptx.to_owned())) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => tried.push(format!("embedded PTX: {error}")),
            }
        }
        let why = format!(
            "`{}` could not be made for {}. Tried {}. Install NVRTC (`pip install nvidia-cuda-nvrtc`), or update the driver",
            source.name,
            self.architecture(),
            tried.join("; ")
        );
        Err(unsupported("these kernels", why))
    }

    fn options(&self) -> Vec<String> {
        options(&self.architecture())
    }

    /// Name of a cubin in the cache: everything it depends on.
    fn key(&self, source: &Source, options: &[String]) -> std::result::Result<String, String> {
        let compiler = self.nvrtc()?.version();
        let mut hash = blake3::Hasher::new();
        let headers = HEADERS.iter().map(|(_, text)| *text);
        let options = options.iter().map(String::as_str);
        let all = [source.text, &compiler, env!("CARGO_PKG_VERSION")].into_iter().chain(headers).chain(options);
        for part in all {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        Ok(format!("{}-{}.cubin", source.name, hash.finalize().to_hex()))
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nvrtc() {
            Ok(nvrtc) => write!(f, "NVRTC {} ({})", nvrtc.version(), nvrtc.path())?,
            Err(error) => write!(f, "none can be compiled: {error}")?,
        }
        match &self.cache {
            Some(folder) if self.nvrtc().is_ok() => write!(f, ", cached in {}", folder.display()),
            _ => Ok(()),
        }
    }
}

/// Options of every compilation. No fast arithmetic: results are to be those of the other backends.
pub(crate) fn options(architecture: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "--ptxas-options=-v".into()]
}

/// `HECATE_CACHE`, or the user's folder for caches.
fn cache() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = folder("HECATE_CACHE");
    let user = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let windows = || folder("LOCALAPPDATA");
    Some(own.or_else(|| Some(user().or_else(windows)?.join("hecate")))?.join("cuda"))
}

/// Writes under another name first, so that nobody reads half a file.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Neither another process nor another thread has this name.
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = file.with_extension(format!("{}-{number}.part", std::process::id()));
    let written = fs::File::create(&unfinished).and_then(|mut out| out.write_all(bytes));
    written.and_then(|()| fs::rename(&unfinished, file)).inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })
}
