//! Every primitive with arguments, its equations, and how a device is asked.
//!
//! A primitive's equations are written for small matrices of one tape, as rules' are; dfdx differentiates them. Where
//! the primitive has a backward of its own, the device's gradients are held to dfdx's.

mod attention;
mod case;
mod elementwise;
mod features;
mod fp8;
mod gates;
mod language;
mod layout;
mod matmul;
mod norm;
mod projection;
mod quantized;
mod sample;
mod softmax;
mod tokens;

pub use attention::{attention, attention_in_narrow_tiles, attention_in_tiles};
pub use case::{CaseResult, Output, PrimitiveCase, Slot, Solution};
pub use elementwise::{add, biased, cast, div, dropout, gated, map, mul, scale, sub};
pub use features::poly2;
pub use fp8::fp8_matmul;
pub use gates::retention;
pub use language::{adamw, adamw_placed, cross_entropy, cross_entropy_and_gradient, embedding, norm_squared};
pub use layout::{concat, narrow, sum, sum_rows, sum_squares};
pub use matmul::{head_products, matmul, matmul_each, matmul_each_backward, matmul_in_tiles, matmul_onto};
pub use norm::{add_layer_norm, add_rms_norm, l2_norm, layer_norm, rms_norm, rms_norm_gated};
pub use projection::project;
pub use quantized::quantized_matmul;
pub use sample::sample;
pub use softmax::softmax;
pub use tokens::{conv, conv_each, conv_in_parts, rotary};

use case::{each, pick};

/// Calls `$callback!` with the name of every primitive, which is the name of the function here that lists its cases.
/// Arguments after the callback's name are passed on in front of the list.
/// The tests of every backend are made from it: a primitive that is not in it is not tested.
#[macro_export]
macro_rules! for_each_primitive {
    ($callback:ident $(, $($before:tt)*)?) => {
        $callback! {
            $($($before)*)?
            matmul, matmul_each, matmul_each_backward, matmul_onto, head_products, project, quantized_matmul, fp8_matmul, map, gated, biased, add, mul, sub, div, scale, dropout, cast, rms_norm, rms_norm_gated, add_rms_norm, layer_norm, add_layer_norm, l2_norm, softmax, sample, poly2, retention, conv,
            conv_each, embedding, narrow, concat, attention, cross_entropy, cross_entropy_and_gradient, adamw, adamw_placed, norm_squared, sum, sum_rows, sum_squares, rotary
        }
    };
}
