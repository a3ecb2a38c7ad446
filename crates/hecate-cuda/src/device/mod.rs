//! The device: a GPU, a stream of work in order, and arrays in its memory.
//!
//! [`driver`] opens the vendor's library and [`properties`] reads what the GPU is. [`memory`] hands out memory, whose owner
//! is a [`buffer`]; [`transfers`] copies between it and the host over the page-locked blocks of [`staging`].
#![allow(unsafe_code)]

pub(crate) mod arena;
mod beside;
mod buffer;
mod driver;
mod list;
mod memory;
mod options;
mod pool;
mod properties;
pub(crate) mod staging;
mod tables;
mod transfers;

pub use buffer::Buffer;
pub(crate) use driver::guarded;
pub use properties::Properties;
pub(crate) use tables::Table;
pub(crate) use transfers::host_bytes;

use crate::{
    blas::{self, Blas},
    blas_lt::BlasLt,
    compile::Compiler,
    error::failed,
    ledger::{GraphLedger, driver_turn},
    modules::Modules,
};
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use hecate_core::{Algorithm, Device, DeviceId, Error, Result};
use options::Options;
use staging::StagingRing;
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

/// A GPU and a stream on it. Clones are the same stream; several values are several streams, or several GPUs, and each is a
/// device of its own.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

/// What clones share. Fields are dropped in the order in which they stand.
struct Inner {
    /// What tells this value from others.
    id: DeviceId,
    /// As `nvidia-smi` counts.
    ordinal: usize,
    /// The driver's own for this GPU.
    context: Arc<CudaContext>,
    // Let go of before the streams that they are bound to.
    blas: OnceLock<Option<Blas>>,
    side_blas: OnceLock<Option<Blas>>,
    blas_lt: OnceLock<Option<BlasLt>>,
    /// All work goes through it in order.
    stream: Arc<CudaStream>,
    /// Its blocks come before those of `stream`.
    urgent: Arc<CudaStream>,
    /// Of graphs: what goes beside their main line.
    side: Arc<CudaStream>,
    /// Page-locked blocks between the host and the GPU.
    staging: StagingRing,
    /// What the GPU is.
    properties: Properties,
    /// Kernels that are loaded.
    modules: Modules,
    /// How calls are computed.
    options: Options,
    /// Who may queue work, and what captured graphs keep alive.
    ledger: Arc<GraphLedger>,
    /// Tables that stay on the device, by their elements.
    tables: Mutex<HashMap<Vec<u32>, Buffer>>,
    /// Tables of addresses of the last calls, the last first.
    recent_tables: Mutex<VecDeque<(Vec<u32>, Arc<Buffer>)>>,
}

impl Inner {
    /// New streams on a GPU that is open, and nothing on it yet.
    fn new(
        ordinal: usize,
        context: &Arc<CudaContext>,
        properties: Properties,
        options: Options,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            // Two streams of one GPU have no common order: they are two devices.
            id: DeviceId::new(|number| format!("cuda:{ordinal} (stream {number})")),
            ordinal,
            context: context.clone(),
            blas: OnceLock::new(),
            side_blas: OnceLock::new(),
            blas_lt: OnceLock::new(),
            stream: context.new_stream()?,
            urgent: driver::urgent_stream(context)?,
            side: context.new_stream()?,
            staging: StagingRing::new(context)?,
            modules: Modules::new(Compiler::new(properties.capability, properties.driver)),
            properties,
            options,
            ledger: Arc::default(),
            tables: Mutex::default(),
            recent_tables: Mutex::default(),
        })
    }
}

impl Cuda {
    /// The GPU with this number, counted from 0 as `nvidia-smi` does, and a stream of its own.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] for a number that the driver does not list; [`Error::NoDevice`] where there is no driver, an
    /// old one, or one without a GPU.
    pub fn new(ordinal: usize) -> Result<Self> {
        check_ordinal(ordinal, Self::count()?)?;
        guarded(|| Self::open(ordinal))
    }

    /// Number of GPUs that the driver lists.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there is no driver, or none that finds a GPU.
    pub fn count() -> Result<usize> {
        driver::count()
    }

    /// Opens a GPU that the driver lists.
    fn open(ordinal: usize) -> Result<Self> {
        let opening = |error| failed(format!("opening GPU {ordinal}"), error);
        let driver = driver::driver_version()?;
        let context = CudaContext::new(ordinal).map_err(opening)?;
        // SAFETY: all work of this value goes through its one stream, which orders it, and waits for uploads and for what
        // goes on beside it.
        unsafe { context.disable_event_tracking() };
        let properties = Properties::read(context.cu_device(), driver).map_err(opening)?;
        driver::keep_freed_memory(&context).map_err(opening)?;
        let Properties { name, capability: (major, minor), .. } = &properties;
        tracing::info!(ordinal, name, "opened a CUDA device of compute capability {major}.{minor}");
        let inner = Inner::new(ordinal, &context, properties, Options::of_environment()).map_err(opening)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The same GPU with a stream of its own, with options changed.
    fn with(&self, options: Options) -> Result<Self> {
        let Inner { ordinal, context, properties, .. } = &*self.0;
        let _driver = driver_turn();
        let inner = Inner::new(*ordinal, context, properties.clone(), options);
        Ok(Self(Arc::new(inner.map_err(|error| failed("opening a stream", error))?)))
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

    /// Another stream, on which a product of two matrices takes a thread for each element, with no tiles: slow, and what other
    /// kernels are compared with.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_naive_products(&self) -> Result<Self> {
        self.with(Options { naive_products: true, ..self.0.options })
    }

    /// Another stream, on which the kernels of a call never run beside each other.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_kernels_in_turn(&self) -> Result<Self> {
        self.with(Options { in_turn: true, ..self.0.options })
    }

    /// Another stream, on which a training step is never a graph.
    ///
    /// # Errors
    /// The driver's own.
    pub fn with_steps_call_by_call(&self) -> Result<Self> {
        self.with(Options { call_by_call: true, ..self.0.options })
    }

    /// Whether work is not captured.
    pub(crate) fn call_by_call(&self) -> bool {
        self.0.options.call_by_call
    }

    /// Another stream, on which the linear rules are computed in this way. [`Algorithm::Auto`] scans few tokens and takes
    /// chunks for many.
    ///
    /// Chunks have 64 tokens, whatever number is asked for. That form exists for rules that are not frozen. It takes keys
    /// of at most 128 elements, or 256 with 16-bit arguments and no momentum. It needs tensor cores (compute capability
    /// 8.0) and shared memory for its tiles. Elsewhere rules go token by token.
    ///
    /// # Errors
    /// [`hecate_core::Error::Config`] for chunks of no token; the driver's own.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Self> {
        self.with(Options { algorithm: algorithm.check()?, ..self.0.options })
    }

    /// Whether the kernels of a call go one after another.
    pub(crate) fn in_turn(&self) -> bool {
        self.0.options.in_turn
    }

    /// How the linear rules are computed on this value.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.0.options.algorithm
    }

    /// The number of this GPU, as [`Cuda::new`] took it.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// What tells this value from others: [`Device::id`].
    pub(crate) fn identity(&self) -> &DeviceId {
        &self.0.id
    }

    /// What this GPU is.
    pub fn properties(&self) -> &Properties {
        &self.0.properties
    }

    /// Whether kernels have the products of a group of four warps, `group.cuh`.
    pub(crate) fn groups(&self) -> bool {
        self.properties().capability == (9, 0) && self.compiles()
    }

    /// Whether kernels are compiled for exactly this GPU.
    pub(crate) fn compiles(&self) -> bool {
        self.modules().compiler().is_there()
    }

    /// Where kernels come from: the compiler and the cache in use, in words.
    pub fn kernels(&self) -> String {
        self.modules().compiler().to_string()
    }

    /// What multiplies matrices, in words.
    pub fn products(&self) -> &'static str {
        if blas::is_present() { "cuBLAS" } else { "own kernels (no cuBLAS found)" }
    }

    /// The driver's context, which other threads bind before they call it.
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// The main stream.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    /// The stream whose blocks come before those of the main one; `streams.rs` says what goes there.
    pub(crate) fn urgent_stream(&self) -> &Arc<CudaStream> {
        &self.0.urgent
    }

    /// The stream beside the main line of a graph.
    pub(crate) fn side(&self) -> &Arc<CudaStream> {
        &self.0.side
    }

    /// The stream of uploads.
    pub(crate) fn uploads(&self) -> &Arc<CudaStream> {
        self.0.staging.stream()
    }

    /// Who keeps memory alive for captured graphs, and who may queue work.
    pub(crate) fn ledger(&self) -> &Arc<GraphLedger> {
        &self.0.ledger
    }

    /// The kernels of this value.
    pub(crate) fn modules(&self) -> &Modules {
        &self.0.modules
    }

    /// Whether products of two matrices are computed as the equation has them.
    pub(crate) fn has_naive_products(&self) -> bool {
        self.0.options.naive_products
    }

    /// cuBLAS, opened when it is first asked for; none where it is not found, or not wanted.
    pub(crate) fn blas(&self) -> Option<&Blas> {
        if self.0.options.own_products {
            return None;
        }
        opened(&self.0.blas, &self.0.stream)
    }

    /// cuBLAS beside the main line of a graph, where it is open.
    pub(crate) fn side_blas(&self) -> Option<&Blas> {
        self.0.blas.get()?.as_ref()?;
        opened(&self.0.side_blas, &self.0.side)
    }

    /// cuBLASLt, opened when it is first asked for; none where it is not found.
    pub(crate) fn blas_lt(&self) -> Option<&BlasLt> {
        let known = self.0.blas_lt.get();
        let _driver = known.is_none().then(driver_turn);
        known.unwrap_or_else(|| self.0.blas_lt.get_or_init(|| BlasLt::new(&self.0.stream))).as_ref()
    }
}

/// cuBLAS for a stream, opened when it is first asked for.
fn opened<'a>(blas: &'a OnceLock<Option<Blas>>, stream: &Arc<CudaStream>) -> Option<&'a Blas> {
    if let Some(known) = blas.get() {
        return known.as_ref();
    }
    // Before the lock of the value: a thread that captures a step may want that.
    let _driver = driver_turn();
    blas.get_or_init(|| Blas::new(stream)).as_ref()
}

/// Refuses the number of a GPU that is not there.
pub(crate) fn check_ordinal(ordinal: usize, count: usize) -> Result<()> {
    if ordinal < count {
        return Ok(());
    }
    Err(Error::NoSuchDevice { backend: Cuda::NAME, ordinal, count })
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({}: {}, {:?})", self.0.ordinal, self.0.properties.name, self.0.options)
    }
}
