//! What models need around a memory: small traits, one a file, each a forward and its backward.
//!
//! The trait methods are what a backend writes; their arguments are already checked. The functions beside them are
//! what callers use: they check, then call. All arrays of a call lie on one device value; another is
//! [`Error::OtherDevice`](crate::Error::OtherDevice). Unless stated otherwise floats may be 16 or 32 bits wide, and sums
//! run in 32 bits or more. Results have the type of the first argument, gradients the type of what they are gradients of.

mod arithmetic;
mod attention;
mod checks;
mod conv;
mod drop_mask;
mod elementwise;
mod embedding;
mod features;
mod fp8;
mod head_products;
mod layer_norm;
mod layout;
mod loss;
mod matmul;
mod norm;
mod optimizer;
mod projection;
mod quantized;
mod reduce;
mod retention;
mod rotary;
mod sample;
mod softmax;
mod threefry;

pub use arithmetic::{div, div_backward, sub, sub_backward};
pub use attention::{
    Attended, Attention, AttentionBackward, AttentionDims, AttentionInputs, AttentionOptions, AttentionOutputs,
    AttentionPass, Cache, LastRows, Prefix, attention, attention_cache,
};
pub use checks::Operands;
pub use conv::{
    Conv, ConvBackward, ConvDims, ConvInputs, ConvOptions, ConvOutputs, L2Norm, conv, conv_backward, conv_each,
    conv_each_backward,
};
pub use drop_mask::DropMask;
pub use elementwise::{
    BiasedBackward, Broadcast, Combine, Elementwise, GatedBackward, GatedGrads, Map, add, add_backward, biased,
    biased_backward, cast, cast_all, dropout, gated, gated_backward, map, map_backward, mul, mul_backward, scale,
};
pub use embedding::{Embedding, embedding, embedding_backward};
pub use features::{Features, POLY2, poly2, poly2_backward, poly2_width};
pub use fp8::{FP8_ALIGNED, Fp8, Fp8Factor, Fp8Matmul, fp8_matmul};
pub use head_products::{HeadProducts, head_products, head_products_backward};
pub use layer_norm::{
    AddedLayerNorm, LayerNorm, LayerNormBackward, LayerNormInputs, LayerNormed, add_layer_norm,
    add_layer_norm_backward, layer_norm, layer_norm_backward,
};
pub use layout::{Layout, Span, concat, narrow, narrow_backward};
pub use loss::{
    Loss, LossBackward, LossInputs, Losses, LossesAndGradient, cross_entropy, cross_entropy_and_gradient,
    cross_entropy_backward,
};
pub use matmul::{
    EachBackward, Matmul, MatmulDims, MatmulInputs, Transpose, matmul, matmul_backward, matmul_backward_onto,
    matmul_each, matmul_each_backward, starts_together,
};
pub use norm::{
    AddedNorm, GateFunction, GatePlace, Norm, Normed, RmsNormBackward, RmsNormInputs, RmsNormOptions, add_rms_norm,
    add_rms_norm_backward, l2_norm, l2_norm_backward, rms_norm, rms_norm_backward,
};
pub use optimizer::{
    AdamW, AdamWStep, Clip, DeviceStep, Optimizer, PlacedUpdate, Slot, Update, adamw, adamw_all, adamw_placed,
    norm_squared,
};
pub use projection::{Projection, ProjectionEnd, ProjectionInputs, project};
pub use quantized::{QuantizedMatmul, quantized_matmul};
pub use reduce::{Reduce, sum, sum_rows, sum_squares};
pub use retention::{Retention, RetentionBackward, RetentionInputs, retention, retention_backward};
pub use rotary::{Rotary, RotaryDims, advance, rotary, rotary_backward, rotary_from};
pub use sample::{Cut, Draw, LANES, NO_SCORE, Sample, Sampled, TOO_LARGE, UNDEFINED, sample};
pub use softmax::{Softmax, softmax, softmax_backward};
pub use threefry::threefry;

use checks::{check_device, check_dtype, check_filled, check_float, check_like, check_rank, check_shape, check_size};
use norm::{alike, check_epsilon, wide};

/// Gathers traits into one that whatever has all of them has.
macro_rules! gather {
    ($(#[$doc:meta])* $name:ident = $first:ident $(+ $other:ident)*) => {
        $(#[$doc])*
        pub trait $name: $first $(+ $other)* {}
        impl<D: $first $(+ $other)*> $name for D {}
    };
}
gather! {
    /// Every primitive: what a [`Backend`](crate::Backend) has beside the rules. Never implemented by hand.
    Primitives = Attention + Conv + Elementwise + Embedding + Features + Fp8Matmul + HeadProducts + LayerNorm + Layout + Loss + Matmul + Norm + Optimizer
        + Projection + QuantizedMatmul + Reduce + Retention + Rotary + Sample + Softmax
}
