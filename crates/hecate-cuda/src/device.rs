//! The device: a GPU, a stream of work in order, and arrays in its memory.
#![allow(unsafe_code)]

pub(crate) mod streams;
pub(crate) mod transfers;

use crate::{
    Algorithm,
    compile::{Compiler, version},
    error::{failed, unsupported},
    launch::Modules,
    nvrtc::Nvrtc,
    recording::{self, Kept, Table},
};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use hecate_core::{DType, Device, Host, Recording, Result, Shape, Step, Tensor};
use std::{
    collections::HashMap,
    fmt,
    mem::ManuallyDrop,
    panic,
    sync::{Arc, Mutex, Once, PoisonError},
    thread,
};
use transfers::{Transfers, host_bytes};

/// A GPU and a stream on it. Clones are the same stream; several values are several streams, or several GPUs.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

struct Inner {
    ordinal: usize,
    context: Arc<CudaContext>,
    // Let go of before the stream that it is bound to.
    blas: std::sync::OnceLock<Option<crate::blas::Blas>>,
    stream: Arc<CudaStream>,
    urgent: Arc<CudaStream>,
    transfers: Transfers,
    properties: Properties,
    modules: Modules,
    options: Options,
    kept: Arc<Kept>,
    tables: Mutex<HashMap<Vec<u32>, Buffer>>,
}

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block can ask for.
    pub shared_memory: usize,
    /// Bytes of memory.
    pub memory: usize,
    /// Version of CUDA that the driver speaks, as `1000 major + 10 minor`.
    pub driver: u32,
}

/// How calls are computed (tests and measurements).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether fresh memory is filled with NaN.
    pub(crate) poisoned: bool,
    /// Whether matrix products keep to our own kernel.
    pub(crate) own_products: bool,
    /// Whether the kernels of a call go one after the other.
    pub(crate) in_turn: bool,
    /// How the linear rules go.
    pub(crate) algorithm: Algorithm,
}

/// Memory of a tensor.
pub struct Buffer {
    memory: ManuallyDrop<CudaSlice<u8>>,
    born: u64,
    kept: Arc<Kept>,
}

/// Most tables that are kept on the device.
const TABLES: usize = 256;

/// The most bytes that a pool's memory in use ever had.
const PEAK: sys::CUmemPool_attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;

/// The oldest driver that speaks what the kernels are written in (CUDA 12.0).
const OLDEST_DRIVER: u32 = 12_000;

/// Opens the compiler while the driver starts; whoever needs it waits for it then. cuBLAS is left alone: opening its hundreds
/// of megabytes holds the driver up, and not everybody needs it.
fn read_libraries() {
    static READ: Once = Once::new();
    let open = || drop(Nvrtc::find());
    // Without a thread it is opened when it is needed.
    READ.call_once(|| drop(thread::Builder::new().name("compiler".into()).spawn(open)));
}

impl Cuda {
    /// The GPU with this number, counted from 0 as `nvidia-smi` does, and a stream of its own.
    ///
    /// # Errors
    /// [`hecate_core::Error::Unsupported`] where there is no driver, an old one, or no such GPU.
    pub fn new(ordinal: usize) -> Result<Self> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(unsupported(
                "this device",
                format!("number {ordinal} was asked for, the driver lists {count}"),
            ));
        }
        guarded(|| Self::open(ordinal))
    }

    /// Number of GPUs that the driver lists.
    ///
    /// # Errors
    /// [`hecate_core::Error::Unsupported`] where there is no driver, or none that finds a GPU.
    pub fn count() -> Result<usize> {
        // SAFETY: looks for a library by name and opens it; libcuda's initialisers are the vendor's.
        if !unsafe { sys::is_culib_present() } {
            let why = "no NVIDIA driver here (libcuda.so.1 not found); install it, or use another device";
            return Err(unsupported("any GPU", why));
        }
        read_libraries();
        guarded(|| {
            let count = CudaContext::device_count();
            let count = count.map_err(|error| unsupported("any GPU", format!("the driver says: {error}")))?;
            match usize::try_from(count) {
                Ok(count) if count > 0 => Ok(count),
                _ => Err(unsupported("any GPU", "the driver is there but lists no GPU (CUDA_VISIBLE_DEVICES?)")),
            }
        })
    }

    fn open(ordinal: usize) -> Result<Self> {
        let opening = |error| failed(format!("opening GPU {ordinal}"), error);
        let driver = driver_version().map_err(opening)?;
        if driver < OLDEST_DRIVER {
            let why = format!("it speaks CUDA {}; 12.0 is needed: update the driver", version(driver));
            return Err(unsupported("this driver", why));
        }
        let context = CudaContext::new(ordinal).map_err(opening)?;
        // SAFETY: all work of this value goes through its one stream, which orders it, and waits for uploads and for what
        // goes on beside it.
        unsafe { context.disable_event_tracking() };
        let properties = properties(&context, driver).map_err(opening)?;
        let stream = context.new_stream().map_err(opening)?;
        let urgent = streams::urgent(&context).map_err(opening)?;
        let transfers = Transfers::new(&context).map_err(opening)?;
        keep_freed_memory(&context).map_err(opening)?;
        let modules = Modules::new(Compiler::new(properties.capability, driver));
        let (blas, options) = (Default::default(), Options::default());
        let (kept, tables) = Default::default();
        Ok(Self(Arc::new(Inner {
            ordinal,
            context,
            stream,
            urgent,
            transfers,
            properties,
            modules,
            blas,
            options,
            kept,
            tables,
        })))
    }

    /// The same GPU with a stream of its own, with options changed.
    fn with(&self, options: Options) -> Result<Self> {
        let Inner { ordinal, context, properties, .. } = &*self.0;
        let opening = |error| failed("opening a stream", error);
        let stream = context.new_stream().map_err(opening)?;
        let urgent = streams::urgent(context).map_err(opening)?;
        let transfers = Transfers::new(context).map_err(opening)?;
        let modules = Modules::new(Compiler::new(properties.capability, properties.driver));
        Ok(Self(Arc::new(Inner {
            ordinal: *ordinal,
            context: context.clone(),
            stream,
            urgent,
            transfers,
            properties: properties.clone(),
            modules,
            blas: Default::default(),
            options,
            kept: Default::default(),
            tables: Default::default(),
        })))
    }

    /// Another stream, whose fresh memory is filled with NaN, so that a result which nobody wrote is seen.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_poisoned_memory(&self) -> Result<Self> {
        self.with(Options { poisoned: true, ..self.0.options })
    }

    /// Another stream, on which matrix products go through our own kernel and not through cuBLAS.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_own_products(&self) -> Result<Self> {
        self.with(Options { own_products: true, ..self.0.options })
    }

    /// Another stream, on which the kernels of a call never run beside each other.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_kernels_in_turn(&self) -> Result<Self> {
        self.with(Options { in_turn: true, ..self.0.options })
    }

    /// Another stream, on which the linear rules are computed in this way.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Self> {
        self.with(Options { algorithm, ..self.0.options })
    }

    pub(crate) fn in_turn(&self) -> bool {
        self.0.options.in_turn
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.0.options.algorithm
    }

    /// What this GPU is.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// Whether kernels have the products of a group of four warps, `group.cuh`.
    pub(crate) fn groups(&self) -> bool {
        self.properties().capability == (9, 0) && self.modules().compiler().is_there()
    }

    /// Where kernels come from: the compiler and the cache in use, in words.
    pub fn kernels(&self) -> String {
        self.modules().compiler().to_string()
    }

    /// Bytes read and bytes written a second by copies within the memory, measured now (about a tenth of a second).
    ///
    /// # Errors
    /// The driver's own.
    pub fn copy_rate(&self) -> Result<f64> {
        const TIMES: u32 = 20;
        let bytes = (self.properties().memory / 8).min(1 << 29);
        let (from, to) = (self.allocate(bytes)?, self.allocate(bytes)?);
        let mut start = std::time::Instant::now();
        // The first is for waking up.
        for i in 0..=TIMES {
            self.copy_bytes(&from, &to, bytes)?;
            if i == 0 {
                self.synchronize()?;
                start = std::time::Instant::now();
            }
        }
        self.synchronize()?;
        Ok(2.0 * bytes as f64 * f64::from(TIMES) / start.elapsed().as_secs_f64())
    }

    /// Bytes that arrays of this program take on the GPU; [`Device::peak_bytes`] counts anew from here on. None where the GPU
    /// keeps no pool.
    ///
    /// # Errors
    /// The driver's own.
    pub fn restart_peak(&self) -> Result<Option<usize>> {
        let Some(pool) = self.pool()? else { return Ok(None) };
        let mut none = 0u64;
        // SAFETY: the pool is the device's, which is open; the attribute is one u64, and can be set to 0.
        unsafe { sys::cuMemPoolSetAttribute(pool, PEAK, (&raw mut none).cast()) }
            .result()
            .map_err(|error| failed("setting the pool's peak back", error))?;
        self.pool_bytes(pool, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT).map(Some)
    }

    fn pool(&self) -> Result<Option<sys::CUmemoryPool>> {
        if !self.context().has_async_alloc() {
            return Ok(None);
        }
        let mut pool = std::ptr::null_mut();
        // SAFETY: the device is open; writes one handle.
        unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, self.context().cu_device()) }
            .result()
            .map_err(|error| failed("asking for the GPU's pool", error))?;
        Ok(Some(pool))
    }

    /// One of the pool's counts.
    fn pool_bytes(&self, pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute) -> Result<usize> {
        let mut bytes = 0u64;
        // SAFETY: the pool is the device's, which is open; the attribute is one u64.
        unsafe { sys::cuMemPoolGetAttribute(pool, which, (&raw mut bytes).cast()) }
            .result()
            .map_err(|error| failed("asking the pool for its bytes", error))?;
        Ok(bytes as usize)
    }

    /// The library behind matrix products, in words.
    pub fn products(&self) -> &'static str {
        if crate::blas::is_present() { "cuBLAS" } else { "own kernels (no cuBLAS found)" }
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.0.modules
    }

    pub(crate) fn blas(&self) -> Option<&crate::blas::Blas> {
        if self.0.options.own_products {
            return None;
        }
        self.0.blas.get_or_init(|| crate::blas::Blas::new(&self.0.stream)).as_ref()
    }

    /// Memory of `bytes` bytes, not written yet.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let bytes = bytes.max(1);
        let buffer = {
            let _turn = self.0.kept.turn();
            // SAFETY: bytes are valid whatever they hold; kernels write before they read.
            let memory = unsafe { self.stream().alloc::<u8>(bytes) };
            self.buffer(memory.map_err(|error| self.out_of_memory(bytes, error))?)
        };
        if self.0.options.poisoned {
            self.fill(&buffer, 0xff)?;
        }
        Ok(buffer)
    }

    fn buffer(&self, memory: CudaSlice<u8>) -> Buffer {
        let kept = self.0.kept.clone();
        Buffer { memory: ManuallyDrop::new(memory), born: kept.now(), kept }
    }

    /// A tensor whose elements a kernel is about to write.
    pub(crate) fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor<Self>> {
        let shape = shape.into();
        let bytes = shape.count().checked_mul(dtype.size());
        let buffer = self.allocate(bytes.unwrap_or(usize::MAX))?;
        Ok(Tensor::from_buffer(self, shape, dtype, buffer))
    }

    /// As [`Cuda::empty`], filled with zeros.
    pub(crate) fn zeroed(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor<Self>> {
        let tensor = self.empty(shape, dtype)?;
        self.fill(tensor.buffer(), 0)?;
        Ok(tensor)
    }

    /// Writes `byte` everywhere.
    fn fill(&self, buffer: &Buffer, byte: u8) -> Result<()> {
        self.context().bind_to_thread().map_err(|error| failed("filling memory", error))?;
        let _turn = self.0.kept.turn();
        // SAFETY: the buffer is alive, and as long as its length says; the stream orders its use.
        unsafe { result::memset_d8_async(buffer.pointer(), byte, buffer.len(), self.stream().cu_stream()) }
            .map_err(|error| failed(format!("filling {} bytes", buffer.len()), error))
    }

    /// The first `bytes` bytes of one into the other.
    fn copy_bytes(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<()> {
        let copying = |error| failed(format!("copying {bytes} bytes"), error);
        debug_assert!(bytes <= from.len() && bytes <= to.len());
        self.context().bind_to_thread().map_err(copying)?;
        let _turn = self.0.kept.turn();
        // SAFETY: both are alive and at least as long; the stream orders their use.
        unsafe { result::memcpy_dtod_async(to.pointer(), from.pointer(), bytes, self.stream().cu_stream()) }
            .map_err(copying)
    }

    /// The elements of one tensor into the memory of another like it.
    pub(crate) fn copy(&self, from: &Tensor<Self>, to: &Tensor<Self>) -> Result<()> {
        self.copy_bytes(from.buffer(), to.buffer(), from.shape().count() * from.dtype().size())
    }

    /// The same elements in memory of their own.
    pub(crate) fn copied(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = self.empty(x.shape().clone(), x.dtype())?;
        self.copy(x, &y)?;
        Ok(y)
    }

    /// What lets go of memory, with respect to recordings.
    pub(crate) fn kept(&self) -> &Arc<Kept> {
        &self.0.kept
    }

    /// The work that `queue` queues, as a graph; it is not done. Memory asked for on the way belongs to the graph and is let
    /// go of before the end.
    pub(crate) fn capture(&self, queue: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        let recording = |error| failed("recording a step", error);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream().begin_capture(mode).map_err(recording)?;
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(queue));
        let graph = self.stream().end_capture(sys::CUgraphInstantiate_flags(0));
        outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked))?;
        graph.map_err(recording)?.ok_or_else(|| failed("recording a step", "there was nothing to record"))
    }

    /// Queues the work of a graph.
    pub(crate) fn replay(&self, graph: &CudaGraph) -> Result<()> {
        let _turn = self.0.kept.turn();
        graph.launch().map_err(|error| failed("starting a recorded step", error))
    }

    /// A table that stays on the device, so that calls like the last one upload nothing.
    pub(crate) fn kept_table(&self, values: &[u32]) -> Result<Table> {
        // Not held while the table goes to the device: who waits for a turn must not make others wait.
        let tables = || self.0.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = tables().get(values) {
            return Ok(Table::kept(memory.pointer()));
        }
        let memory = self.upload(Host::U32(values.to_vec()))?;
        let mut tables = tables();
        if tables.len() >= TABLES {
            return Ok(Table::own(memory));
        }
        Ok(Table::kept(tables.entry(values.to_vec()).or_insert(memory).pointer()))
    }

    fn out_of_memory(&self, bytes: usize, error: DriverError) -> hecate_core::Error {
        let room = match self.context().mem_get_info() {
            Ok((free, total)) => format!(" ({} MiB free of {})", free >> 20, total >> 20),
            Err(_) => String::new(),
        };
        failed(format!("allocating {bytes} bytes{room}; make the batch, the sequences or the model smaller"), error)
    }

    /// Small tables that kernels read, such as the edges of sequences.
    pub(crate) fn table(&self, values: &[u32]) -> Result<Tensor<Self>> {
        Tensor::upload(self, [values.len()], Host::U32(values.to_vec()))
    }
}

impl Buffer {
    /// Address on the device.
    pub(crate) fn pointer(&self) -> u64 {
        // Events are off, so the guard that comes with the pointer does nothing.
        self.memory.device_ptr(self.memory.stream()).0
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing looks at it afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        self.kept.free(memory, self.born);
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({}: {}, {:?})", self.0.ordinal, self.0.properties.name, self.0.options)
    }
}

impl Device for Cuda {
    const NAME: &'static str = "cuda";
    type Buffer = Buffer;

    fn upload(&self, host: Host) -> Result<Buffer> {
        self.upload_bytes(host_bytes(&host)?)
    }

    fn download(&self, buffer: &Buffer, dtype: DType, count: usize) -> Result<Host> {
        self.0.kept.check("copying to the host")?;
        match dtype {
            DType::F32 => Ok(Host::F32(self.read(buffer, count)?)),
            DType::U32 => Ok(Host::U32(self.read(buffer, count)?)),
            DType::Bf16 => Ok(Host::Bf16(self.read(buffer, count)?)),
            DType::F16 => Ok(Host::F16(self.read(buffer, count)?)),
            other => Err(unsupported("this element type", other.to_string())),
        }
    }

    fn zeros(&self, dtype: DType, count: usize) -> Result<Buffer> {
        let buffer = self.allocate(count * dtype.size())?;
        self.fill(&buffer, 0)?;
        Ok(buffer)
    }

    fn record(
        &self,
        state: &[Tensor<Self>],
        input: &Tensor<Self>,
        step: &mut Step<'_, Self>,
    ) -> Result<Option<Box<dyn Recording>>> {
        recording::record(self, state, input, step)
    }

    fn synchronize(&self) -> Result<()> {
        self.0.kept.check("waiting for the GPU")?;
        let _turn = self.0.kept.turn();
        self.stream().synchronize().map_err(|error| failed("waiting for the GPU", error))
    }

    /// What the GPU's pool counts: streams of one program share it.
    fn peak_bytes(&self) -> Result<Option<usize>> {
        self.pool()?.map(|pool| self.pool_bytes(pool, PEAK)).transpose()
    }
}

/// A driver that lacks a function makes the binding panic; that is an error like any other.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What the binding found before it panicked is all it keeps.
    panic::catch_unwind(panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(unsupported("this driver", "it lacks functions that were asked for: update the driver"))
    })
}

fn driver_version() -> Result<u32, DriverError> {
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version.unsigned_abs())
}

fn properties(context: &Arc<CudaContext>, driver: u32) -> Result<Properties, DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    };
    let (major, minor) = context.compute_capability()?;
    let attribute = |which| context.attribute(which).map(i32::unsigned_abs);
    Ok(Properties {
        name: context.name()?,
        capability: (major.unsigned_abs(), minor.unsigned_abs()),
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_memory: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        memory: context.total_mem()?,
        driver,
    })
}

/// Freed blocks stay with the pool; by default it gives them back at every synchronisation.
fn keep_freed_memory(context: &Arc<CudaContext>) -> Result<(), DriverError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    let (mut pool, mut threshold) = (std::ptr::null_mut(), u64::MAX);
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool belongs to the device, which is open; the attribute is one u64.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()).result()?;
        sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()).result()
    }
}
