//! Cutting and joining along an axis: copies of runs of elements, of any type.
//!
//! An array is seen as `[outer, length, inner]` around the axis. A run of `count × inner` elements is one copy.

use super::{of_same_type, unsupported};
use crate::{Cpu, device::from_host};
use half::{bf16, f16};
use hecate_core::{
    Checked, Host, Result, Tensor,
    memory::{self, Zeroable},
    primitives::{Layout, Span},
};

impl Layout for Cpu {
    /// `[outer, count, inner]` out of `[outer, length, inner]`.
    /// `x[:, start:start+count]`; core has checked that the range lies inside.
    fn narrow(&self, _: Checked<Self>, span: Span, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let host = of_same_type!("narrow", &**x.buffer(), x => cut(span, x))?;
        from_host(self, [span.outer, span.count, span.inner], x.dtype(), host)
    }

    /// The same range in an array of zeros.
    /// Elements outside of the range had no part in the result.
    fn narrow_backward(&self, _: Checked<Self>, span: Span, dy: &Tensor<Self>) -> Result<Tensor<Self>> {
        let size = span.outer.saturating_mul(span.length).saturating_mul(span.inner);
        let host = of_same_type!("narrow", &**dy.buffer(), dy => paste(span, dy, memory::zeros("narrow", size)?))?;
        from_host(self, [span.outer, span.length, span.inner], dy.dtype(), host)
    }

    /// Parts `[outer, .., inner]` one after another along the axis.
    /// Parts may differ in length along the axis alone, as core has checked.
    fn concat(&self, _: Checked<Self>, outer: usize, inner: usize, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let Some(first) = parts.first() else {
            return Err(unsupported("concat", "there is nothing to join".into()));
        };
        let length = parts.iter().map(|part| part.shape().count()).sum::<usize>() / (outer * inner);
        let span = Span { outer, length, inner, start: 0, count: 0 };
        let host = of_same_type!("concat", &**first.buffer(), values => join(span, values, parts))?;
        from_host(self, [outer, length, inner], first.dtype(), host)
    }
}

/// Type of an element, as a host array is asked for it.
trait Element: Copy + Zeroable {
    /// The elements, if they are of this type.
    fn of(host: &Host) -> Option<&[Self]>;
}

/// Element types by the variant of the host array that holds them.
macro_rules! elements {
    ($($variant:ident($element:ty)),*) => {
        $(impl Element for $element {
            fn of(host: &Host) -> Option<&[Self]> {
                if let Host::$variant(values) = host { Some(values) } else { None }
            }
        })*
    };
}
elements!(F32(f32), Bf16(bf16), F16(f16), U32(u32));

/// The range of `x [outer, length, inner]`.
fn cut<T: Copy>(Span { outer, length, inner, start, count }: Span, x: &[T]) -> Result<Vec<T>> {
    let mut part = memory::with_capacity("narrow", outer * count * inner)?;
    for i in 0..outer {
        part.extend_from_slice(&x[(i * length + start) * inner..][..count * inner]);
    }
    Ok(part)
}

/// `whole [outer, length, inner]` with `part` in the range.
fn paste<T: Copy>(Span { outer, length, inner, start, count }: Span, part: &[T], mut whole: Vec<T>) -> Result<Vec<T>> {
    for i in 0..outer {
        let run = &part[i * count * inner..][..count * inner];
        whole[(i * length + start) * inner..][..count * inner].copy_from_slice(run);
    }
    Ok(whole)
}

/// All parts of the type of `_first`, one after another in a whole of the given span.
fn join<T: Element>(mut span: Span, _first: &[T], parts: &[&Tensor<Cpu>]) -> Result<Vec<T>> {
    let mut whole = memory::zeros("concat", span.outer * span.length * span.inner)?;
    for values in parts.iter().filter_map(|part| T::of(part.buffer())) {
        span.count = values.len() / (span.outer * span.inner);
        whole = paste(span, values, whole)?;
        span.start += span.count;
    }
    Ok(whole)
}
