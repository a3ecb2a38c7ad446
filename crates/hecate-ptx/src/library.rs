//! Kernels for one kind of machine.

use crate::{
    Error, Specification,
    writer::{Module, Target},
};

/// Writes kernels, and refuses those that a machine cannot run.
///
/// ```
/// use hecate_ptx::{GemmTensorCore, HalfType, Library, Target};
///
/// let product = GemmTensorCore::new(HalfType::F16, 128, 128, 128)?.into();
/// assert!(Library::new().write(&product).is_ok());
///
/// // A T4 has capability 7.5; these tensor cores' instructions came with 8.0.
/// let turing = Library::for_device(Target { isa: (8, 0), capability: 75 });
/// let error = turing.write(&product).unwrap_err();
/// assert!(error.to_string().contains("needs PTX 7.0 and sm_80, and there is PTX 8.0 and sm_75"));
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// What the machine has, if that is known.
    has: Option<Target>,
}

impl Library {
    /// A library for any machine: each kernel's [`Module::target`] says where it runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A library for a machine whose driver and GPU are known.
    #[must_use]
    pub fn for_device(has: Target) -> Self {
        Self { has: Some(has) }
    }

    /// Writes a kernel.
    ///
    /// # Errors
    /// If the kernel needs a newer driver or GPU than the library's.
    pub fn write(&self, specification: &Specification) -> Result<Module, Error> {
        let module = specification.write()?;
        match self.has {
            Some(has) if !module.target().runs_on(has) => {
                Err(Error::Target { kernel: module.name().to_owned(), needs: module.target(), has })
            }
            _ => Ok(module),
        }
    }
}
