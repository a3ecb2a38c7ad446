//! cuBLASLt, where it is found: products of 8-bit floats, which cuBLAS itself does not have.
#![allow(unsafe_code)]

use crate::{error::failed, ledger::driver_turn};
use cudarc::{
    cublaslt::{result, sys},
    driver::{CudaSlice, CudaStream, DevicePtr},
};
use hecate_core::{DType, Result, primitives::Fp8};
use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
};

/// A handle, and how products of each size are computed.
pub(crate) struct BlasLt {
    handle: sys::cublasLtHandle_t,
    /// Of its products, as long as the handle: graphs use it in every replay.
    workspace: CudaSlice<u8>,
    /// One product at a time: those of two threads would mix up what they keep in the workspace.
    plans: Mutex<HashMap<Sizes, Plan>>,
}

/// Bytes of the workspace: what cuBLAS advises for the largest GPUs.
const WORKSPACE: usize = 32 << 20;

// SAFETY: a handle may be used by any thread, one at a time, which `plans` sees to.
unsafe impl Send for BlasLt {}
// SAFETY: as above.
unsafe impl Sync for BlasLt {}

/// `out [m,n] = sₐ s_b a bᵀ` of matrices `a [m,k]` and `b [n,k]` on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8Product {
    /// `m`, `k`, `n`: multiples of 16.
    pub(crate) sizes: [usize; 3],
    pub(crate) formats: [Fp8; 2],
    /// Of the result.
    pub(crate) dtype: DType,
    /// Where `a` and `b` begin.
    pub(crate) factors: [u64; 2],
    /// Where `sₐ` and `s_b` stand, 32 bits each, aligned: at odd multiples of 4 bytes the library refuses them.
    pub(crate) scales: [u64; 2],
    pub(crate) out: u64,
}

/// What a plan depends on: sizes, formats and the result's type.
type Sizes = ([usize; 3], [Fp8; 2], DType);

/// `CUBLAS_OP_T`; without it a factor is read as it lies.
const TRANSPOSED: i32 = 1;

/// What is called of it.
const FUNCTIONS: [&[u8]; 12] = [
    b"cublasLtCreate\0",
    b"cublasLtDestroy\0",
    b"cublasLtMatmul\0",
    b"cublasLtMatmulAlgoGetHeuristic\0",
    b"cublasLtMatmulDescCreate\0",
    b"cublasLtMatmulDescDestroy\0",
    b"cublasLtMatmulDescSetAttribute\0",
    b"cublasLtMatmulPreferenceCreate\0",
    b"cublasLtMatmulPreferenceDestroy\0",
    b"cublasLtMatmulPreferenceSetAttribute\0",
    b"cublasLtMatrixLayoutCreate\0",
    b"cublasLtMatrixLayoutDestroy\0",
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

impl BlasLt {
    /// A handle, where the library is there and memory for its workspace is left.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Option<Self> {
        if !is_present() {
            return None;
        }
        // SAFETY: the library is there; products write to the workspace before they read it.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE).ok()? };
        Some(Self { handle: result::create_handle().ok()?, workspace, plans: Mutex::default() })
    }

    /// Queues a product on the stream that the value was made with.
    ///
    /// # Safety
    /// The matrices hold as many elements as the sizes say, and live until the stream is through with them. Nobody else holds
    /// `out`.
    pub(crate) unsafe fn multiply(&self, stream: &Arc<CudaStream>, product: &Fp8Product) -> Result<()> {
        let Fp8Product { sizes, formats, dtype, factors: [a, b], scales: [a_scale, b_scale], out } = *product;
        let failing = |error| failed(format!("cuBLASLt: a product of {product:?}"), format!("{error:?}"));
        // A first product may load code.
        let _driver = driver_turn();
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sizes, formats, dtype);
        let plan = match plans.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Plan::new(self.handle, &key).map_err(failing)?),
        };
        let (one, zero) = (1.0f32, 0.0f32);
        let workspace = self.workspace.device_ptr(stream).0;
        // Row-major `C = A B` is column-major `Cᵀ = Bᵀ Aᵀ`, so `b` comes first.
        // SAFETY: the caller's; the plan is of these sizes.
        unsafe {
            let multiplied = plan.set_scales([b_scale, a_scale]).and_then(|()| {
                result::matmul(
                    self.handle,
                    plan.product,
                    (&raw const one).cast(),
                    (&raw const zero).cast(),
                    b as *const c_void,
                    plan.layouts[0],
                    a as *const c_void,
                    plan.layouts[1],
                    out as *const c_void,
                    plan.layouts[2],
                    out as *mut c_void,
                    plan.layouts[2],
                    &plan.algorithm,
                    workspace as *mut c_void,
                    WORKSPACE,
                    stream.cu_stream().cast(),
                )
            });
            multiplied.map_err(failing)
        }
    }
}

impl Drop for BlasLt {
    fn drop(&mut self) {
        // The library waits for the whole GPU here.
        let _driver = driver_turn();
        // SAFETY: made once, freed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// How products of some sizes are computed. Plans live as long as the handle, which forgets them with the program.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    /// Of both factors as the library counts them, and of the result.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    /// How the library would compute products of these sizes: its first proposal that fits the workspace.
    fn new(handle: sys::cublasLtHandle_t, key: &Sizes) -> Result<Self, result::CublasError> {
        use sys::{cublasComputeType_t::CUBLAS_COMPUTE_32F, cublasLtMatmulDescAttributes_t::*, cudaDataType_t::*};
        let &([m, k, n], formats, dtype) = key;
        let [a, b] = formats.map(|format| match format {
            Fp8::E4M3 => CUDA_R_8F_E4M3,
            Fp8::E5M2 => CUDA_R_8F_E5M2,
        });
        let out = match dtype {
            DType::Bf16 => CUDA_R_16BF,
            DType::F16 => CUDA_R_16F,
            _ => CUDA_R_32F,
        };
        let layout = |kind, rows: usize, columns: usize| {
            result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
        };
        let layouts = [layout(b, k, n)?, layout(a, k, m)?, layout(out, n, m)?];
        let product = result::create_matmul_desc(CUBLAS_COMPUTE_32F, CUDA_R_32F)?;
        let mut plan = Self { product, layouts, algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] } };
        // Activations and weights add up faster, and a few bits less exactly, than gradients.
        let fast = i8::from(formats == [Fp8::E4M3; 2]);
        let limit = WORKSPACE as u64;
        // SAFETY: every attribute is as long as the library has it; all that is named was just made.
        unsafe {
            plan.set(CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
            plan.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast)?;
            // Any address tells that there are scales.
            plan.set_scales([256, 256])?;
            let preference = result::create_matmul_pref()?;
            let workspace = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(preference, workspace, (&raw const limit).cast(), size_of::<u64>())?;
            let [first, second, out] = layouts;
            let found = result::get_matmul_algo_heuristic(handle, product, first, second, out, out, preference);
            result::destroy_matmul_pref(preference)?;
            plan.algorithm = found?.algo;
        }
        Ok(plan)
    }

    /// Sets where the scales of both factors stand.
    unsafe fn set_scales(&self, [first, second]: [u64; 2]) -> Result<(), result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        // SAFETY: addresses, as the library takes them.
        unsafe {
            self.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &first)?;
            self.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &second)
        }
    }

    /// Sets an attribute of the product.
    ///
    /// # Safety
    /// The attribute has the type of the value.
    unsafe fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), result::CublasError> {
        // SAFETY: the caller's; the library copies the value.
        unsafe {
            result::set_matmul_desc_attribute(self.product, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}
