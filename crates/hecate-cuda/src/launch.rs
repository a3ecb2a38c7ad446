//! The one place where kernels are started, and the types of their arguments.
//!
//! Every kernel takes one structure by value. Its Rust twin is declared with [`kernels!`](crate::launch::kernels), which
//! ties it to a file of kernels and a name in it.
#![allow(unsafe_code)]

use crate::{
    Cuda, Properties,
    arguments::{Out, Void, arguments},
    error::{failed, unsupported},
    modules::Loaded,
    source::KernelSource,
};
use cudarc::driver::{CudaStream, DriverError, LaunchArgs, LaunchConfig, PushKernelArg, sys};
use hecate_core::{DType, Error, Result, Tensor};

/// The argument of a kernel. Declared by [`kernels!`] only.
///
/// # Safety
/// The layout is that of the structure of the same name in [`KernelArguments::SOURCE`], and the kernel
/// [`KernelArguments::NAME`] there takes it by value.
pub(crate) unsafe trait KernelArguments: Copy {
    const SOURCE: &'static KernelSource;
    const NAME: &'static str;
}

/// Declares arguments of kernels: `kernels! { SOURCE { "map" Map { x: Array, count: u64 } } }`. Fields are those of
/// [`arguments!`](crate::arguments::arguments), and a test compares them with the structure in the `.cu` file. A kernel whose only
/// field is a structure takes that structure itself, so that several kernels can share one.
macro_rules! kernels {
    ($source:path { $( $kernel:literal $name:ident { $( $field:ident : $type:ty ),* $(,)? } )* }) => { $(
        $crate::arguments::arguments! { struct $name { $( $field: $type ),* } }

        #[allow(unsafe_code)]
        // SAFETY: a test finds the same fields in the structure that the kernel takes; both sides lay them out as C does.
        unsafe impl $crate::launch::KernelArguments for $name {
            const SOURCE: &'static $crate::source::KernelSource = &$source;
            const NAME: &'static str = $kernel;
        }

        #[cfg(test)]
        inventory::submit! {
            $crate::arguments::Argument {
                source: &$source,
                kernel: $kernel,
                shape: <$name as $crate::arguments::Field>::shape,
                bytes: size_of::<$name>(),
            }
        }
    )* };
}
pub(crate) use kernels;

/// The address of elements on the device; may be null where a kernel says so.
pub(crate) type Pointer = u64;

arguments! {
    /// Elements of a type known at run time.
    pub(crate) struct Array {
        pub(crate) data: Out<Void>,
        /// 0 for 32-bit floats, 1 for bfloat16, 2 for float16.
        pub(crate) dtype: u32,
    }
}

impl Array {
    /// An array that a kernel does not look at.
    pub(crate) const NONE: Self = Self { data: 0, dtype: 0 };

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
        Self { data: x.buffer().pointer(), dtype }
    }
}

/// The address of a tensor of 32-bit elements.
pub(crate) fn pointer(x: &Tensor<Cuda>) -> Pointer {
    debug_assert_eq!(x.dtype().size(), 4);
    x.buffer().pointer()
}

/// The address of an array, null where there is none.
pub(crate) fn optional(x: Option<&Tensor<Cuda>>) -> Pointer {
    x.map_or(0, pointer)
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

    /// Refuses what no GPU starts, and what would be another number of blocks in the driver's 32 bits.
    fn check(&self, kernel: &str, shared_memory: usize) -> Result<()> {
        let (x, y, z) = self.blocks;
        let fits = [(x, MOST_BLOCKS), (y, MOST_ROWS), (z, MOST_ROWS), (self.threads as usize, MOST_THREADS)];
        if fits.iter().all(|&(count, most)| (1..=most).contains(&count)) && self.shared <= shared_memory {
            return Ok(());
        }
        let why = format!(
            "the kernel `{kernel}` wants {self:?}; blocks go to {MOST_BLOCKS} x {MOST_ROWS} x {MOST_ROWS}, threads to \
             {MOST_THREADS}, shared memory to {shared_memory} bytes: make the batch, the sequences or the widths smaller"
        );
        Err(unsupported("a call of this size", why))
    }
}

/// Most blocks along the first axis of a grid, on every GPU.
pub(crate) const MOST_BLOCKS: usize = (1 << 31) - 1;

/// Most blocks along each of the other axes.
pub(crate) const MOST_ROWS: usize = 65_535;

/// Most threads of a block.
pub(crate) const MOST_THREADS: usize = 1024;

impl Cuda {
    /// Queues a kernel. Whatever its argument points to must be alive now; the stream orders freeing after it.
    pub(crate) fn launch<A: KernelArguments>(&self, grid: Grid, arguments: &A) -> Result<()> {
        self.launch_on(self.stream(), grid, arguments)
    }

    /// The same on another stream of this value, for which the main one waits before anything is freed.
    pub(crate) fn launch_on<A: KernelArguments>(&self, stream: &CudaStream, grid: Grid, arguments: &A) -> Result<()> {
        // SAFETY: as `queue` says.
        self.queue(stream, grid, arguments, |launch, config| unsafe { launch.launch(config) })
    }

    /// As [`Cuda::launch`], of a kernel whose blocks wait for each other: all run at once, or the driver refuses to start it.
    pub(crate) fn launch_together<A: KernelArguments>(&self, grid: Grid, arguments: &A) -> Result<()> {
        // SAFETY: as `queue` says.
        self.queue(self.stream(), grid, arguments, |launch, config| unsafe { launch.launch_cooperative(config) })
    }

    /// A kernel with its argument, which `start` starts.
    ///
    /// [`KernelArguments`] promises that the kernel takes this structure. Its pointers were read off live tensors of the sizes
    /// it also names. This value's main stream frees none of them before the kernel ran.
    fn queue<A: KernelArguments, E>(
        &self,
        stream: &CudaStream,
        grid: Grid,
        arguments: &A,
        start: impl FnOnce(&mut LaunchArgs<'_>, LaunchConfig) -> std::result::Result<E, DriverError>,
    ) -> Result<()> {
        let Grid { blocks: (x, y, z), threads, shared } = grid;
        let Some(Loaded { function, .. }) = self.loaded::<A>(grid)? else { return Ok(()) };
        // Blocks are rows of threads: kernels count along one axis.
        let config = LaunchConfig {
            grid_dim: (x as u32, y as u32, z as u32),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared as u32,
        };
        tracing::trace!(kernel = A::NAME, grid = ?(x, y, z), threads, "launch");
        // The driver copies it before this returns.
        let argument = ByValue(*arguments);
        let _turn = self.ledger().turn();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&argument);
        start(&mut launch, config).map_err(|error| starting::<A>(grid, error))?;
        Ok(())
    }

    /// A kernel that this grid suits, compiled and loaded at its first launch. None where kernels are gathered: what they would
    /// compute is nowhere.
    fn loaded<A: KernelArguments>(&self, grid: Grid) -> Result<Option<Loaded>> {
        let shared_memory = self.properties().shared_memory;
        grid.check(A::NAME, shared_memory)?;
        if self.modules().gathered(A::SOURCE, A::NAME) {
            return Ok(None);
        }
        self.modules().function(self.context(), shared_memory, A::SOURCE, A::NAME).map(Some)
    }
}

/// An error of the driver where a kernel is started.
fn starting<A: KernelArguments>(grid: Grid, error: DriverError) -> Error {
    failed(format!("starting the kernel `{}` with {grid:?}", A::NAME), error)
}

/// Versions of the driver from which on graphs hold kernels that begin early, and launches say how much of a multiprocessor is
/// shared memory.
const EARLY_DRIVER: u32 = 12_030;
const SHARE_DRIVER: u32 = 12_050;

impl Cuda {
    /// As [`Cuda::launch`], of a kernel that calls `follow` of `follow.cuh`: it may begin while those before it still run.
    /// Until then it writes nothing, and reads only what [`Buffer::is_settled`](crate::device::Buffer::is_settled) says
    /// nobody writes. Its blocks come in clusters of so many.
    pub(crate) fn launch_early<A: KernelArguments>(&self, grid: Grid, cluster: u32, arguments: &A) -> Result<()> {
        let Grid { blocks: (x, y, z), threads, shared } = grid;
        let Some(Loaded { function, exact }) = self.loaded::<A>(grid)? else { return Ok(()) };
        // Other code does not wait by itself: a launch without these properties does that for it.
        if !(exact && self.begins_early()) {
            if cluster == 1 {
                return self.launch(grid, arguments);
            }
            let why = format!("`{}` was not compiled for this GPU, which NVRTC of CUDA 12.3 and later does", A::NAME);
            return Err(unsupported("clusters of blocks", why));
        }
        let mut attributes = self.early(grid, cluster);
        // Sizes fit: `check` saw to it.
        let config = sys::CUlaunchConfig {
            gridDimX: x as u32,
            gridDimY: y as u32,
            gridDimZ: z as u32,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: self.stream().cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        tracing::trace!(kernel = A::NAME, grid = ?(x, y, z), threads, cluster, "launch");
        // One argument, by value: the driver wants the address of where it lies.
        let mut argument = std::ptr::from_ref(arguments).cast_mut().cast();
        let _turn = self.ledger().turn();
        let starting = |error| starting::<A>(grid, error);
        self.context().bind_to_thread().map_err(starting)?;
        // SAFETY: as of `launch_on`; the configuration and what it points to live until the driver, which copies them, returns.
        // The kernel calls `follow`, and so reads nothing that one before it still writes.
        unsafe { sys::cuLaunchKernelEx(&config, function.cu_function(), &raw mut argument, std::ptr::null_mut()) }
            .result()
            .map_err(starting)
    }

    /// What sets such a launch apart: it may overlap with the one before, and blocks come in clusters. A multiprocessor has as
    /// much shared memory as its blocks want.
    fn early(&self, grid: Grid, cluster: u32) -> Vec<sys::CUlaunchAttribute> {
        use sys::CUlaunchAttributeID as Id;
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let early = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let clusters = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
        // The driver looks at the ones that are named here alone.
        let mut attributes = vec![
            attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, early),
            attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, sys::CUlaunchAttributeValue { clusterDim: clusters }),
        ];
        // Older drivers refuse what they do not know.
        if self.properties().driver >= SHARE_DRIVER {
            let share = sys::CUlaunchAttributeValue { sharedMemCarveout: self.share(grid) };
            attributes.push(attribute(Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, share));
        }
        attributes
    }

    /// Per cent of a multiprocessor's memory that is shared, for all blocks that it gets. There are few such shares: kernels that
    /// want others do not overlap, and what is left is a cache.
    fn share(&self, grid: Grid) -> u32 {
        let Properties { multiprocessors, shared_memory, .. } = *self.properties();
        let (x, y, z) = grid.blocks;
        // Blocks beyond what runs at once wait in any case.
        // A KiB of each block is the driver's.
        let wanted = (x * y * z).div_ceil(multiprocessors as usize).saturating_mul(grid.shared + 1024);
        let shares = [25, 40, 65, 100];
        shares.into_iter().find(|&share| 100 * wanted <= share * shared_memory).unwrap_or(100) as u32
    }

    /// Whether kernels can begin early and in clusters: GPU and driver know how, and kernels are compiled for the GPU. Before
    /// CUDA 12.3 graphs cannot hold them.
    pub(crate) fn begins_early(&self) -> bool {
        self.properties().capability.0 >= 9 && self.properties().driver >= EARLY_DRIVER && self.compiles()
    }
}

/// A structure that the driver copies.
struct ByValue<A>(A);

// SAFETY: `KernelArguments` are plain numbers.
unsafe impl<A: KernelArguments> cudarc::driver::DeviceRepr for ByValue<A> {}
