//! Kernels by name, and the one place where they are started.
//!
//! Every kernel takes one structure by value. Its Rust twin is declared with [`kernels!`](crate::launch::kernels), which
//! ties it to a file of kernels and a name in it.
#![allow(unsafe_code)]

use crate::{
    Cuda,
    compile::{Compiler, Image},
    error::failed,
};
use cudarc::{
    driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, sys::CUfunction_attribute},
    nvrtc::Ptx,
};
use hecate_core::{DType, Result, Tensor};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A file of kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Name without extension.
    pub(crate) name: &'static str,
    /// CUDA C++; `#include "hecate.cuh"` is all it can include.
    pub(crate) text: &'static str,
    /// The same as PTX for machines without a compiler; [`crate::ptx`] says what is in it.
    pub(crate) ptx: &'static [u8],
}

/// A file of kernels beside this one: `source!("map", "map.cu")`; its PTX is `src/ptx/map.ptx.br`.
macro_rules! source {
    ($name:literal, $file:literal) => {
        $crate::launch::Source {
            name: $name,
            text: include_str!($file),
            ptx: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ptx/", $name, ".ptx.br")),
        }
    };
}
pub(crate) use source;

/// The argument of a kernel. Declared by [`kernels!`] only.
///
/// # Safety
/// The layout is that of the structure of the same name in [`Arguments::SOURCE`], and the kernel
/// [`Arguments::NAME`] there takes it by value.
pub(crate) unsafe trait Arguments: Copy {
    const SOURCE: &'static Source;
    const NAME: &'static str;
}

/// Declares arguments of kernels: `kernels! { SOURCE { "map" Map { x: Array, count: u64 } } }`. Fields may be [`Array`],
/// [`Pointer`], `u64`, `u32`, `i32` and `f32`, or `repr(C)` structures and arrays of these, in the order and with the types
/// of the structure in the `.cu` file.
macro_rules! kernels {
    ($source:path { $( $kernel:literal $name:ident { $( $field:ident : $type:ty ),* $(,)? } )* }) => { $(
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        struct $name { $( $field: $type ),* }

        #[allow(unsafe_code)]
        // SAFETY: the structure of this name beside the kernel has the same fields; both sides lay them out as C does.
        unsafe impl $crate::launch::Arguments for $name {
            const SOURCE: &'static $crate::launch::Source = &$source;
            const NAME: &'static str = $kernel;
        }
    )* };
}
pub(crate) use kernels;

/// Elements of 32 bits on the device; may be null where a kernel says so.
pub(crate) type Pointer = u64;

/// Elements of a type known at run time: `struct Array { void* data; u32 type; }`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Array {
    pub(crate) data: u64,
    pub(crate) dtype: u32,
    unused: u32,
}

impl Array {
    /// An array that a kernel does not look at.
    pub(crate) const NONE: Self = Self { data: 0, dtype: 0, unused: 0 };

    /// Neighbours in 16 bytes; `RUN_LENGTH` in the kernels.
    pub(crate) fn wide(self) -> usize {
        if self.dtype == 0 { 4 } else { 8 }
    }
}

impl From<&Tensor<Cuda>> for Array {
    fn from(x: &Tensor<Cuda>) -> Self {
        let dtype = match x.dtype() {
            DType::Bf16 => 1,
            DType::F16 => 2,
            _ => 0,
        };
        Self { data: x.buffer().pointer(), dtype, unused: 0 }
    }
}

/// The address of a tensor of 32-bit elements.
pub(crate) fn pointer(x: &Tensor<Cuda>) -> Pointer {
    debug_assert_eq!(x.dtype().size(), 4);
    x.buffer().pointer()
}

/// How many blocks of how many threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (usize, usize, usize),
    /// Threads of a block; the kernel is compiled for at most as many as its `KERNEL` line says.
    pub(crate) threads: u32,
    /// Bytes of shared memory beside what the kernel declares itself.
    pub(crate) shared: usize,
}

impl Grid {
    /// `blocks` blocks.
    pub(crate) fn blocks(blocks: usize, threads: u32) -> Self {
        Self { blocks: (blocks, 1, 1), threads, shared: 0 }
    }

    /// At least one thread for each of `count` elements, at most 65,535 blocks: kernels go on in steps of the grid.
    pub(crate) fn elements(count: usize) -> Self {
        Self::blocks(count.div_ceil(256).clamp(1, 65_535), 256)
    }
}

/// Kernels that are loaded, by the names of their source and their own. Each keeps the module that it lies in alive.
pub(crate) struct Modules {
    compiler: Compiler,
    functions: Mutex<HashMap<(&'static str, &'static str), CudaFunction>>,
}

impl Modules {
    pub(crate) fn new(compiler: Compiler) -> Self {
        Self { compiler, functions: Mutex::default() }
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    fn function(
        &self,
        context: &Arc<CudaContext>,
        shared_memory: usize,
        source: &'static Source,
        name: &'static str,
    ) -> Result<CudaFunction> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&(source.name, name)) {
            return Ok(function.clone());
        }
        let loading = |error| failed(format!("loading the kernel `{name}` of {}", source.name), error);
        let module = self.compiler.load(source, name, |image| {
            let image = match image {
                Image::Cubin(bytes) => Ptx::from_binary(bytes),
                Image::Ptx(text) => Ptx::from_src(text),
            };
            context.load_module(image).map_err(|error| error.to_string())
        })?;
        let function = module.load_function(name).map_err(loading)?;
        // Set once, for all launches: they differ in what they ask for, and may come from several threads.
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let own = function.shared_size_bytes().map_err(loading)?;
        function.set_attribute(attribute, shared_memory as i32 - own).map_err(loading)?;
        functions.insert((source.name, name), function.clone());
        Ok(function)
    }
}

impl Cuda {
    /// Queues a kernel. Whatever its argument points to must be alive now; the stream orders freeing behind it.
    pub(crate) fn launch<A: Arguments>(&self, grid: Grid, arguments: &A) -> Result<()> {
        self.launch_on(self.stream(), grid, arguments)
    }

    /// The same on another stream of this value, for which the main one waits before anything is freed.
    pub(crate) fn launch_on<A: Arguments>(&self, stream: &CudaStream, grid: Grid, arguments: &A) -> Result<()> {
        let Grid { blocks: (x, y, z), threads, shared } = grid;
        let starting = |error| failed(format!("starting the kernel `{}` with {grid:?}", A::NAME), error);
        let function = self.modules().function(self.context(), self.properties().shared_memory, A::SOURCE, A::NAME)?;
        let config = LaunchConfig {
            grid_dim: (x as u32, y as u32, z as u32),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared as u32,
        };
        let argument = ByValue(*arguments);
        let _turn = self.kept().turn();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&argument);
        // SAFETY: `Arguments` promises that the kernel takes this structure; its pointers were read off live tensors of
        // the sizes it also names, and this value's main stream frees none of them before the kernel ran.
        unsafe { launch.launch(config) }.map_err(starting)?;
        Ok(())
    }
}

/// A structure that the driver copies.
struct ByValue<A>(A);

// SAFETY: `Arguments` are plain numbers.
unsafe impl<A: Arguments> cudarc::driver::DeviceRepr for ByValue<A> {}
