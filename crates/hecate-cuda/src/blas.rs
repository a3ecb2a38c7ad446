//! cuBLAS, where it is found.
#![allow(unsafe_code)]

use crate::{error::failed, ledger::driver_turn};
use cudarc::{
    cublas::{result, sys},
    driver::{CudaSlice, CudaStream, DevicePtr},
};
use hecate_core::{DType, Result, primitives::MatmulDims};
use std::sync::{Arc, Mutex, PoisonError};

/// A handle bound to a stream.
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    /// Of its products. Memory that cuBLAS asks for by itself would be nodes of a graph.
    _workspace: CudaSlice<u8>,
    /// One product at a time: kernels of two would mix up what they keep in the workspace.
    calls: Mutex<()>,
}

/// Bytes of the workspace: what cuBLAS advises for the largest GPUs.
/// How products are split depends on it, so that it is the same in a graph and call by call.
const WORKSPACE: usize = 32 << 20;

// SAFETY: a handle may be used by any thread, one at a time, which `calls` sees to.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// Batched products of row-major matrices on the device, whose first elements lie at `a`, `b` and `out`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) dims: MatmulDims,
    pub(crate) strides: ProductStrides,
    /// Of both operands, and of the result.
    pub(crate) dtypes: [DType; 2],
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) out: u64,
    /// Whether the product is added to `out`, instead of written there.
    pub(crate) add: bool,
}

/// Where the matrices of `a`, `b` and `out` lie, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductStrides {
    /// From row to row.
    pub(crate) rows: [usize; 3],
    /// From product to product.
    pub(crate) products: [usize; 3],
}

impl ProductStrides {
    /// Of matrices without gaps, one after another.
    pub(crate) fn dense(dims: &MatmulDims) -> Self {
        let MatmulDims { rows, inner, columns, transpose, .. } = *dims;
        let (a, b) = (if transpose.a { rows } else { inner }, if transpose.b { inner } else { columns });
        Self { rows: [a, b, columns], products: [rows * inner, inner * columns, rows * columns] }
    }
}

/// What is called of it.
const FUNCTIONS: [&[u8]; 5] = [
    b"cublasCreate_v2\0",
    b"cublasSetStream_v2\0",
    b"cublasSetWorkspace_v2\0",
    b"cublasGemmStridedBatchedEx\0",
    b"cublasDestroy_v2\0",
];

/// Whether the library is there, with all that is called of it.
pub(crate) fn is_present() -> bool {
    // SAFETY: looks for a library by name and opens it, and for addresses in it that are not used.
    unsafe {
        // Where a library of this name lacks a function, calling it would panic.
        let has = |name: &[u8]| sys::culib().get::<*const ()>(name).is_ok();
        sys::is_culib_present() && FUNCTIONS.into_iter().all(has)
    }
}

impl Blas {
    /// A handle, where the library is there and takes the stream.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Option<Self> {
        if !is_present() {
            return None;
        }
        // Results stay right without it. Somebody who waits ten times as long should know why.
        let opened = Self::open(stream);
        if opened.is_none() {
            tracing::warn!(
                workspace = WORKSPACE,
                "cuBLAS is there and does not open, perhaps for want of memory: products go through slower kernels"
            );
        }
        opened
    }

    /// A handle of the library that is there.
    fn open(stream: &Arc<CudaStream>) -> Option<Self> {
        // SAFETY: the library is there, and the memory is as long as it is told. The value that holds both lets go of the
        // handle before the stream, and so does this one before the workspace.
        unsafe {
            // As long as the handle: products of a graph use it in every replay.
            let workspace = stream.alloc::<u8>(WORKSPACE).ok()?;
            let address = workspace.device_ptr(stream).0 as *mut std::ffi::c_void;
            let blas = Self { handle: result::create_handle().ok()?, _workspace: workspace, calls: Mutex::default() };
            result::set_stream(blas.handle, stream.cu_stream().cast()).ok()?;
            // The order matters. Once the stream is set, which takes the handle's own.
            sys::cublasSetWorkspace_v2(blas.handle, address, WORKSPACE).result().ok()?;
            Some(blas)
        }
    }

    /// `out[i] = a[i]' b[i]'`, or that added to what is there, sums in 32 bits.
    ///
    /// # Safety
    /// The matrices hold as many elements of the type as the sizes say, and live until the stream is through with them.
    /// Nobody else holds `out`, which is read where `add` says so.
    pub(crate) unsafe fn matmul(&self, product: &Product) -> Result<()> {
        use sys::{cublasComputeType_t::CUBLAS_COMPUTE_32F, cublasGemmAlgo_t::CUBLAS_GEMM_DFALT, cublasOperation_t::*};
        let Product { dims, strides, dtypes, a, b, out, add } = *product;
        let MatmulDims { batch, rows, inner, columns, transpose } = dims;
        let [kind, result_kind] = dtypes.map(|dtype| match dtype {
            DType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
            _ => sys::cudaDataType_t::CUDA_R_32F,
        });
        // Leading dimensions are those of the row-major arrays.
        let operation = |transposed| if transposed { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let (leading, apart) = (strides.rows.map(|n| n as i32), strides.products.map(|n| n as i64));
        let (one, kept) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let address = |x: u64| x as *mut std::ffi::c_void;
        // A first product may load code.
        let _driver = driver_turn();
        let _call = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        // Row-major `C = A B` is column-major `Cᵀ = Bᵀ Aᵀ`.
        // SAFETY: the caller's.
        unsafe {
            result::gemm_strided_batched_ex(
                self.handle,
                operation(transpose.b),
                operation(transpose.a),
                columns as i32,
                rows as i32,
                inner as i32,
                (&raw const one).cast(),
                address(b),
                kind,
                leading[1],
                apart[1],
                address(a),
                kind,
                leading[0],
                apart[0],
                (&raw const kept).cast(),
                address(out),
                result_kind,
                leading[2],
                apart[2],
                batch as i32,
                CUBLAS_COMPUTE_32F,
                CUBLAS_GEMM_DFALT,
            )
        }
        .map_err(|error| failed(format!("cuBLAS: a product of {dims:?}"), format!("{error:?}")))
    }
}

impl Drop for Blas {
    /// Lets go of the handle, under the lock that all calls which may wait for the GPU take.
    fn drop(&mut self) {
        // The library waits for the whole GPU here.
        let _driver = driver_turn();
        // SAFETY: made once, freed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
