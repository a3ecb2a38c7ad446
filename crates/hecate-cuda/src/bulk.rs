//! Arrays as the engine for bulk copies knows them (tensor maps), on GPUs of capability 9.0.
//!
//! One thread asks for a box of an array, and the engine writes it to shared memory, pieces in the places that products of a
//! group of warps read (`in_panel` in `group.cuh`). Outside of the array there are zeros.
#![allow(unsafe_code)]

use crate::{arguments::arguments, error::failed, launch::Array};
use cudarc::driver::sys;
use hecate_core::Result;

/// Columns of a box: 128 bytes, the width of a panel.
const COLUMNS: u32 = 64;

arguments! {
    /// What kernels take by value; `BulkMap` in `group.cuh`.
    #[repr(align(64))]
    pub(crate) struct BulkMap {
        opaque: [u64; 16],
    }
}

impl BulkMap {
    /// A map that a kernel does not look at.
    pub(crate) const NONE: Self = Self { opaque: [0; 16] };

    /// `x`, sizes `[rows, heads, columns]` of 16-bit elements, columns a multiple of 8, in boxes of so many rows and heads by
    /// 64 columns.
    pub(crate) fn new(x: Array, [rows, heads, columns]: [usize; 3], [box_rows, box_heads]: [usize; 2]) -> Result<Self> {
        // From the axis whose elements are neighbours outwards.
        let sizes = [columns, heads, rows].map(|size| size as u64);
        // In bytes, from head to head and from row to row.
        let strides = [2 * columns, 2 * columns * heads].map(|bytes| bytes as u64);
        let sides = [COLUMNS, box_heads as u32, box_rows as u32];
        // Bits are copied as they are, whichever of the two 16-bit types they are of.
        let dtype = sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
        // The driver fills it; what the words mean is its own affair.
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have three elements, strides one less, and live until the driver returns.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                dtype,
                3,
                x.data as *mut _,
                sizes.as_ptr(),
                strides.as_ptr(),
                sides.as_ptr(),
                [1; 3].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        made.result()
            .map_err(|error| failed(format!("describing {sizes:?} for copies in boxes of {sides:?}"), error))?;
        Ok(Self { opaque: map.opaque })
    }
}
