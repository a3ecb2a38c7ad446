//! Products of matrices, `C = A B`, all row after row: `A` is M×K, `B` is K×N, `C` is M×N.

mod naive;

pub use naive::GemmNaive;

use super::{GRID_X, GRID_Y, within};
use crate::{
    error::Error,
    types::Uniform,
    writer::{Converged, Element, Global, Pointer, Scope},
};

/// What a kernel of matrix products is given: the arrays and their sizes.
struct Arguments<A, B, C> {
    a: Pointer<A, Global>,
    b: Pointer<B, Global>,
    c: Pointer<C, Global>,
    m: Uniform<u32>,
    n: Uniform<u32>,
    depth: Uniform<u32>,
}

impl<A: Element, B: Element, C: Element> Arguments<A, B, C> {
    fn read(k: &mut Scope<'_, Converged>) -> Self {
        Self {
            a: k.pointer("A"),
            b: k.pointer("B"),
            c: k.pointer("C"),
            m: k.parameter("M"),
            n: k.parameter("N"),
            depth: k.parameter("K"),
        }
    }
}

/// Refuses products for which a grid with blocks of `rows`×`columns` elements has too many blocks, and empty ones.
fn check([m, n, k]: [u32; 3], [rows, columns]: [u32; 2], specification: &'static str) -> Result<(), Error> {
    within(specification, "m", m, 1..=GRID_Y.saturating_mul(rows).min(GRID_X))?;
    within(specification, "n", n, 1..=GRID_X.min(GRID_X.saturating_mul(columns)))?;
    within(specification, "k", k, 1..=GRID_X)
}
