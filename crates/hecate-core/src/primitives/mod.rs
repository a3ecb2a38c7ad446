//! What models need around a memory: small traits, one a file, each a forward and its backward.
//!
//! The trait methods are what a backend writes; their arguments are already checked. The functions beside them are
//! what callers use: they check, then call. All arrays of a call lie on one device value; another is
//! [`Error::OtherDevice`]. Unless stated otherwise floats may be 16 or 32 bits wide, results have the type of the first
//! argument, sums run in 32 bits or more, and gradients have the type of what they are gradients of.

mod attention;
mod conv;
mod elementwise;
mod embedding;
mod features;
mod layout;
mod loss;
mod matmul;
mod norm;
mod optimizer;
mod reduce;
mod retention;
mod rotary;

pub use attention::{
    Attended, Attention, AttentionBackward, AttentionDims, AttentionInputs, AttentionOptions, AttentionOutputs,
    AttentionPass, Cache, LastRows, Prefix, attention, attention_cache,
};
pub use conv::{Conv, ConvBackward, ConvDims, ConvInputs, ConvOptions, ConvOutputs, L2Norm, conv, conv_backward};
pub use elementwise::{
    Broadcast, Combine, Elementwise, GatedBackward, GatedGrads, Map, add, add_backward, cast, cast_all, gated,
    gated_backward, map, map_backward, mul, mul_backward, scale,
};
pub use embedding::{Embedding, embedding, embedding_backward};
pub use features::{Features, POLY2, poly2, poly2_backward, poly2_width};
pub use layout::{Layout, Span, concat, narrow, narrow_backward};
pub use loss::{Loss, LossBackward, LossInputs, Losses, cross_entropy, cross_entropy_backward};
pub use matmul::{Matmul, MatmulDims, MatmulInputs, Transpose, matmul, matmul_backward, matmul_backward_onto};
pub use norm::{Norm, Normed, RmsNormBackward, RmsNormInputs, l2_norm, l2_norm_backward, rms_norm, rms_norm_backward};
pub use optimizer::{AdamW, AdamWStep, Clip, Optimizer, Slot, Update, adamw, adamw_all, norm_squared};
pub use reduce::{Reduce, sum, sum_rows, sum_squares};
pub use retention::{Retention, RetentionBackward, RetentionInputs, retention, retention_backward};
pub use rotary::{Rotary, RotaryDims, rotary, rotary_backward};

use crate::{DType, Device, Error, Result, Shape, Tensor};
use norm::check_epsilon;

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
    Primitives = Attention + Conv + Elementwise + Embedding + Features + Layout + Loss + Matmul + Norm + Optimizer + Reduce
        + Retention + Rotary
}

/// The two arrays of a sum or a product, or what belongs to each of them.
#[derive(Clone, Copy, Debug)]
pub struct Operands<T> {
    /// Of the first.
    pub a: T,
    /// Of the second.
    pub b: T,
}

/// Refuses arrays that do not lie where `first` does.
fn check_device<D: Device>(what: &'static str, first: &Tensor<D>, others: &[(&'static str, &Tensor<D>)]) -> Result<()> {
    others.iter().try_for_each(|(slot, x)| x.check_device(first.device(), what, slot))
}

/// Refuses a tensor of another shape.
fn check_shape<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>, expected: &Shape) -> Result<()> {
    if x.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape { what, slot, expected: expected.clone(), found: x.shape().clone() })
}

/// Refuses a tensor without elements.
fn check_filled<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>) -> Result<()> {
    if x.shape().count() > 0 {
        return Ok(());
    }
    Err(Error::Empty { what, slot, found: x.shape().clone() })
}

/// Refuses integers and empty tensors.
fn check_float<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>) -> Result<()> {
    check_filled(what, slot, x)?;
    if x.dtype().is_float() {
        return Ok(());
    }
    Err(Error::DType { what, slot, expected: "a float type", found: x.dtype() })
}

/// Refuses a tensor of another element type.
fn check_dtype<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>, expected: DType) -> Result<()> {
    if x.dtype() == expected {
        return Ok(());
    }
    let expected = match expected {
        DType::F32 => "f32",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
        DType::U32 => "u32",
    };
    Err(Error::DType { what, slot, expected, found: x.dtype() })
}

/// Refuses a tensor that differs from `like` in device, shape or element type.
fn check_like<D: Device>(what: &'static str, slot: &'static str, x: &Tensor<D>, like: &Tensor<D>) -> Result<()> {
    x.check_device(like.device(), what, slot)?;
    check_shape(what, slot, x, like.shape())?;
    check_dtype(what, slot, x, like.dtype())
}

/// Refuses a tensor with another number of axes.
fn check_rank<D: Device>(
    what: &'static str,
    slot: &'static str,
    x: &Tensor<D>,
    rank: usize,
    expected: &'static str,
) -> Result<()> {
    if x.shape().rank() == rank {
        return Ok(());
    }
    Err(Error::Rank { what, slot, expected, found: x.shape().clone() })
}
