//! Products of 8-bit floats: kernels round the factors, and cuBLASLt multiplies them.
//!
//! It takes factors with the terms of a sum side by side, so matrices that lie otherwise are turned while they are rounded.

use crate::{
    Cuda,
    arguments::{In, Out},
    blas_lt::{self, BlasLt, Fp8Product},
    device::Buffer,
    error::{failed, unsupported},
    launch::{Array, Grid, Pointer, kernels, pointer},
    source::{KernelSource, kernel_source},
};
use hecate_core::{
    Checked, Result, Tensor,
    primitives::{Fp8, Fp8Factor, Fp8Matmul, MatmulDims},
};

/// `(x / scale).to(torch.float8_e4m3fn)` or `float8_e5m2`, also of `x.T`, and the largest magnitudes for scales.
pub(crate) const SOURCE: KernelSource = kernel_source!("fp8", "fp8.cu");

kernels! { SOURCE {
    "fp8_largest" Largest { x: Array, count: u64, largest: Out<f32> }
    "fp8_cast" Cast {
        x: Array, out: Out<u8>, rows: u64, columns: u64, scale: In<f32>, largest: In<f32>, used_scale: Out<f32>,
        maximum: Out<f32>, format: u32
    }
    // The same, and the matrix is turned.
    "fp8_cast_across" CastAcross { cast: Cast }
} }

/// Elements of a thread.
// `PART` in the kernels.
const PART: usize = 16;

/// Rows and columns of a tile.
// `TILE` in the kernel.
const TILE: usize = 64;

/// The least compute capability that multiplies 8-bit floats.
const LEAST: (u32, u32) = (8, 9);

/// What a GPU of this compute capability lacks, with the library or without it.
fn missing((major, minor): (u32, u32), has_library: bool) -> Option<String> {
    if (major, minor) < LEAST {
        return Some(format!("they need compute capability 8.9, this GPU has {major}.{minor}; multiply bf16"));
    }
    let why = "cuBLASLt is not found; have libcublasLt where cuBLAS is, or multiply bf16";
    (!has_library).then(|| why.to_owned())
}

impl Fp8Matmul for Cuda {
    /// Capability 8.9 or later, and a cuBLASLt that can be opened.
    fn check_fp8(&self) -> Result<()> {
        missing(self.properties().capability, blas_lt::is_present())
            .map_or(Ok(()), |why| Err(unsupported("products of 8-bit floats", why)))
    }

    /// `out [m,n] = a' b'`, both rounded first.
    fn fp8_matmul(
        &self,
        _: Checked<Self>,
        dims: MatmulDims,
        factors: [Fp8Factor<'_, Self>; 2],
    ) -> Result<Tensor<Self>> {
        self.check_fp8()?;
        let Some(blas) = self.blas_lt() else {
            return Err(failed("opening cuBLASLt", "there may be too little memory for its workspace"));
        };
        let [a, b] = factors;
        let out = self.empty([dims.rows, dims.columns], a.x.dtype())?;
        // Terms of a sum lie side by side in `a [m,k]` and in `b [n,k]`.
        let (a, b) = (Rounded::new(self, a, dims.transpose.a)?, Rounded::new(self, b, !dims.transpose.b)?);
        multiply(self, blas, dims, [&a, &b], &out)?;
        Ok(out)
    }
}

/// A factor as 8-bit floats `[rows, inner]`.
struct Rounded {
    // A byte an element, terms of a sum side by side.
    bytes: Buffer,
    format: Fp8,
    figures: Figures,
}

/// What is known of a factor: its largest magnitude where its scale comes of that, then its scale.
struct Figures(Buffer);

/// Bytes that each figure has to itself: cuBLASLt refuses a scale that is not aligned, and those of callers lie anywhere.
const FIGURE: usize = 256;

impl Figures {
    /// Memory of both figures, which nothing has written yet.
    fn new(device: &Cuda) -> Result<Self> {
        Ok(Self(device.allocate(2 * FIGURE)?))
    }

    /// The largest magnitude that was found, 32 bits.
    fn largest(&self) -> Pointer {
        self.0.pointer()
    }

    /// What elements were divided by, 32 bits.
    fn scale(&self) -> Pointer {
        self.0.pointer() + FIGURE as u64
    }
}

impl Rounded {
    /// Rounds a matrix, and turns it where it is to lie `across`.
    fn new(device: &Cuda, factor: Fp8Factor<'_, Cuda>, across: bool) -> Result<Self> {
        let Fp8Factor { x, format, scale, maximum } = factor;
        let element = |(array, index): (&Tensor<Cuda>, usize)| pointer(array) + (index * size_of::<f32>()) as u64;
        let (rows, columns) = (x.shape().axes()[0], x.shape().axes()[1]);
        let (bytes, figures) = (device.allocate(rows * columns)?, Figures::new(device)?);
        // A caller's array, raised where it lies.
        if let Some((array, _)) = maximum {
            array.buffer().written_over();
        }
        // Without a scale the matrix is read once more, for its own.
        if scale.is_none() {
            let (count, largest) = ((rows * columns) as u64, figures.largest());
            device.fill(&figures.0, 0)?;
            device.launch(Grid::elements(rows * columns / PART), &Largest { x: x.into(), count, largest })?;
        }
        let cast = Cast {
            x: x.into(),
            out: bytes.pointer(),
            rows: rows as u64,
            columns: columns as u64,
            // No address is no array.
            scale: scale.map_or(0, element),
            largest: figures.largest(),
            used_scale: figures.scale(),
            maximum: maximum.map_or(0, element),
            format: u32::from(format == Fp8::E5M2),
        };
        // Tiles are turned in shared memory, so that both sides are read and written in runs.
        if across {
            let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
            device.launch(Grid::blocks(tiles, 256), &CastAcross { cast })?;
        } else {
            device.launch(Grid::elements(rows * columns / PART), &cast)?;
        }
        Ok(Self { bytes, format, figures })
    }
}

/// Through cuBLASLt.
#[allow(unsafe_code)]
fn multiply(device: &Cuda, blas: &BlasLt, dims: MatmulDims, [a, b]: [&Rounded; 2], out: &Tensor<Cuda>) -> Result<()> {
    let product = Fp8Product {
        sizes: [dims.rows, dims.inner, dims.columns],
        formats: [a.format, b.format],
        dtype: out.dtype(),
        factors: [a.bytes.pointer(), b.bytes.pointer()],
        scales: [a.figures.scale(), b.figures.scale()],
        out: out.buffer().pointer(),
    };
    // While another thread captures a scale, nothing is queued.
    let _turn = device.ledger().turn();
    // SAFETY: arrays have as many elements as the sizes say, which core checked, and the stream frees none of them before it is
    // through with them; nobody else holds `out`.
    unsafe { blas.multiply(device.stream(), &product) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of GPUs before, at and after the first that has such units.
    #[test]
    fn what_is_missing_is_named() {
        assert!(missing((8, 6), true).is_some_and(|why| why.contains("8.9") && why.contains("8.6")));
        assert!(missing((8, 9), false).is_some_and(|why| why.contains("libcublasLt")));
        assert_eq!([(8, 9), (9, 0), (10, 0)].map(|capability| missing(capability, true)), [None, None, None]);
    }
}
