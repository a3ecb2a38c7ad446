//! Kernels that are loaded, by name.

use crate::{
    compile::{Compiler, Image},
    error::failed,
    ledger::driver_turn,
    source::KernelSource,
};
use cudarc::{
    driver::{CudaContext, CudaFunction, sys::CUfunction_attribute},
    nvrtc::Ptx,
};
use hecate_core::Result;
use std::{
    collections::HashMap,
    panic,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
};

/// Kernels that are loaded, by the names of their source and their own. Each keeps the module that it lies in alive.
pub(crate) struct Modules {
    /// Makes images of kernels.
    compiler: Compiler,
    /// By file and kernel.
    functions: Mutex<HashMap<(&'static str, &'static str), Loaded>>,
    /// Whether a thread gathers kernels: looked at before every launch.
    gathers: AtomicBool,
    gathering: Mutex<Option<Gathering>>,
    /// Kernels that programs brought: a graph may hold one longer than its own value.
    own: Mutex<Vec<CudaFunction>>,
}

/// A kernel that is loaded.
#[derive(Clone)]
pub(crate) struct Loaded {
    /// What a launch starts; it keeps its module alive.
    pub(crate) function: CudaFunction,
    /// Whether it is code for exactly this GPU. PTX of this crate has no instructions of capability 9.0.
    pub(crate) exact: bool,
}

/// A kernel that is not loaded yet.
pub(crate) type Wanted = (&'static KernelSource, &'static str);

/// What a thread asked for that starts no kernels.
struct Gathering {
    /// Launches of other threads go on as usual meanwhile.
    thread: ThreadId,
    /// Each once, in the order of the first launches.
    wanted: Vec<Wanted>,
}

// A kernel is compiled by itself when it is first started: a program uses few of all there are.
impl Modules {
    /// No kernel is loaded yet.
    pub(crate) fn new(compiler: Compiler) -> Self {
        Self {
            compiler,
            functions: Mutex::default(),
            gathers: AtomicBool::new(false),
            gathering: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// Runs `work`, which starts no kernels meanwhile; those that it would have started first, in its order. None where
    /// another thread does so.
    /// This is how a layer's kernels are found before its first call, and compiled beside each other.
    pub(crate) fn gather(&self, work: &mut dyn FnMut()) -> Option<Vec<Wanted>> {
        {
            let mut gathering = self.gathering();
            if gathering.is_some() {
                return None;
            }
            *gathering = Some(Gathering { thread: thread::current().id(), wanted: Vec::new() });
            self.gathers.store(true, Ordering::Release);
        }
        // Whatever happens to the work, kernels are started again afterwards.
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(work));
        self.gathers.store(false, Ordering::Release);
        let gathered = self.gathering().take();
        outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        gathered.map(|gathering| gathering.wanted)
    }

    /// Keeps a kernel loaded as long as this is there.
    pub(crate) fn keep(&self, function: &CudaFunction) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).push(function.clone());
    }

    /// Whether this thread gathers kernels instead of starting them.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathers() && self.gathering().as_ref().is_some_and(|one| one.thread == thread::current().id())
    }

    /// Whether a thread gathers kernels.
    pub(crate) fn gathers(&self) -> bool {
        self.gathers.load(Ordering::Acquire)
    }

    /// Whether this thread gathers kernels instead of starting them; then it wants this one.
    pub(crate) fn gathered(&self, source: &'static KernelSource, name: &'static str) -> bool {
        // One load, which nearly every launch ends with.
        if !self.gathers() {
            return false;
        }
        match &mut *self.gathering() {
            Some(Gathering { thread, wanted }) if *thread == thread::current().id() => {
                let known = wanted.iter().any(|&(file, kernel)| (file.name, kernel) == (source.name, name));
                if !known && !self.functions().contains_key(&(source.name, name)) {
                    wanted.push((source, name));
                }
                true
            }
            _ => false,
        }
    }

    /// What a dry run has found so far; a thread that panicked left it whole.
    fn gathering(&self) -> MutexGuard<'_, Option<Gathering>> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loaded kernels by file and name; a thread that panicked left them whole.
    fn functions(&self) -> MutexGuard<'_, HashMap<(&'static str, &'static str), Loaded>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What makes kernels for this GPU.
    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// A kernel, compiled and loaded when it is first asked for. Its launches may ask for `shared_memory` bytes of a block
    /// less what it declares itself.
    /// The first call takes seconds without a cached image, later ones a look into a table.
    pub(crate) fn function(
        &self,
        context: &Arc<CudaContext>,
        shared_memory: usize,
        source: &'static KernelSource,
        name: &'static str,
    ) -> Result<Loaded> {
        if let Some(function) = self.functions().get(&(source.name, name)) {
            return Ok(function.clone());
        }
        // A thread that captures a step may want the lock below.
        let _driver = driver_turn();
        // Held while a kernel is compiled: whoever needs the same one waits instead of compiling it again.
        let mut functions = self.functions();
        if let Some(function) = functions.get(&(source.name, name)) {
            return Ok(function.clone());
        }
        let loading = |error| failed(format!("loading the kernel `{name}` of {}", source.name), error);
        let (module, exact) = self.compiler.load(source, name, |image| {
            let (image, exact) = match image {
                Image::Cubin(bytes) => (Ptx::from_binary(bytes), true),
                Image::Ptx(text) => (Ptx::from_src(text), false),
            };
            context.load_module(image).map(|module| (module, exact)).map_err(|error| error.to_string())
        })?;
        let function = module.load_function(name).map_err(loading)?;
        // Set once, for all launches: they differ in what they ask for, and may come from several threads.
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // What the kernel declares itself is taken off.
        let own = function.shared_size_bytes().map_err(loading)?;
        function.set_attribute(attribute, shared_memory as i32 - own).map_err(loading)?;
        let loaded = Loaded { function, exact };
        functions.insert((source.name, name), loaded.clone());
        Ok(loaded)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        // Code that is unloaded may wait for the whole GPU.
        let _driver = driver_turn();
        self.functions().clear();
        self.own.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
