//! Arrays on a device, their shapes, and how rows of tokens split into sequences.

use crate::{DType, Device, Error, Host, Result};
use std::{any::Any, fmt, ops::Range, sync::Arc};

/// Lengths of the axes, outermost first.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Arc<[usize]>);

impl Shape {
    /// The axes.
    pub fn axes(&self) -> &[usize] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements; `usize::MAX` where there are more.
    pub fn count(&self) -> usize {
        product(&self.0)
    }

    /// Length of the innermost axis; 1 for a shape without axes.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// Number of innermost rows: the product of all axes but the last; `usize::MAX` where there are more.
    pub fn rows(&self) -> usize {
        product(&self.0[..self.rank().saturating_sub(1)])
    }
}

/// Product of the lengths of axes. It ends at `usize::MAX`, which no memory holds, instead of wrapping to a number that
/// some memory does.
pub(crate) fn product(axes: &[usize]) -> usize {
    axes.iter().fold(1, |count: usize, &n| count.saturating_mul(n))
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(axes: [usize; N]) -> Self {
        Self(Arc::new(axes))
    }
}

impl From<&[usize]> for Shape {
    fn from(axes: &[usize]) -> Self {
        Self(axes.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(axes: Vec<usize>) -> Self {
        Self(axes.into())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A contiguous row-major array on a device. Cloning shares the buffer; buffers are never changed while shared.
pub struct Tensor<D: Device> {
    device: D,
    shape: Shape,
    dtype: DType,
    buffer: Arc<D::Buffer>,
}

impl<D: Device> Tensor<D> {
    /// Wraps a buffer that a backend made. `shape.count()` elements of `dtype` must be in it.
    pub fn from_buffer(device: &D, shape: impl Into<Shape>, dtype: DType, buffer: D::Buffer) -> Self {
        Self { device: device.clone(), shape: shape.into(), dtype, buffer: Arc::new(buffer) }
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
        Ok(Self::from_buffer(device, shape, dtype, device.upload(host)?))
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
        Ok(Self::from_buffer(device, shape, dtype, buffer))
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

impl<D: Device> fmt::Debug for Tensor<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {})", self.dtype, self.shape, D::NAME)
    }
}

/// How the `B × T` rows of tokens in a call split into sequences, each with a state of its own.
///
/// A plain batch is `B` sequences of equal length. A *packed* call has `B = 1` and `T` the sum of the lengths.
/// Kernels see flattened rows either way: sequence `n` owns rows `range(n)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    starts: Arc<[usize]>,
}

impl Sequences {
    /// `batch` sequences of `tokens` tokens.
    pub fn batch(batch: usize, tokens: usize) -> Self {
        Self { starts: (0..=batch).map(|n| n.saturating_mul(tokens)).collect() }
    }

    /// Sequences of these lengths, one after another; a sum over `usize::MAX` stays there, and fits no array.
    pub fn packed(lengths: &[usize]) -> Self {
        let mut end = 0;
        let ends = lengths.iter().map(|&n: &usize| {
            end = n.saturating_add(end);
            end
        });
        Self { starts: std::iter::once(0).chain(ends).collect() }
    }

    /// Number of sequences, `N`.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Number of token rows in all.
    pub fn rows(&self) -> usize {
        *self.starts.last().unwrap_or(&0)
    }

    /// Rows of sequence `n`.
    pub fn range(&self, n: usize) -> Range<usize> {
        self.starts[n]..self.starts[n + 1]
    }

    /// Rows of every sequence, in order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.starts.windows(2).map(|w| w[0]..w[1])
    }

    /// First row of every sequence, and behind them the number of rows: `N + 1` values (`cu_seqlens`).
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.ranges().map(|r| r.len()).max().unwrap_or(0)
    }

    /// Every sequence cut into tiles of `length` elements, from `first` to `end` of its tokens: jobs of a kernel, as
    /// sequence, its first row, its tokens, first element of the tile. `first` is negative for what stands in front.
    pub fn tiles(&self, length: usize, first: i64, end: impl Fn(usize) -> usize) -> impl Iterator<Item = [i64; 4]> {
        self.ranges().enumerate().flat_map(move |(n, rows)| {
            let tiles = (first..end(rows.len()) as i64).step_by(length);
            tiles.map(move |at| [n as i64, rows.start as i64, rows.len() as i64, at])
        })
    }

    /// Refuses token arrays `[B,T,..]` that these sequences do not cover exactly: `B` sequences of `T` tokens, or any
    /// lengths that add up to `T` where `B = 1`.
    ///
    /// # Errors
    /// [`Error::Rank`], [`Error::Empty`] or [`Error::Shape`] naming `what` and `slot`.
    pub fn check(&self, what: &'static str, slot: &'static str, shape: &Shape) -> Result<()> {
        let [batch, tokens, ..] = *shape.axes() else {
            return Err(Error::Rank { what, slot, expected: "at least 2 ([B,T,..])", found: shape.clone() });
        };
        let covered = product(&[batch, tokens]) == self.rows();
        let aligned = batch == 1 || self.ranges().all(|r| r.len() == tokens);
        // Lengths that do not add up are not called empty: where their sum saturates, the last ranges only look so.
        if self.count() == 0 || (covered && self.ranges().any(|r| r.is_empty())) {
            let lengths: Vec<usize> = self.ranges().map(|r| r.len()).collect();
            return Err(Error::Empty { what, slot: "sequence lengths", found: lengths.into() });
        }
        if !covered || !aligned {
            let mut expected = vec![1, self.rows()];
            expected.extend(&shape.axes()[2..]);
            return Err(Error::Shape { what, slot, expected: expected.into(), found: shape.clone() });
        }
        Ok(())
    }
}
