//! How a tensor prints: what it is, and its values where they are few.

use crate::{Device, Host, Tensor};
use std::fmt::{self, Debug, Formatter};

/// Most elements that printing copies to the host, since it waits for all work before.
const MOST: usize = 1000;
/// Axes of arrays whose values are shown.
const AXES: usize = 16;
/// Indices shown at either end of a longer axis.
const EDGE: usize = 3;

impl<D: Device> Debug for Tensor<D> {
    /// `Tensor(f32 [2, 2] on cpu [[1.0, 2.0], [3.0, 4.0]])`; arrays of over 1,000 elements without their values. Asking for
    /// digits, as `{:.3?}` does, asks for those of every value.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {}", self.dtype(), self.shape(), D::NAME)?;
        let axes = self.shape().axes();
        if self.shape().count() <= MOST && axes.len() <= AXES {
            f.write_str(" ")?;
            match self.download() {
                Ok(Host::U32(ids)) => values(f, axes, &ids)?,
                Ok(floats) => values(f, axes, &floats.into_f32())?,
                Err(error) => write!(f, "unreadable: {error}")?,
            }
        }
        f.write_str(")")
    }
}

/// Row-major values, nested as their axes are; an ellipsis stands for what is between the ends of an axis.
fn values<T: Debug>(f: &mut Formatter<'_>, axes: &[usize], row: &[T]) -> fmt::Result {
    let [length, inner @ ..] = axes else { return row.first().map_or(Ok(()), |x| x.fmt(f)) };
    let width = row.len() / (*length).max(1);
    let (head, tail) = if *length > 2 * EDGE { (EDGE, length - EDGE) } else { (*length, *length) };
    f.write_str("[")?;
    for i in (0..head).chain(tail..*length) {
        f.write_str(match i {
            0 => "",
            _ if i == tail => ", …, ",
            _ => ", ",
        })?;
        values(f, inner, &row[i * width..][..width])?;
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nested<'a, T>(&'a [usize], &'a [T]);

    impl<T: Debug> Debug for Nested<'_, T> {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            values(f, self.0, self.1)
        }
    }

    #[test]
    fn values_are_nested_as_axes_are() {
        let shown = |axes: &[usize], values: &[f32]| format!("{:?}", Nested(axes, values));
        assert_eq!(shown(&[], &[0.5]), "0.5");
        assert_eq!(shown(&[2, 2], &[1.0, -0.0, f32::NAN, f32::INFINITY]), "[[1.0, -0.0], [NaN, inf]]");
        assert_eq!(shown(&[2, 0], &[]), "[[], []]");
        assert_eq!(format!("{:.2?}", Nested(&[2], &[0.125f32, 3.0])), "[0.12, 3.00]");
    }

    #[test]
    fn long_axes_show_their_ends() {
        let ids: Vec<u32> = (0..14).collect();
        assert_eq!(format!("{:?}", Nested(&[14], &ids)), "[0, 1, 2, …, 11, 12, 13]");
        assert_eq!(format!("{:?}", Nested(&[2, 7], &ids)), "[[0, 1, 2, …, 4, 5, 6], [7, 8, 9, …, 11, 12, 13]]");
        assert_eq!(format!("{:?}", Nested(&[6], &ids[..6])), "[0, 1, 2, 3, 4, 5]");
    }

    #[test]
    fn lying_shapes_print_too() {
        assert_eq!(format!("{:?}", Nested(&[usize::MAX, 0], &[0u32; 0])), "[[], [], [], …, [], [], []]");
    }
}
