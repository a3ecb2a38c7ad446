//! The device: a pool of threads, and arrays in main memory.
//!
//! A [`Cpu`] is cheap to clone. Its clones share the threads and the memory that is kept for later calls.
//! All work is done when a call returns, so [`Device::synchronize`] has nothing to wait for.

use crate::{
    buffer_pool::{Array, BufferPool, PooledBuf},
    simd,
};
use hecate_core::{Algorithm, DType, Device, DeviceId, Host, Result, Shape, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{borrow::Cow, fmt, sync::Arc};

/// The processor that this program runs on: the reference device.
///
/// Results do not depend on the number of threads. Clones are the same device, whatever algorithm they are told to use. Two
/// values that were opened are two devices, even on the same threads: each has a memory pool of its own.
#[derive(Clone)]
pub struct Cpu {
    /// What tells it from other values.
    id: DeviceId,
    /// `None` is rayon's global pool.
    pool: Option<Arc<ThreadPool>>,
    algorithm: Algorithm,
    /// Large arrays and workspaces that wait for the next call.
    buffers: Arc<BufferPool>,
}

impl Default for Cpu {
    fn default() -> Self {
        let id = DeviceId::new(|number| format!("cpu (pool {number})"));
        Self { id, pool: None, algorithm: Algorithm::default(), buffers: Arc::default() }
    }
}

impl Cpu {
    /// All processors, through rayon's global pool.
    pub fn new() -> Self {
        tracing::info!("opened the CPU with rayon's global pool");
        Self::default()
    }

    /// A pool of its own with this many threads; 0 means one a processor. Results do not depend on the number.
    ///
    /// # Errors
    /// [`hecate_core::Error::Device`] if the system starts no threads.
    pub fn with_threads(threads: usize) -> Result<Self> {
        let pool = start(ThreadPoolBuilder::new(), threads)?;
        tracing::info!(threads = pool.current_num_threads(), "opened the CPU with a pool of its own");
        Ok(Self { pool: Some(pool), ..Self::default() })
    }

    /// The equations as they stand: token by token and without vector instructions, in a pool of its own of so many threads
    /// (0 for one a processor). What faster ways are compared with.
    ///
    /// # Errors
    /// As [`Cpu::with_threads`].
    pub fn reference(threads: usize) -> Result<Self> {
        let pool = start(ThreadPoolBuilder::new().start_handler(|_| simd::forbid()), threads)?;
        tracing::info!(threads = pool.current_num_threads(), "opened the CPU as the reference");
        Ok(Self { pool: Some(pool), algorithm: Algorithm::Scan, ..Self::default() })
    }

    /// The same pool, with the linear rules computed this way. [`Algorithm::Auto`]:
    /// forward, one pass over the memory serves two to four tokens;
    /// backward, and forward of frozen rules, matrix products serve 64 tokens;
    /// sequences of at most 8 tokens are scanned where a backward comes.
    ///
    /// # Errors
    /// [`hecate_core::Error::Config`] for chunks of no token.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Self> {
        Ok(Self { algorithm: algorithm.check()?, ..self.clone() })
    }

    /// Gives memory that is kept for later calls back to the system: dropped large arrays and workspaces.
    /// What is kept never exceeds what was in use at once before.
    pub fn release(&self) {
        self.buffers.release();
    }

    /// The memory that is kept for later calls.
    pub(crate) fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    /// An array of `count` elements with any values; the caller writes all of them.
    pub(crate) fn take(&self, count: usize) -> PooledBuf {
        self.buffers.take(count)
    }

    /// How the linear rules are computed.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Number of threads that a call may use.
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or_else(rayon::current_num_threads, |pool| pool.current_num_threads())
    }

    /// Runs `work` on this device's threads: rayon's calls inside it go to its pool.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// A pool of so many threads; 0 for one a processor.
fn start(pool: ThreadPoolBuilder, threads: usize) -> Result<Arc<ThreadPool>> {
    let started = pool.num_threads(threads).build().map_err(|source| hecate_core::Error::Device {
        backend: Cpu::NAME,
        context: format!("starting {threads} threads"),
        source: Box::new(source),
    });
    Ok(Arc::new(started?))
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({} threads, {:?})", self.threads(), self.algorithm)
    }
}

impl Device for Cpu {
    const NAME: &'static str = "cpu";
    type Buffer = Array;

    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn upload(&self, host: Host) -> Result<Array> {
        Ok(Array::new(&self.buffers, host))
    }

    /// A copy: the buffer stays on the device. Type and count are those of the buffer already.
    fn download(&self, buffer: &Array, _: DType, _: usize) -> Result<Host> {
        Ok(Host::clone(buffer))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// The elements as 32-bit floats, row-major: borrowed from an f32 tensor, widened from a 16-bit one.
pub(crate) fn floats(x: &Tensor<Cpu>) -> Cow<'_, [f32]> {
    match &**x.buffer() {
        Host::F32(values) => Cow::Borrowed(values),
        other => Cow::Owned(other.clone().into_f32()),
    }
}

/// A tensor of `dtype` and `shape` from 32-bit floats that fill it; 16-bit types round to nearest.
pub(crate) fn tensor(device: &Cpu, shape: impl Into<Shape>, dtype: DType, values: Vec<f32>) -> Tensor<Cpu> {
    from_host(device, shape, dtype, Host::from_f32(dtype, values))
}

/// A tensor of the type of `host`, whose elements fill `shape`.
pub(crate) fn from_host(device: &Cpu, shape: impl Into<Shape>, dtype: DType, host: Host) -> Tensor<Cpu> {
    Tensor::from_buffer(device, shape, dtype, Array::new(&device.buffers, host))
}

/// As [`tensor`], from a buffer of the pool. In f32 nothing is copied.
pub(crate) fn pooled_tensor(device: &Cpu, shape: impl Into<Shape>, dtype: DType, values: PooledBuf) -> Tensor<Cpu> {
    match dtype {
        DType::F32 => Tensor::from_buffer(device, shape, dtype, Array::from(values)),
        _ => tensor(device, shape, dtype, values.into_values()),
    }
}
