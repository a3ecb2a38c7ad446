//! Arrays on a device.

mod debug;

use crate::{DType, Device, Error, Host, Result, Shape};
use std::{any::Any, sync::Arc};

/// A contiguous row-major array on a device. Cloning shares the buffer; buffers are never changed while shared.
///
/// ```
/// use hecate_core::{DType, Tensor, primitives};
/// use hecate_cpu::Cpu;
///
/// # fn main() -> hecate_core::Result<()> {
/// let cpu = Cpu::new();
/// let x = Tensor::from_f32(&cpu, [2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// // Functions of `primitives` make others of it; a row serves all rows.
/// let row = Tensor::from_f32(&cpu, [3], vec![10.0, 20.0, 30.0])?;
/// let y = primitives::add(&x, &row)?;
/// assert_eq!(y.to_f32()?, [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
/// // Elements of 16 bits, and other axes over the same elements.
/// let half = primitives::cast(DType::Bf16, &y)?.reshape([3, 2])?;
/// assert_eq!((half.dtype(), half.shape().axes()), (DType::Bf16, &[3, 2][..]));
/// // What does not fit is an error that says so.
/// let told = primitives::add(&x, &half).expect_err("two types").to_string();
/// assert!(told.contains("`b` holds bf16, expected"), "{told}");
/// # Ok(())
/// # }
/// ```
pub struct Tensor<D: Device> {
    device: D,
    shape: Shape,
    dtype: DType,
    buffer: Arc<D::Buffer>,
}

impl<D: Device> Tensor<D> {
    /// Wraps a buffer that `device` made and that holds `shape.count()` elements of `dtype`.
    ///
    /// # Errors
    /// What [`Device::check_buffer`] says of any other buffer: kernels trust shapes, so that a wrong one must not get in.
    pub fn from_buffer(device: &D, shape: impl Into<Shape>, dtype: DType, buffer: D::Buffer) -> Result<Self> {
        let shape = shape.into();
        device.check_buffer(&buffer, dtype, shape.count())?;
        Ok(Self { device: device.clone(), shape, dtype, buffer: Arc::new(buffer) })
    }

    /// Copies host values to the device.
    ///
    /// # Errors
    /// [`Error::Length`] if the values do not fill the shape; the device's own failures.
    pub fn upload(device: &D, shape: impl Into<Shape>, host: Host) -> Result<Self> {
        let shape = shape.into();
        if host.len() != shape.count() {
            return Err(Error::Length { what: "upload", shape, found: host.len() });
        }
        let dtype = host.dtype();
        Self::from_buffer(device, shape, dtype, device.upload(host)?)
    }

    /// Copies 32-bit floats to the device.
    ///
    /// # Errors
    /// As [`Tensor::upload`].
    pub fn from_f32(device: &D, shape: impl Into<Shape>, values: Vec<f32>) -> Result<Self> {
        Self::upload(device, shape, Host::F32(values))
    }

    /// Copies token ids to the device.
    ///
    /// # Errors
    /// As [`Tensor::upload`].
    pub fn from_u32(device: &D, shape: impl Into<Shape>, values: Vec<u32>) -> Result<Self> {
        Self::upload(device, shape, Host::U32(values))
    }

    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Config`] for more bytes than can be addressed; the device's own failures.
    pub fn zeros(device: &D, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        let shape = shape.into();
        if shape.count() > isize::MAX as usize / dtype.size() {
            let expected = "fewer bytes than can be addressed";
            return Err(Error::Config { what: "zeros", option: "shape", found: shape.to_string(), expected });
        }
        let buffer = device.zeros(dtype, shape.count())?;
        Self::from_buffer(device, shape, dtype, buffer)
    }

    /// Copies the elements to the host, after all work queued before.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn download(&self) -> Result<Host> {
        self.device.download(&self.buffer, self.dtype, self.shape.count())
    }

    /// Copies the elements to the host as 32-bit floats.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        Ok(self.download()?.into_f32())
    }

    /// Copies 32-bit words to the host.
    ///
    /// # Errors
    /// [`Error::DType`] for floats; the device's own failures.
    pub fn to_u32(&self) -> Result<Vec<u32>> {
        match self.download()? {
            Host::U32(words) => Ok(words),
            other => Err(Error::DType { what: "to_u32", slot: "x", expected: "u32", found: other.dtype() }),
        }
    }

    /// The same elements on `device`: a shared buffer where they lie there already, else a copy through the host, also
    /// from one backend to another.
    ///
    /// # Errors
    /// Either device's own failures.
    pub fn to<E: Device>(&self, device: &E) -> Result<Tensor<E>> {
        let here = (self as &dyn Any).downcast_ref::<Tensor<E>>();
        match here.filter(|x| x.device.id() == device.id()) {
            Some(x) => Ok(Tensor { device: device.clone(), ..x.clone() }),
            None => Tensor::upload(device, self.shape.clone(), self.download()?),
        }
    }

    /// Refuses a tensor that does not lie on `device`; `what` and `slot` are the operation and argument in the message.
    ///
    /// # Errors
    /// [`Error::OtherDevice`] naming both devices.
    pub fn check_device(&self, device: &D, what: &'static str, slot: &'static str) -> Result<()> {
        if self.device.id() == device.id() {
            return Ok(());
        }
        Err(Error::OtherDevice { what, slot, expected: device.id().clone(), found: self.device.id().clone() })
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.count() != self.shape.count() {
            return Err(Error::Shape { what: "reshape", slot: "x", expected: shape, found: self.shape.clone() });
        }
        Ok(Self { shape, ..self.clone() })
    }

    /// The device it lies on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Lengths of the axes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The backend's buffer.
    pub fn buffer(&self) -> &D::Buffer {
        &self.buffer
    }

    /// The backend's buffer itself where nobody else holds it, so that an update can happen in place.
    ///
    /// # Errors
    /// The tensor, unchanged, if its buffer is shared.
    pub fn into_buffer(self) -> std::result::Result<D::Buffer, Self> {
        let Self { device, shape, dtype, buffer } = self;
        Arc::try_unwrap(buffer).map_err(|buffer| Self { device, shape, dtype, buffer })
    }
}

impl<D: Device> Tensor<D> {
    /// Whether another tensor has the same elements: then nothing is written in place.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.buffer) > 1
    }
}

impl<D: Device> Clone for Tensor<D> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            shape: self.shape.clone(),
            dtype: self.dtype,
            buffer: Arc::clone(&self.buffer),
        }
    }
}
