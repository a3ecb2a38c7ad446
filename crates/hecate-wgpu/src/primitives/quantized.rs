//! Products with quantized matrices: few rows meet weights as they are decoded, many meet them decoded.

use crate::{
    Wgpu,
    error::unsupported,
    launch::{Binding, Kernel, PRELUDE, WORKGROUP, WgslSource},
    stored::{BITS, IEEE},
};
use hecate_core::{
    DType, Result, Tensor,
    primitives::{Matmul, MatmulDims, MatmulInputs, QuantizedMatmul, Transpose},
    quantized::Quantized,
};

/// How blocks are decoded.
const TEXT: &str = include_str!("quantized.wgsl");
const FEW_ROWS: WgslSource = WgslSource {
    name: "quantized_few_rows",
    parts: &[IEEE, BITS, PRELUDE, WORKGROUP[0], TEXT, include_str!("quantized_few_rows.wgsl")],
};
const DEQUANTIZE: WgslSource =
    WgslSource { name: "dequantize", parts: &[IEEE, BITS, PRELUDE, TEXT, include_str!("dequantize.wgsl")] };

/// Each kernel for every format.
static FORMATS: [[(&str, u32); 1]; 4] = [[("FORMAT", 0)], [("FORMAT", 1)], [("FORMAT", 2)], [("FORMAT", 3)]];

/// The kernel of few rows, a workgroup a row of weights.
const fn few_rows(format: usize) -> Kernel<'static> {
    Kernel { source: &FEW_ROWS, entry: "few_rows", constants: &FORMATS[format] }
}

/// The kernel that writes values, an invocation 16 of them.
const fn dequantize(format: usize) -> Kernel<'static> {
    Kernel { source: &DEQUANTIZE, entry: "dequantize", constants: &FORMATS[format] }
}

/// Every kernel of both files.
pub(crate) const KERNELS: &[Kernel<'static>] =
    &[few_rows(0), few_rows(1), few_rows(2), few_rows(3), dequantize(0), dequantize(1), dequantize(2), dequantize(3)];

/// Most rows of `x` for which weights are decoded on the fly.
const FEW: usize = 8;

/// Values that are decoded at once.
const PART: usize = 16;

/// Twin of the structure of this name in the kernel.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct FewRowsArgs {
    /// Rows of `x`.
    rows: u32,
    /// Rows of weights.
    columns: u32,
    /// `K`.
    inner: u32,
    unused: u32,
}

/// Twin of the structure of this name in the kernel.
#[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
#[repr(C)]
struct DequantizeArgs {
    /// Parts of 16 values.
    parts: u32,
    unused: [u32; 7],
}

impl QuantizedMatmul for Wgpu {
    /// `y = x Wᵀ`, `x [n,K]`, `W [N,K]`, with `x` as it is and sums in 32 bits.
    fn quantized_matmul(&self, x: &Tensor<Self>, weight: &Quantized<Self>) -> Result<Tensor<Self>> {
        let (n, inner, columns, dtype) = (x.shape().rows(), weight.columns(), weight.rows(), x.dtype());
        // Bytes and values are counted in 32 bits.
        if [columns * inner, n * inner, n * columns].iter().any(|&count| count > u32::MAX as usize / 2) {
            let why = format!("{n} rows of {inner} by {columns} rows of weights; use a smaller batch or vocabulary");
            return Err(unsupported("products of this size", why));
        }
        let x = self.widened(x)?;
        if n > FEW {
            let b = &self.dequantized(weight)?;
            let transpose = Transpose { a: false, b: true };
            let dims = MatmulDims { batch: 1, rows: n, inner, columns, transpose };
            return self.rounded(self.matmul(dims, MatmulInputs { a: &x, b, onto: None })?, dtype);
        }
        let y = self.empty([n, columns], DType::F32)?;
        let args = FewRowsArgs { rows: n as u32, columns: columns as u32, inner: inner as u32, unused: 0 };
        let arrays = [Binding::Read(weight.words()), Binding::Read(&x), Binding::Write(&y)];
        self.launch(&few_rows(weight.format().index()), (columns, 1, 1), &args, &arrays)?;
        self.rounded(y, dtype)
    }
}

impl Wgpu {
    /// The values `[N,K]` of a quantized matrix.
    fn dequantized(&self, weight: &Quantized<Self>) -> Result<Tensor<Self>> {
        let out = self.empty([weight.rows(), weight.columns()], DType::F32)?;
        let parts = weight.rows() * weight.columns() / PART;
        let args = DequantizeArgs { parts: parts as u32, unused: [0; 7] };
        let arrays = [Binding::Read(weight.words()), Binding::Write(&out)];
        self.launch(&dequantize(weight.format().index()), (parts.div_ceil(64), 1, 1), &args, &arrays)?;
        Ok(out)
    }
}
