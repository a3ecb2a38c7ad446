//! Failures of the driver, of a kernel's text and of a lost device, as core's error.

use hecate_core::{Error, Result, caught};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What wgpu said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Cause(pub(crate) String);

/// A failure of the device while `context` was done.
pub(crate) fn failed(context: impl Into<String>, cause: impl std::fmt::Display) -> Error {
    Error::Device { backend: "wgpu", context: context.into(), source: Box::new(Cause(cause.to_string())) }
}

/// An adapter that is not there.
pub(crate) fn no_device(why: impl Into<String>) -> Error {
    Error::NoDevice { backend: "wgpu", why: why.into() }
}

/// Something this machine or adapter cannot do.
pub(crate) fn unsupported(what: &'static str, why: impl Into<String>) -> Error {
    Error::Unsupported { backend: "wgpu", what, why: why.into() }
}

/// What went wrong outside of any call: wgpu tells it through callbacks.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Why the device was lost.
    lost: OnceLock<String>,
    /// The first error that no scope caught.
    uncaptured: Mutex<Option<String>>,
}

impl Faults {
    /// Faults of this device; from now on none of its errors is a panic.
    pub(crate) fn watch(device: &wgpu::Device) -> Arc<Self> {
        let faults = Arc::new(Self::default());
        let lost = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            let message = if message.is_empty() { format!("{reason:?}") } else { format!("{reason:?}: {message}") };
            // The first reason is the reason.
            let _ = lost.lost.set(message);
        });
        let uncaptured = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| uncaptured.keep(&error)));
        faults
    }

    /// Keeps the first error; later ones are mostly its consequences.
    fn keep(&self, error: &wgpu::Error) {
        let mut kept = self.uncaptured.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert_with(|| describe(error));
    }

    /// Refuses to go on with a lost device, and hands out an error that no call was told of.
    pub(crate) fn check(&self, context: &str) -> Result<()> {
        if let Some(reason) = self.lost.get() {
            let way_out = "the device was lost (driver reset, removed GPU, a kernel that ran too long, or no memory); its \
                           arrays are gone: open a new device and go on from the last checkpoint";
            return Err(failed(format!("{context}: {way_out}"), reason));
        }
        match self.uncaptured.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(error) => Err(failed(format!("{context}, after work queued before had failed"), error)),
        }
    }

    /// Does `work`, and makes what the device has against it an error.
    pub(crate) fn scoped<T>(&self, device: &wgpu::Device, context: &str, work: impl FnOnce() -> T) -> Result<T> {
        let (result, error) = captured(device, work);
        self.judge(device, context, error)?;
        Ok(result)
    }

    /// What the device had against some work, as an error.
    pub(crate) fn judge(&self, device: &wgpu::Device, context: &str, error: Option<wgpu::Error>) -> Result<()> {
        if error.is_some() {
            // A lost device fails in many ways; it says so itself only when asked.
            guarded(context, || drop(device.poll(wgpu::PollType::Poll)))?;
        }
        self.check(context)?;
        error.map_or(Ok(()), |error| Err(failed(context, describe(&error))))
    }
}

/// Does `work` and gives the first error of any kind that the device raised meanwhile on this thread.
pub(crate) fn captured<T>(device: &wgpu::Device, work: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    // Every kind of error: a scope catches one kind.
    let filters = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
    let [internal, memory, validation] = filters.map(|filter| device.push_error_scope(filter));
    let result = work();
    // They are popped in the reverse order of how they were pushed.
    let (validation, memory, internal) = (validation.pop(), memory.pop(), internal.pop());
    // Scopes answer at once on native drivers.
    let errors = pollster::block_on(async { [memory.await, validation.await, internal.await] });
    (result, errors.into_iter().flatten().next())
}

/// The error in one paragraph.
pub(crate) fn describe(error: &wgpu::Error) -> String {
    match error {
        wgpu::Error::OutOfMemory { .. } => "out of memory".to_owned(),
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            description.trim().to_owned()
        }
    }
}

/// wgpu panics where the device is lost while it waits; that is an error like any other.
pub(crate) fn guarded<T>(context: &str, work: impl FnOnce() -> T) -> Result<T> {
    // What wgpu found before it panicked is all it keeps.
    caught(work).map_err(|said| failed(context, said))
}
