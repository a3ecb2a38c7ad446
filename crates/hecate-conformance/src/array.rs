//! Host arrays in 64 bits, and where their values come from.

use hecate_core::{DType, Device, Host, Result, Shape, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A host array in 64 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Lengths of the axes.
    pub shape: Shape,
    /// Elements, row-major.
    pub values: Vec<f64>,
}

impl Array {
    /// An array of these values, which fill `shape`.
    ///
    /// # Panics
    /// If they do not.
    pub fn new(shape: impl Into<Shape>, values: Vec<f64>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.count(), values.len(), "{} values for shape {shape}", values.len());
        Self { shape, values }
    }

    /// The same value everywhere.
    pub fn full(shape: impl Into<Shape>, value: f64) -> Self {
        let shape = shape.into();
        Self { values: vec![value; shape.count()], shape }
    }

    /// The elements rounded to a float type and back.
    pub fn rounded(&self, dtype: DType) -> Self {
        // By way of 32 bits: devices are handed no more.
        let host = Host::from_f32(dtype, self.values.iter().map(|&x| x as f32).collect());
        Self { shape: self.shape.clone(), values: host.into_f32().into_iter().map(f64::from).collect() }
    }

    /// Copied to a device, rounded to a float type.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn upload<D: Device>(&self, device: &D, dtype: DType) -> Result<Tensor<D>> {
        // Values that were `rounded` lose nothing here.
        let values = self.values.iter().map(|&x| x as f32).collect();
        Tensor::upload(device, self.shape.clone(), Host::from_f32(dtype, values))
    }

    /// Copied from a device.
    ///
    /// # Errors
    /// The device's own failures.
    pub fn download<D: Device>(tensor: &Tensor<D>) -> Result<Self> {
        let values = tensor.to_f32()?.into_iter().map(f64::from).collect();
        Ok(Self { shape: tensor.shape().clone(), values })
    }

    /// Indices `range` of the axis that `outer` elements of the leading axes precede. `[outer, length, inner]` is cut
    /// to `[outer, range, inner]`, under the shape with that axis shortened.
    pub fn cut(&self, axis: usize, range: std::ops::Range<usize>) -> Self {
        let mut axes = self.shape.axes().to_vec();
        let (length, inner) = (axes[axis], axes[axis + 1..].iter().product::<usize>());
        let values =
            // One chunk is `[length, inner]`; with no elements there is no chunk, and chunks of 0 would panic.
            self.values.chunks((length * inner).max(1)).flat_map(|x| &x[range.start * inner..range.end * inner]);
        let values = values.copied().collect();
        axes[axis] = range.len();
        Self { shape: axes.into(), values }
    }

    /// Arrays joined along an axis.
    pub fn join(parts: &[Self], axis: usize) -> Self {
        let mut axes = parts[0].shape.axes().to_vec();
        let (outer, inner): (usize, usize) = (axes[..axis].iter().product(), axes[axis + 1..].iter().product());
        axes[axis] = parts.iter().map(|part| part.shape.axes()[axis]).sum();
        let mut values = Vec::with_capacity(axes.iter().product());
        // Seen as `[outer, length, inner]`, parts of row `i` lie one after another.
        for i in 0..outer {
            for part in parts {
                let width = part.shape.axes()[axis] * inner;
                values.extend(&part.values[i * width..(i + 1) * width]);
            }
        }
        Self { shape: axes.into(), values }
    }
}

/// Random numbers that are the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        // The upper 53 bits fill the fraction of a 64-bit float.
        low + (high - low) * (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        // `1 − u` is over 0, so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.uniform(0.0, 1.0)).ln()).sqrt();
        radius * self.uniform(0.0, std::f64::consts::TAU).cos()
    }

    /// Whole number under `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        // The bias of the remainder is under `bound / 2⁶⁴`.
        (self.0.next_u64() % bound as u64) as usize
    }

    /// Standard normal elements, each a 32-bit float.
    pub fn normals(&mut self, shape: impl Into<Shape>) -> Array {
        self.fill(shape, Self::normal)
    }

    /// Uniform elements, each a 32-bit float.
    pub fn uniforms(&mut self, shape: impl Into<Shape>, low: f64, high: f64) -> Array {
        self.fill(shape, |random| random.uniform(low, high))
    }

    /// Rows of length 1 (to 32 bits) along the last axis.
    pub fn units(&mut self, shape: impl Into<Shape>) -> Array {
        let mut array = self.fill(shape, Self::normal);
        for row in array.values.chunks_mut(array.shape.last()) {
            // No row of normal numbers is all zeros, in practice and with these seeds.
            let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            row.iter_mut().for_each(|x| *x /= norm);
        }
        array.rounded(DType::F32)
    }

    fn fill(&mut self, shape: impl Into<Shape>, mut draw: impl FnMut(&mut Self) -> f64) -> Array {
        let shape = shape.into();
        let values = (0..shape.count()).map(|_| draw(self)).collect();
        Array { shape, values }.rounded(DType::F32)
    }
}
