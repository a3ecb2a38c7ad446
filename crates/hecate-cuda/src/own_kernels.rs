//! Kernels of one's own: PTX that a program brought or wrote, started on tensors.
//!
//! The crate's own kernels do not come this way: a type stands for the arguments of each of them ([`kernels!`](crate::launch::kernels)).
#![allow(unsafe_code)]

use crate::{
    Cuda,
    compile::options,
    error::{failed, unsupported},
    launch::{MOST_BLOCKS, MOST_ROWS, MOST_THREADS},
    ledger::driver_turn,
    nvrtc::Nvrtc,
    ptx,
    source::KernelSource,
};
use cudarc::{
    driver::{CudaFunction, LaunchConfig, PushKernelArg, sys},
    nvrtc::Ptx,
};
use hecate_core::{Device as _, Error, Result, Tensor};
use std::{fmt, sync::Arc};

/// A file of kernels in CUDA C++ that another crate brings: `static SOURCE: OwnSource = OwnSource::new("mine", include_str!("mine.cu"))`.
/// Each kernel of it is `extern "C"` and takes arguments one by one. Names tell files apart: no two of a program have the same.
#[derive(Clone, Copy, Debug)]
pub struct OwnSource(KernelSource);

impl OwnSource {
    /// The file's name without extension, and its text. It may include nothing but this crate's own headers.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self(KernelSource { name, text, ptx: &[] })
    }

    /// The same, with its [modules](OwnSource::modules) compressed with Brotli: machines with a driver and no compiler run these.
    pub const fn with_ptx(name: &'static str, text: &'static str, ptx: &'static [u8]) -> Self {
        Self(KernelSource { name, text, ptx })
    }

    /// PTX of these kernels, compiled now, for GPUs of [`Cuda::EMBEDDED_CAPABILITY`] and later ones. No GPU is needed.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no compiler (NVRTC), or it refuses the text.
    pub fn modules(&self, kernels: &[&str]) -> Result<String> {
        let compile = |&kernel| {
            let compiled = Nvrtc::find()?.compile(&self.0, &options(ptx::ARCHITECTURE, Some(kernel)))?;
            Ok((kernel, compiled.ptx))
        };
        let modules = kernels.iter().map(compile).collect::<std::result::Result<Vec<_>, String>>();
        let why = |error| unsupported("PTX of these kernels", format!("{}: {error}", self.0.name));
        Ok(ptx::file(&self.0, modules.map_err(why)?.into_iter()))
    }

    /// Refuses modules that are of another text than the kernels are now, or that lack one of these kernels.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with what is wrong with which.
    pub fn check_ptx(&self, kernels: &[&str]) -> Result<()> {
        let check = |kernel: &&str| ptx::module(&self.0, kernel).map_err(|error| format!("`{kernel}`: {error}"));
        let wrong = kernels.iter().find_map(|kernel| check(kernel).err());
        wrong.map_or(Ok(()), |why| Err(unsupported("PTX of these kernels", why)))
    }
}

/// A kernel that [`Cuda::load_ptx`] or [`Cuda::load_source`] loaded. It stays loaded as long as its device value is there, so that graphs may hold it.
#[derive(Clone)]
pub struct OwnKernel {
    cuda: Cuda,
    function: CudaFunction,
    name: Arc<str>,
    /// Bytes of shared memory that it declares itself.
    shared: usize,
    /// Bytes of each parameter, where the driver tells them: from CUDA 12.4 on.
    parameters: Option<Vec<usize>>,
}

/// What a kernel is started with.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// The address of an array that it reads.
    Read(&'a Tensor<Cuda>),
    /// The address of an array that it writes.
    Write(&'a Tensor<Cuda>),
    /// A number of 32 bits.
    U32(u32),
    /// A number of 64 bits.
    U64(u64),
    /// A float of 32 bits.
    F32(f32),
    /// A float of 64 bits.
    F64(f64),
}

/// How many blocks of how many threads, along x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnGrid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Bytes of shared memory of a block, beside what the kernel declares itself.
    pub shared: usize,
}

impl Cuda {
    /// Loads the kernel `name` from PTX, the language that the driver compiles for its GPU: milliseconds for a short one.
    ///
    /// # Errors
    /// A text with a zero byte, which the driver would take for its end; PTX that the driver refuses, as one that is newer than it is;
    /// a name that the text has no kernel of.
    pub fn load_ptx(&self, text: &str, name: &str) -> Result<OwnKernel> {
        if text.contains('\0') || name.contains('\0') {
            let found = format!("a zero byte in the PTX of `{name:?}`");
            return Err(Error::Config { what: "load_ptx", option: "text", found, expected: "text without one" });
        }
        let _driver = driver_turn();
        let why = |what: &str| failed(format!("loading the kernel `{name}`"), what);
        let module = self.context().load_module(Ptx::from_src(text));
        let module = module.map_err(|error| why(&format!("the driver refuses its PTX: {error}")))?;
        let function = module.load_function(name).map_err(|error| why(&format!("no kernel of this name: {error}")))?;
        let shared = function.shared_size_bytes().map_err(|error| why(&error.to_string()))?.unsigned_abs() as usize;
        let most = self.properties().shared_memory.saturating_sub(shared) as i32;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, most).map_err(|error| why(&error.to_string()))?;
        self.modules().keep(&function);
        Ok(self.own_kernel(function, name, shared))
    }

    /// The kernel `name` of a file in CUDA C++: from the cache on disk, else compiled now for exactly this GPU. Later calls find it loaded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with all that was tried, where there is no compiler (NVRTC) or it refuses the text.
    pub fn load_source(&self, source: &'static OwnSource, name: &'static str) -> Result<OwnKernel> {
        let most = self.properties().shared_memory;
        let function = self.modules().function(self.context(), most, &source.0, name)?.function;
        let shared = function.shared_size_bytes();
        let shared = shared.map_err(|error| failed(format!("loading the kernel `{name}`"), error))?;
        Ok(self.own_kernel(function, name, shared.unsigned_abs() as usize))
    }

    /// A function with what the driver tells of it.
    fn own_kernel(&self, function: CudaFunction, name: &str, shared: usize) -> OwnKernel {
        let parameters = (self.properties().driver >= PARAMETERS_DRIVER).then(|| parameters(&function));
        OwnKernel { cuda: self.clone(), function, name: name.into(), shared, parameters }
    }
}

/// Most threads of a block along the last axis.
const MOST_DEEP: usize = 64;

/// Version of the driver from which on it tells what parameters a kernel has.
const PARAMETERS_DRIVER: u32 = 12_040;

/// Bytes of each parameter, in order.
fn parameters(function: &CudaFunction) -> Vec<usize> {
    let size = |index| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: both are places for a number; an index past the last parameter is an error.
        let found = unsafe { sys::cuFuncGetParamInfo(function.cu_function(), index, &mut offset, &mut size) };
        found.result().ok().map(|()| size)
    };
    (0..).map_while(size).collect()
}

impl OwnKernel {
    /// Queues the kernel behind what was queued on its device.
    ///
    /// # Safety
    /// * The kernel takes these arguments, in this order and of these types.
    /// * It reads and writes no array past its end, and writes only those of [`Argument::Write`]. Tensors that share one's memory are
    ///   not read as if it were unchanged.
    /// * It ends.
    ///
    /// # Errors
    /// Numbers of blocks and threads that no GPU starts; more shared memory than this one has; arrays of another device value; where
    /// the driver tells what the kernel takes, arguments of another number or other sizes; the driver's own.
    pub unsafe fn launch(&self, grid: OwnGrid, arguments: &[Argument<'_>]) -> Result<()> {
        self.check(grid)?;
        self.check_arguments(arguments)?;
        // Where kernels are gathered none is started.
        if self.cuda.modules().is_gathering() {
            return Ok(());
        }
        let config = LaunchConfig {
            grid_dim: grid.blocks.into(),
            block_dim: grid.threads.into(),
            shared_mem_bytes: grid.shared as u32,
        };
        let passed: Vec<Passed> = arguments.iter().copied().map(Passed::from).collect();
        let _turn = self.cuda.ledger().turn();
        let mut launch = self.cuda.stream().launch_builder(&self.function);
        for argument in &passed {
            match argument {
                Passed::Half(x) => launch.arg(x),
                Passed::Whole(x) => launch.arg(x),
            };
        }
        // SAFETY: the caller's; addresses are those of live arrays, which the stream frees after the kernel ran.
        let started = unsafe { launch.launch(config) };
        started.map_err(|error| failed(format!("starting the kernel `{}` with {grid:?}", self.name), error))?;
        for argument in arguments {
            if let Argument::Write(array) = argument {
                array.buffer().written_over();
            }
        }
        Ok(())
    }

    fn check(&self, OwnGrid { blocks, threads, shared }: OwnGrid) -> Result<()> {
        let most = self.cuda.properties().shared_memory;
        let within = |found: [u32; 3], most: [usize; 3]| {
            found.iter().zip(most).all(|(&x, most)| (1..=most).contains(&(x as usize)))
        };
        let together = threads.iter().map(|&x| u64::from(x)).product::<u64>();
        let fits = within(blocks, [MOST_BLOCKS, MOST_ROWS, MOST_ROWS])
            && within(threads, [MOST_THREADS, MOST_THREADS, MOST_DEEP])
            && together <= MOST_THREADS as u64;
        if fits && self.shared.saturating_add(shared) <= most {
            return Ok(());
        }
        let own = self.shared;
        let why = format!(
            "the kernel `{}` was asked for as {blocks:?} blocks of {threads:?} threads with {shared} bytes of shared memory beside its \
             own {own}; blocks go from 1 to {MOST_BLOCKS} x {MOST_ROWS} x {MOST_ROWS}, threads to {MOST_THREADS} x {MOST_THREADS} x {MOST_DEEP} \
             and {MOST_THREADS} together, shared memory to {most} bytes",
            self.name
        );
        Err(unsupported("a launch of this size", why))
    }

    fn check_arguments(&self, arguments: &[Argument<'_>]) -> Result<()> {
        for argument in arguments {
            let (Argument::Read(array) | Argument::Write(array)) = argument else { continue };
            if array.buffer().owner() != self.cuda.identity() {
                let found = format!("an array of {}", array.device().id());
                let expected = "arrays of the device value that loaded the kernel";
                return Err(Error::Config { what: "launch", option: "arguments", found, expected });
            }
        }
        let given: Vec<usize> = arguments.iter().map(Argument::size).collect();
        match &self.parameters {
            Some(parameters) if *parameters != given => {
                let found = format!("{given:?} bytes for `{}`, which takes {parameters:?}", self.name);
                Err(Error::Config { what: "launch", option: "arguments", found, expected: "what the kernel takes" })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for OwnKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnKernel({} on {:?})", self.name, self.cuda)
    }
}

impl Argument<'_> {
    /// Bytes that it is passed as.
    fn size(&self) -> usize {
        match self {
            Self::U32(_) | Self::F32(_) => 4,
            Self::Read(_) | Self::Write(_) | Self::U64(_) | Self::F64(_) => 8,
        }
    }
}

/// An argument as the driver copies it.
enum Passed {
    Half(u32),
    Whole(u64),
}

impl From<Argument<'_>> for Passed {
    fn from(argument: Argument<'_>) -> Self {
        match argument {
            Argument::Read(array) | Argument::Write(array) => Self::Whole(array.buffer().pointer()),
            Argument::U32(x) => Self::Half(x),
            Argument::F32(x) => Self::Half(x.to_bits()),
            Argument::U64(x) => Self::Whole(x),
            Argument::F64(x) => Self::Whole(x.to_bits()),
        }
    }
}
