//! The device: an adapter, a queue of work in order, and arrays in its memory.

use crate::{
    adapter::{self, Adapter, CooperativeMatrices, Selection},
    bind_groups::BindGroups,
    error::{Faults, captured, failed, unsupported},
    launch::Pipelines,
    pool::{Pool, class},
    queue::Queue,
    transfers::{self, Readback},
};
use hecate_core::{
    Algorithm, Bytes, DType, Device, DeviceId, DeviceMemory, Error, Host, Result, Shape, Tensor, check_memory,
    memory::check,
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// An adapter and a queue on it. Clones are the same queue; several values are several queues, or several adapters.
///
/// Options such as [`Wgpu::with_portable_kernels`] change how calls are computed and not which device it is.
#[derive(Clone)]
pub struct Wgpu(Arc<Inner>);

struct Inner {
    /// What values with other options share.
    gpu: Arc<Gpu>,
    /// Whether fresh memory is filled with NaN.
    poisoned: bool,
    /// Whether kernels keep to what every adapter can do.
    portable: bool,
    /// Whether products of frozen groups go by cooperative matrices however small they are.
    small_products: bool,
}

impl Inner {
    /// The same queue with the same options.
    fn again(&self) -> Self {
        Self { gpu: self.gpu.clone(), ..*self }
    }
}

struct Gpu {
    /// Which device value this is.
    id: DeviceId,
    /// What the adapter is and can do.
    adapter: Adapter,
    /// wgpu's own handle.
    device: wgpu::Device,
    /// What the device grants, which is all that the adapter has.
    limits: wgpu::Limits,
    /// Whether it was opened with cooperative matrices.
    cooperative: bool,
    /// Errors that came outside of calls.
    faults: Arc<Faults>,
    /// Work on its way.
    queue: Queue,
    /// Memory that was let go of.
    pool: Arc<Pool>,
    /// Kernels that are compiled.
    pipelines: Pipelines,
    /// Bind groups that were made.
    bind_groups: BindGroups,
    /// Words that stay on the device.
    tables: Mutex<HashMap<Vec<u32>, wgpu::Buffer>>,
}

/// Memory of a tensor; it goes back to a pool.
pub struct Buffer {
    /// At least as many bytes as the tensor has.
    memory: wgpu::Buffer,
    /// None for what is never given back.
    pool: Option<Arc<Pool>>,
    /// The queue that it is used on.
    owner: DeviceId,
}

/// Most tables that are kept on the device.
const TABLES: usize = 1024;

impl Wgpu {
    /// The adapter that `selection` means, and a queue of its own. With `HECATE_WGPU_COOPERATIVE=on` it is that of
    /// [`Wgpu::cooperative`], where the adapter has such matrices.
    ///
    /// # Errors
    /// [`hecate_core::Error::NoDevice`] where there is no such adapter, [`hecate_core::Error::Unsupported`] where it is too
    /// small for the kernels;
    /// [`hecate_core::Error::Device`] where its driver cannot open it.
    pub fn new(selection: &Selection) -> Result<Self> {
        let (adapter, what) = adapter::choose(selection)?;
        let cooperative = adapter::wants_cooperative(&what);
        Self::open(&adapter, what, cooperative)
    }

    /// As [`Wgpu::new`], and products of f16 go by [matrices](Adapter::cooperative_matrices) that subgroups multiply, where
    /// they cover the product without a rest. So do those of frozen groups of large deep memories, in two halves a number.
    ///
    /// wgpu calls them experimental, and so are they here: drivers were seen that report them and fail or crash.
    ///
    /// # Errors
    /// Those of [`Wgpu::new`]; [`hecate_core::Error::Unsupported`] where the adapter has none.
    pub fn cooperative(selection: &Selection) -> Result<Self> {
        let (adapter, what) = adapter::choose(selection)?;
        if what.cooperative_matrices.is_none() {
            let why = format!(
                "{what} reports none of f16 with sums in 32 bits for subgroups of one size; open it without them"
            );
            return Err(unsupported("cooperative matrices", why));
        }
        Self::open(&adapter, what, true)
    }

    /// A queue of the adapter; `cooperative` where it has such matrices and somebody wants them.
    #[expect(unsafe_code, reason = "whoever asks for experimental features has to say so")]
    fn open(adapter: &wgpu::Adapter, what: Adapter, cooperative: bool) -> Result<Self> {
        let opening = || format!("opening {what}");
        // What the adapter can, not what WebGPU promises everywhere: large arrays need it.
        let limits = adapter.limits();
        // SAFETY: two sources alone use what is experimental. Their kernels stay inside their arrays (`CooperativeProduct::fitting`,
        // `Cooperative::fitting`), and their invocations share no memory, whose accesses wgpu would not mark.
        let token = || unsafe { wgpu::ExperimentalFeatures::enabled() };
        let (experimental_features, experimental) =
            if cooperative { (token(), adapter::COOPERATIVE) } else { Default::default() };
        // Optional features are asked for where the adapter has them.
        let request = wgpu::DeviceDescriptor {
            label: Some("hecate"),
            required_limits: limits.clone(),
            required_features: adapter.features() & adapter::OPTIONAL | experimental,
            experimental_features,
            memory_hints: wgpu::MemoryHints::Performance,
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&request)).map_err(|error| failed(opening(), error))?;
        tracing::info!(adapter = what.name, kind = what.kind, interface = what.interface, "opened a WebGPU device");
        let faults = Faults::watch(&device);
        let pool = Arc::new(Pool::default());
        let queue = Queue::new(&device, queue, &faults, &pool)?;
        let (pipelines, tables) = Default::default();
        let bind_groups = BindGroups::new(&what);
        let id = DeviceId::new(|number| format!("wgpu:{} #{number}", what.name));
        let gpu =
            Gpu { id, adapter: what, device, limits, cooperative, faults, queue, pool, pipelines, bind_groups, tables };
        Ok(Self(Arc::new(Inner { gpu: Arc::new(gpu), poisoned: false, portable: false, small_products: false })))
    }

    /// All adapters, in the order of the numbers that [`Selection::Index`] takes.
    pub fn adapters() -> Vec<Adapter> {
        adapter::list()
    }

    /// The number of the adapter among these that [`Selection::Default`] means.
    ///
    /// # Errors
    /// [`hecate_core::Error::Unsupported`] where there is none, or none like the one that `HECATE_WGPU_ADAPTER` names.
    pub fn default_of(adapters: &[Adapter]) -> Result<usize> {
        adapter::default_of(adapters)
    }

    /// What this adapter is.
    pub fn adapter(&self) -> &Adapter {
        &self.0.gpu.adapter
    }

    /// The same queue, where fresh memory is filled with NaN, so that a result which nobody wrote is seen.
    pub fn with_poisoned_memory(&self) -> Self {
        Self(Arc::new(Inner { poisoned: true, ..self.0.again() }))
    }

    /// The same queue, with the linear rules computed this way. There is one form: tokens go one by one forward, and backward
    /// two more such scans find all that products over chunks then need. [`Algorithm::Auto`] and [`Algorithm::Scan`] are both
    /// that form.
    ///
    /// # Errors
    /// [`hecate_core::Error::Config`] for chunks of no token; [`hecate_core::Error::Unsupported`] for other chunks.
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Result<Self> {
        match algorithm.check()? {
            Algorithm::Auto | Algorithm::Scan => Ok(self.clone()),
            Algorithm::Chunk(_) => {
                let why = "it goes forward token by token; take `auto` or `scan`, or the device `cpu` or `cuda`";
                Err(unsupported("linear rules in chunks", why))
            }
        }
    }

    /// The same queue, where kernels keep to what every adapter can do: no 16-bit floats but two to a word, no subgroups,
    /// no cooperative matrices.
    pub fn with_portable_kernels(&self) -> Self {
        Self(Arc::new(Inner { portable: true, ..self.0.again() }))
    }

    /// The same queue, where on a device with cooperative matrices products of frozen groups go by them however little there is to
    /// do. They are slower then; tests of them are small.
    pub fn with_small_cooperative_products(&self) -> Self {
        Self(Arc::new(Inner { small_products: true, ..self.0.again() }))
    }

    /// The elements of an array on the host, in time: what [`Tensor::download`] waits for. The copy is queued now.
    ///
    /// # Errors
    /// [`hecate_core::Error::OtherDevice`] for an array of another queue; [`hecate_core::Error::Device`] when lost, or out of
    /// memory; the future's are the same.
    pub fn read_back(&self, x: &Tensor<Self>) -> Result<Readback> {
        x.check_device(self, "read_back", "x")?;
        Readback::start(self, x.buffer(), x.dtype(), x.shape().count())
    }

    /// wgpu's own handle, for what this crate makes of it.
    pub(crate) fn raw(&self) -> &wgpu::Device {
        &self.0.gpu.device
    }

    /// What went wrong outside of calls.
    pub(crate) fn faults(&self) -> &Faults {
        &self.0.gpu.faults
    }

    /// Work on its way to the device.
    pub(crate) fn queue(&self) -> &Queue {
        &self.0.gpu.queue
    }

    /// Compiled kernels, by source, entry and constants.
    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.0.gpu.pipelines
    }

    /// Bindings of launches that come again with the same arrays.
    pub(crate) fn bind_groups(&self) -> &BindGroups {
        &self.0.gpu.bind_groups
    }

    /// Whether kernels read and write arrays of f16 as such.
    pub(crate) fn reads_f16(&self) -> bool {
        self.adapter().f16 && !self.0.portable
    }

    /// Whether kernels add up by subgroups.
    pub(crate) fn has_subgroups(&self) -> bool {
        self.adapter().subgroups && !self.0.portable
    }

    /// The matrices that products go by, if any.
    pub(crate) fn cooperative_matrices(&self) -> Option<CooperativeMatrices> {
        let used = self.0.gpu.cooperative && !self.0.portable;
        used.then_some(self.adapter().cooperative_matrices).flatten()
    }

    /// Whether products of frozen groups go by them that are too small to gain by it.
    pub(crate) fn multiplies_small(&self) -> bool {
        self.0.small_products
    }

    /// What kernels can count on here.
    pub(crate) fn limits(&self) -> &wgpu::Limits {
        &self.0.gpu.limits
    }

    /// Memory for `bytes` bytes; what is in it is chance. With `settled`, no work that is queued touches it.
    pub(crate) fn allocate(&self, bytes: u64, settled: bool) -> Result<Buffer> {
        let Gpu { id, pool, device, faults, limits, .. } = &*self.0.gpu;
        let largest = adapter::largest(limits);
        if bytes > largest {
            return Err(self.too_large(bytes, largest));
        }
        // Sizes are rounded up, so that arrays of similar sizes reuse memory.
        let class = class(bytes, largest);
        if let Some(memory) = pool.take(class, settled) {
            return Ok(Buffer { memory, pool: Some(pool.clone()), owner: id.clone() });
        }
        // A system may promise memory that it has not, and end the program that uses it.
        if self.adapter().shares_memory() {
            check::<u8>("an array on the GPU", class as usize)?;
        }
        let context = format!("allocating {bytes} bytes");
        let make = || captured(device, || device.create_buffer(&storage(class)));
        let (mut memory, mut error) = make();
        if matches!(error, Some(wgpu::Error::OutOfMemory { .. })) && pool.clear() {
            // What was kept for later goes once the work that touches it is done.
            drop(memory);
            self.bind_groups().clear();
            self.queue().submit(&context, |_| {})?;
            self.queue().wait(&context, None)?;
            (memory, error) = make();
        }
        if let Some(wgpu::Error::OutOfMemory { .. }) = error {
            let free = self.memory()?.map(|memory| Bytes(memory.free.into()));
            return Err(Error::OutOfMemory { what: "an array on the GPU", bytes: Bytes(bytes.into()), free });
        }
        faults.judge(device, &context, error)?;
        pool.count(class);
        Ok(Buffer { memory, pool: Some(pool.clone()), owner: id.clone() })
    }

    /// An array over what a binding can hold.
    fn too_large(&self, bytes: u64, largest: u64) -> hecate_core::Error {
        let name = &self.adapter().name;
        let why = format!(
            "{bytes} bytes were asked for, {name} binds {largest} at most; make the batch, the sequences or the model \
             smaller"
        );
        unsupported("an array of this size", why)
    }

    /// A tensor whose elements a kernel is about to write.
    pub(crate) fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor<Self>> {
        let shape = shape.into();
        let bytes = shape.count().saturating_mul(dtype.size()) as u64;
        let tensor = Tensor::from_buffer(self, shape, dtype, self.allocate(bytes, false)?)?;
        if self.0.poisoned {
            self.fill(&tensor, u32::MAX)?;
        }
        Ok(tensor)
    }

    /// As [`Wgpu::empty`], filled with zeros.
    pub(crate) fn zeroed(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor<Self>> {
        let shape = shape.into();
        let bytes = shape.count().saturating_mul(dtype.size()) as u64;
        let tensor = Tensor::from_buffer(self, shape, dtype, self.allocate(bytes, false)?)?;
        self.fill(&tensor, 0)?;
        Ok(tensor)
    }

    /// Words that kernels read, such as the edges of sequences. They stay on the device: calls like the last one upload
    /// nothing.
    pub(crate) fn table(&self, values: &[u32]) -> Result<Tensor<Self>> {
        let kept = |memory: wgpu::Buffer| {
            let owner = self.id().clone();
            Tensor::from_buffer(self, [values.len()], DType::U32, Buffer { memory, pool: None, owner })
        };
        let tables = || self.0.gpu.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = tables().get(values) {
            return kept(memory.clone());
        }
        let fresh = self.upload(Host::U32(values.to_vec()))?;
        let mut tables = tables();
        if tables.len() >= TABLES {
            return Tensor::from_buffer(self, [values.len()], DType::U32, fresh);
        }
        // It stays in use for good.
        let memory = tables.entry(values.to_vec()).or_insert_with(|| fresh.keep()).clone();
        kept(memory)
    }
}

/// A buffer that kernels use and copies reach.
fn storage(size: u64) -> wgpu::BufferDescriptor<'static> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.memory.size())
    }
}

impl Buffer {
    /// The buffer itself.
    pub(crate) fn memory(&self) -> &wgpu::Buffer {
        &self.memory
    }

    /// The memory, never to be used by others.
    fn keep(mut self) -> wgpu::Buffer {
        self.pool = None;
        self.memory.clone()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(self.memory.clone());
        }
    }
}

impl fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = if self.0.poisoned { ", poisoned memory" } else { "" };
        write!(f, "Wgpu({}{memory}{})", self.adapter().name, if self.0.portable { ", portable kernels" } else { "" })
    }
}

impl Device for Wgpu {
    const NAME: &'static str = "wgpu";
    type Buffer = Buffer;

    fn id(&self) -> &DeviceId {
        &self.0.gpu.id
    }

    fn hardware(&self) -> String {
        self.adapter().name.clone()
    }

    fn check_buffer(&self, buffer: &Buffer, dtype: DType, count: usize) -> Result<()> {
        check_memory(self, &buffer.owner, buffer.memory.size(), dtype, count)
    }

    /// Into memory that no queued work touches, so that nothing has to wait.
    fn upload(&self, host: Host) -> Result<Buffer> {
        let bytes = transfers::bytes(&host)?;
        self.faults().check("uploading")?;
        let buffer = self.allocate(bytes.len() as u64, true)?;
        self.queue().write(&buffer.memory, bytes)?;
        Ok(buffer)
    }

    fn download(&self, buffer: &Buffer, dtype: DType, count: usize) -> Result<Host> {
        self.check_buffer(buffer, dtype, count)?;
        Readback::start(self, buffer, dtype, count)?.wait()
    }

    fn zeros(&self, dtype: DType, count: usize) -> Result<Buffer> {
        let tensor = self.zeroed([count], dtype)?;
        tensor.into_buffer().map_err(|_| failed("filling with zeros", "somebody else holds the memory"))
    }

    fn synchronize(&self) -> Result<()> {
        let context = "waiting for the GPU";
        let submission = self.queue().submit(context, |_| {})?;
        self.queue().wait(context, Some(submission))
    }

    /// That of the machine, where the GPU uses it: drivers do not say how much a GPU has of its own.
    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(if self.adapter().shares_memory() { DeviceMemory::of_host() } else { None })
    }

    /// Bytes of the arrays of this value and its clones.
    fn peak_bytes(&self) -> Result<Option<usize>> {
        Ok(Some(self.0.gpu.pool.peak() as usize))
    }
}
