//! The device: a pool of threads and arrays in main memory.

use crate::kept::{Array, Kept, Lent};
use hecate_core::{DType, Device, Host, Result, Shape, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{borrow::Cow, fmt, sync::Arc};

/// How the linear rules are computed. The result is the same function either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Forward in one pass over the memory for every few tokens, backward in chunks of 64 tokens; frozen rules go in
    /// chunks both ways. Where sequences are short and a backward comes, [`Algorithm::Scan`].
    #[default]
    Auto,
    /// Token by token, as the equations stand.
    Scan,
    /// Matrix products over chunks of at most this many tokens.
    Chunk(usize),
}

/// The processor this program runs on.
#[derive(Clone, Default)]
pub struct Cpu {
    pool: Option<Arc<ThreadPool>>,
    algorithm: Algorithm,
    kept: Arc<Kept>,
}

impl Cpu {
    /// All processors, through rayon's global pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// A pool of its own with this many threads; 0 means one a processor. Results do not depend on the number.
    ///
    /// # Errors
    /// [`hecate_core::Error::Device`] if the system gives no threads.
    pub fn with_threads(threads: usize) -> Result<Self> {
        let pool =
            ThreadPoolBuilder::new().num_threads(threads).build().map_err(|source| hecate_core::Error::Device {
                backend: Self::NAME,
                context: format!("starting {threads} threads"),
                source: Box::new(source),
            })?;
        Ok(Self { pool: Some(Arc::new(pool)), ..Self::default() })
    }

    /// The same pool, with the linear rules computed this way whatever the sizes (tests and measurements).
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Gives memory that is kept for later calls back to the system: large arrays that were dropped, and scratch. What
    /// is kept is never more than what was in use at once before.
    pub fn release(&self) {
        self.kept.release();
    }

    /// What is kept.
    pub(crate) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    /// An array of `count` numbers, which may be anything.
    pub(crate) fn take(&self, count: usize) -> Lent {
        self.kept.take(count)
    }

    /// How the linear rules are computed.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or_else(rayon::current_num_threads, |pool| pool.current_num_threads())
    }

    /// Runs `work` with rayon's calls going to this device's pool.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({} threads, {:?})", self.threads(), self.algorithm)
    }
}

impl Device for Cpu {
    const NAME: &'static str = "cpu";
    type Buffer = Array;

    fn upload(&self, host: Host) -> Result<Array> {
        Ok(Array::new(&self.kept, host))
    }

    fn download(&self, buffer: &Array, _: DType, _: usize) -> Result<Host> {
        Ok(Host::clone(buffer))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// The elements as 32-bit floats; borrowed where they are that already.
pub(crate) fn floats(x: &Tensor<Cpu>) -> Cow<'_, [f32]> {
    match &**x.buffer() {
        Host::F32(values) => Cow::Borrowed(values),
        other => Cow::Owned(other.clone().into_f32()),
    }
}

/// A tensor of `dtype` from 32-bit floats that fill `shape`.
pub(crate) fn tensor(device: &Cpu, shape: impl Into<Shape>, dtype: DType, values: Vec<f32>) -> Tensor<Cpu> {
    from_host(device, shape, dtype, Host::from_f32(dtype, values))
}

/// A tensor of elements that fill `shape`.
pub(crate) fn from_host(device: &Cpu, shape: impl Into<Shape>, dtype: DType, host: Host) -> Tensor<Cpu> {
    Tensor::from_buffer(device, shape, dtype, Array::new(&device.kept, host))
}

/// As [`tensor`], from numbers that were lent.
pub(crate) fn lent(device: &Cpu, shape: impl Into<Shape>, dtype: DType, values: Lent) -> Tensor<Cpu> {
    match dtype {
        DType::F32 => Tensor::from_buffer(device, shape, dtype, Array::from(values)),
        _ => tensor(device, shape, dtype, values.into_values()),
    }
}
