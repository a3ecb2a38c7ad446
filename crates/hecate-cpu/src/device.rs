//! The device: a pool of threads and arrays in main memory.

use hecate_core::{DType, Device, Host, Result, Shape, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{borrow::Cow, fmt, sync::Arc};

/// How the linear rules are computed. The result is the same function either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// [`Algorithm::Scan`] for a few tokens, [`Algorithm::Chunk`] for many.
    #[default]
    Auto,
    /// Token by token.
    Scan,
    /// Matrix products over chunks of at most this many tokens.
    Chunk(usize),
}

/// The processor this program runs on.
#[derive(Clone, Default)]
pub struct Cpu {
    pool: Option<Arc<ThreadPool>>,
    algorithm: Algorithm,
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
    type Buffer = Host;

    fn upload(&self, host: Host) -> Result<Host> {
        Ok(host)
    }

    fn download(&self, buffer: &Host, _: DType, _: usize) -> Result<Host> {
        Ok(buffer.clone())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// The elements as 32-bit floats; borrowed where they are that already.
pub(crate) fn floats(x: &Tensor<Cpu>) -> Cow<'_, [f32]> {
    match x.buffer() {
        Host::F32(values) => Cow::Borrowed(values),
        other => Cow::Owned(other.clone().into_f32()),
    }
}

/// A tensor of `dtype` from 32-bit floats that fill `shape`.
pub(crate) fn tensor(device: &Cpu, shape: impl Into<Shape>, dtype: DType, values: Vec<f32>) -> Tensor<Cpu> {
    Tensor::from_buffer(device, shape, dtype, Host::from_f32(dtype, values))
}
