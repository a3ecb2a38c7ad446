//! The device: a pool of threads, and arrays in main memory.
//!
//! A [`Cpu`] is cheap to clone. Its clones share the threads and the memory that is kept for later calls.
//! All work is done when a call returns, so [`Device::synchronize`] has nothing to wait for.

use crate::{
    buffer_pool::{Array, BufferPool, PooledBuf},
    simd,
};
use hecate_core::{Algorithm, DType, Device, DeviceId, DeviceMemory, Host, Result, Shape, Tensor, memory};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    borrow::Cow,
    error::Error,
    fmt,
    sync::{Arc, OnceLock},
};

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
    /// How rules run that can run in several ways; clones may differ in it.
    algorithm: Algorithm,
    /// Large arrays and workspaces that wait for the next call.
    buffers: Arc<BufferPool>,
}

impl Default for Cpu {
    /// With rayon's global pool, and no memory kept yet.
    fn default() -> Self {
        let id = DeviceId::new(|number| format!("cpu (pool {number})"));
        Self { id, pool: None, algorithm: Algorithm::default(), buffers: Arc::default() }
    }
}

impl Cpu {
    /// All processors, through rayon's global pool. Where the system starts no thread, every array that is made here is refused,
    /// as [`Cpu::with_threads`] would be.
    pub fn new() -> Self {
        tracing::info!("opened the CPU with rayon's global pool");
        Self::default()
    }

    /// A pool of its own with this many threads; 0 means one a processor. Results do not depend on the number.
    ///
    /// # Errors
    /// [`hecate_core::Error::Config`] for more than 4096; [`hecate_core::Error::Device`] if the system starts no threads.
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

    /// The same pool, with the linear rules computed this way. [`Algorithm::Auto`] has three forms. Forward, one pass over the
    /// memory serves two to four tokens. Backward, and forward of frozen rules, matrix products serve 64 tokens. Sequences of
    /// at most 8 tokens are scanned where a backward comes.
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

    /// An array of `count` elements with any values, for the operation `what`; the caller writes all of them.
    ///
    /// # Errors
    /// [`hecate_core::Error::OutOfMemory`].
    pub(crate) fn take(&self, what: &'static str, count: usize) -> Result<PooledBuf> {
        self.buffers.take(what, count)
    }

    /// Refuses a call that needs `count` elements of 32 bits at once where there is no room for them. Tasks do not ask for
    /// each of their arrays, since none could say no.
    ///
    /// # Errors
    /// [`hecate_core::Error::OutOfMemory`].
    pub(crate) fn room(&self, what: &'static str, count: usize) -> Result<()> {
        self.buffers.room(what, count)
    }

    /// How the linear rules are computed.
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Number of threads that a call may use.
    pub fn threads(&self) -> usize {
        match &self.pool {
            Some(pool) => pool.current_num_threads(),
            None => global_pool().map_or(1, |()| rayon::current_num_threads()),
        }
    }

    /// Refuses work where there are no threads for it: without them rayon panics.
    fn check_threads(&self) -> Result<()> {
        match &self.pool {
            Some(_) => Ok(()),
            None => global_pool().map_err(|why| no_threads("starting a thread for each processor".into(), why)),
        }
    }

    /// Runs `work` on this device's threads: rayon's calls inside it go to its pool.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// Most threads of a pool: more than any machine has processors.
const THREADS: usize = 1 << 12;

/// A pool of so many threads; 0 for one a processor.
fn start(pool: ThreadPoolBuilder, threads: usize) -> Result<Arc<ThreadPool>> {
    if threads > THREADS {
        let (found, expected) = (threads.to_string(), "at most 4096, or 0 for one a processor");
        return Err(hecate_core::Error::Config { what: Cpu::NAME, option: "threads", found, expected });
    }
    let started = pool.num_threads(threads).build();
    started.map(Arc::new).map_err(|error| no_threads(format!("starting {threads} threads"), error))
}

/// Whether rayon's global pool is there, which is started if it was not; else what the system said, once for the whole program.
fn global_pool() -> std::result::Result<(), &'static str> {
    // Asked once: a system that refuses threads is not asked again for every array.
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    // A pool that was there before is an error without a source.
    let start = || ThreadPoolBuilder::new().build_global().err().filter(|error| error.source().is_some());
    let refused = REFUSED.get_or_init(|| start().map(|error| error.to_string()));
    refused.as_deref().map_or(Ok(()), Err)
}

/// The system starts no threads.
fn no_threads(context: String, source: impl Into<Box<dyn Error + Send + Sync>>) -> hecate_core::Error {
    hecate_core::Error::Device { backend: Cpu::NAME, context, source: source.into() }
}

impl fmt::Debug for Cpu {
    /// Threads and algorithm: what the time of a call depends on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({} threads, {:?})", self.threads(), self.algorithm)
    }
}

impl Device for Cpu {
    /// What errors and the command call it.
    const NAME: &'static str = "cpu";
    /// Arrays of the host: what is uploaded need not be copied.
    type Buffer = Array;

    /// One for all clones, since they share threads and memory.
    fn id(&self) -> &DeviceId {
        &self.id
    }

    /// The number of threads, in the few words of a table.
    fn hardware(&self) -> String {
        let threads = self.threads();
        format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
    }

    /// Other work of the host keeps to the same number as kernels do.
    fn host_threads(&self) -> usize {
        self.threads()
    }

    /// Any array in main memory will do, whichever pool made it.
    fn check_buffer(&self, buffer: &Array, dtype: DType, count: usize) -> Result<()> {
        self.check_threads()?;
        if buffer.dtype() == dtype && buffer.len() == count {
            return Ok(());
        }
        let found = format!("{} elements of {}", buffer.len(), buffer.dtype());
        Err(hecate_core::Error::Buffer { backend: Self::NAME, count, dtype, found })
    }

    /// The array itself, without a copy; from now on the pool counts its bytes.
    fn upload(&self, host: Host) -> Result<Array> {
        Ok(Array::new(&self.buffers, host))
    }

    /// A copy: the buffer stays on the device.
    fn download(&self, buffer: &Array, dtype: DType, count: usize) -> Result<Host> {
        self.check_buffer(buffer, dtype, count)?;
        self.room("download", count.saturating_mul(dtype.size()).div_ceil(4))?;
        Ok(Host::clone(buffer))
    }

    /// Zeros that nobody has touched cost nothing yet; arrays that are kept for later make room where it lacks.
    fn zeros(&self, dtype: DType, count: usize) -> Result<Array> {
        self.room("zeros", count.saturating_mul(dtype.size()).div_ceil(4))?;
        self.upload(Host::zeros(dtype, count)?)
    }

    /// Nothing to wait for: work is done when its call returns.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// That of the machine, or of the part of it that this program may use.
    fn memory(&self) -> Result<Option<DeviceMemory>> {
        // Arrays that are kept for later count as used there.
        let spare = self.buffers.spare_bytes() as u64;
        Ok(DeviceMemory::of_host()
            .map(|DeviceMemory { total, free }| DeviceMemory { total, free: free.saturating_add(spare).min(total) }))
    }
}

/// The elements as 32-bit floats, row-major: borrowed from an f32 tensor, widened from a 16-bit one.
///
/// # Errors
/// [`hecate_core::Error::OutOfMemory`], for more elements of 16 bits than there is room for in 32.
pub(crate) fn floats(x: &Tensor<Cpu>) -> Result<Cow<'_, [f32]>> {
    Ok(Cow::Owned(match &**x.buffer() {
        Host::F32(values) => return Ok(Cow::Borrowed(values)),
        Host::Bf16(values) => memory::collect("widening", values.iter().map(|&x| f32::from(x)))?,
        Host::F16(values) => memory::collect("widening", values.iter().map(|&x| f32::from(x)))?,
        other => {
            memory::check::<f32>("widening", other.len())?;
            other.clone().into_f32()
        }
    }))
}

/// A tensor of `dtype` and `shape` from 32-bit floats that fill it; 16-bit types round to nearest.
pub(crate) fn tensor(device: &Cpu, shape: impl Into<Shape>, dtype: DType, values: Vec<f32>) -> Result<Tensor<Cpu>> {
    if dtype != DType::F32 {
        device.room("rounding", values.len() / 2)?;
    }
    from_host(device, shape, dtype, Host::from_f32(dtype, values))
}

/// A tensor of the type of `host`, whose elements fill `shape`.
pub(crate) fn from_host(device: &Cpu, shape: impl Into<Shape>, dtype: DType, host: Host) -> Result<Tensor<Cpu>> {
    Tensor::from_buffer(device, shape, dtype, Array::new(&device.buffers, host))
}

/// As [`tensor`], from a buffer of the pool. In f32 nothing is copied.
pub(crate) fn pooled_tensor(
    device: &Cpu,
    shape: impl Into<Shape>,
    dtype: DType,
    values: PooledBuf,
) -> Result<Tensor<Cpu>> {
    match dtype {
        DType::F32 => Tensor::from_buffer(device, shape, dtype, Array::from(values)),
        _ => tensor(device, shape, dtype, values.into_values()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For tables: `Debug` says how the value was set up.
    #[test]
    fn the_hardware_is_named_in_a_few_words() {
        let names = [1, 3].map(|threads| Cpu::with_threads(threads).expect("threads").hardware());
        assert_eq!(names, ["1 thread", "3 threads"]);
        // Other work of the host keeps to the same number.
        assert_eq!([1, 3].map(|threads| Cpu::with_threads(threads).expect("threads").host_threads()), [1, 3]);
    }

    /// Where the system starts no thread, that is an error and no panic.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_system_without_threads() {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        command.args(["device::tests::asking", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        // Stacks that no memory holds.
        let output = command.env("RUST_MIN_STACK", "1125899906842624").output().expect("it ran");
        let (told, printed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(told.contains("cpu: starting a thread for each processor"), "{told} {printed}");
        assert!(output.status.success() && !printed.contains("panicked"), "{printed}");
    }

    /// Says what it found, for the test above.
    #[test]
    #[ignore = "starts threads for another test"]
    fn asking() {
        let device = Cpu::new();
        println!("{} thread of {device:?}", device.threads());
        println!("{}", Tensor::zeros(&device, [3], DType::F32).expect_err("no threads"));
    }

    /// Half of what is kept is far more than others take of the machine between two calls.
    #[test]
    fn arrays_that_are_kept_are_room() {
        const COUNT: usize = 1 << 26;
        let device = Cpu::new();
        let free = |memory: Option<DeviceMemory>| memory.map_or(0, |memory| memory.free);
        // Written, so that the system has to give them.
        let mut array = device.take("a test", COUNT).expect("256 MB");
        array.fill(1.0);
        drop(array);
        let (of_host, of_device) = (free(DeviceMemory::of_host()), free(device.memory().expect("known")));
        let kept = 4 * COUNT as u64;
        // Other systems do not tell.
        assert!(of_host == 0 || of_device > of_host + kept / 2, "{of_device} with {kept}, {of_host} without");
        device.buffers.release();
        let (of_host, of_device) = (free(DeviceMemory::of_host()), free(device.memory().expect("known")));
        assert!(of_device < of_host + kept / 2, "{of_device} is not {of_host}");
    }
}
