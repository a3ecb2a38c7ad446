//! Lengths of axes.

use std::{fmt, sync::Arc};

/// Lengths of the axes, outermost first.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Arc<[usize]>);

impl Shape {
    /// The axes.
    pub fn axes(&self) -> &[usize] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements; `usize::MAX` where there are more.
    pub fn count(&self) -> usize {
        product(&self.0)
    }

    /// Length of the innermost axis; 1 for a shape without axes.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// Number of innermost rows: the product of all axes but the last; `usize::MAX` where there are more.
    pub fn rows(&self) -> usize {
        product(&self.0[..self.rank().saturating_sub(1)])
    }
}

/// Product of the lengths of axes. It ends at `usize::MAX`, which no memory holds, instead of wrapping to a number that
/// some memory does.
pub(crate) fn product(axes: &[usize]) -> usize {
    axes.iter().fold(1, |count: usize, &n| count.saturating_mul(n))
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(axes: [usize; N]) -> Self {
        Self(Arc::new(axes))
    }
}

impl From<&[usize]> for Shape {
    fn from(axes: &[usize]) -> Self {
        Self(axes.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(axes: Vec<usize>) -> Self {
        Self(axes.into())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
