//! Products of whole numbers with AVX-512 VNNI: 64 products of 8 bits, added four by four, in one instruction.
//!
//! That instruction takes one operand without signs: `q` is stored so in the K formats, and `q + 128` is where it has one.
//! What the offset adds is taken off as a whole number, so that sums stay exact until they meet their scales.

mod panels;
mod rows;

use super::{Kernels, Several, TOGETHER, call, loads};
use hecate_core::quantized::BlockFormat;
pub(super) use panels::Panels;
use std::arch::x86_64::*;

/// Those of a format; none where the processor lacks something.
pub(super) fn kernels(format: BlockFormat) -> Option<Kernels> {
    let there = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("f16c");
    let panels = |offset, unpack, products| Several::Panels(Panels { offset, unpack, products });
    there.then_some(match format {
        BlockFormat::Q8_0 => Kernels {
            one: call!(rows::q8_0(weights, x)),
            several: panels(128, call!(panels::q8_0(rows, panel)), call!(panels::products<false>(weights, x))),
        },
        BlockFormat::Q6K => Kernels {
            one: call!(rows::q6_k<1>(weights, x)),
            several: Several::Rows(call!(rows::q6_k<TOGETHER>(weights, x))),
        },
        BlockFormat::Q5K => Kernels {
            one: call!(rows::affine<176>(weights, x)),
            several: panels(0, call!(panels::affine<176>(rows, panel)), call!(panels::products<true>(weights, x))),
        },
        BlockFormat::Q4K => Kernels {
            one: call!(rows::affine<144>(weights, x)),
            several: panels(0, call!(panels::affine<144>(rows, panel)), call!(panels::products<true>(weights, x))),
        },
    })
}

loads! {
    "avx512f,avx512bw,avx512vl";
    bytes_64 __m512i, u8, 64, _mm512_loadu_si512;
    bytes_32 __m256i, u8, 32, _mm256_loadu_si256;
    bytes_16 __m128i, u8, 16, _mm_loadu_si128;
    floats_8 __m256, f32, 8, _mm256_loadu_ps;
    floats_16 __m512, f32, 16, _mm512_loadu_ps;
    words_16 __m512i, i32, 16, _mm512_loadu_si512;
}

/// Registers as the elements of an array.
macro_rules! stores {
    ($($name:ident $vector:ty, $element:ty, $count:literal, $store:ident;)*) => {$(
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn $name(to: &mut [$element; $count], from: $vector) {
            // SAFETY: there are as many elements as are written, and they need no alignment.
            #[expect(unsafe_code, reason = "stores take pointers")]
            unsafe { $store(to.as_mut_ptr().cast(), from) }
        }
    )*};
}
stores! {
    put_bytes __m512i, u8, 64, _mm512_storeu_si512;
    put_floats __m512, f32, 16, _mm512_storeu_ps;
}
