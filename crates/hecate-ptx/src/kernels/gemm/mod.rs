//! Products of matrices, `C = A B`, all row after row: `A` is M×K, `B` is K×N, `C` is M×N.

mod naive;
mod quantized;
mod tensor_core;
mod tiled;

pub use naive::GemmNaive;
pub use quantized::QuantizedGemm;
pub use tensor_core::{GemmTensorCore, HalfType};
pub use tiled::GemmTiled;

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

/// Refuses products for which a grid with blocks of `rows` rows has too many blocks, and empty ones.
fn check([m, n, k]: [u32; 3], rows: u32, specification: &'static str) -> Result<(), Error> {
    within(specification, "m", m, 1..=GRID_Y.saturating_mul(rows).min(GRID_X))?;
    within(specification, "n", n, 1..=GRID_X)?;
    within(specification, "k", k, 1..=GRID_X)
}
