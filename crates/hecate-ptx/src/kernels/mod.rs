//! Kernels by specification: sizes in, text out.

mod attention;
mod gemm;
mod norm;
mod reduce;
mod softmax;

pub use attention::Attention;
pub use gemm::{GemmNaive, GemmTensorCore, GemmTiled, HalfType, QuantizedGemm};
pub use norm::{LayerNorm, Norm};
pub use softmax::Softmax;

use crate::{
    error::Error,
    types::{Reg, Value},
    writer::{Element, Global, Module, Pointer, Scope},
};
use std::ops::RangeInclusive;

/// Most blocks of a grid along x; along y and z there are at most [`GRID_Y`].
const GRID_X: u32 = i32::MAX as u32;
const GRID_Y: u32 = u16::MAX as u32;

/// How many blocks and threads a launch has, along x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

macro_rules! specifications {
    ($($(#[$doc:meta])* $name:ident),*) => {
        /// A kernel that can be written: a specification has sizes that were checked when it was made.
        ///
        /// ```
        /// use hecate_ptx::{Softmax, Specification};
        ///
        /// let softmax = Specification::from(Softmax::new(1024, 4096)?);
        /// let module = softmax.write()?;
        /// assert_eq!(module.name(), softmax.name());
        /// assert_eq!(softmax.launch().grid, [1024, 1, 1]);
        /// # Ok::<(), hecate_ptx::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Specification {
            $($(#[$doc])* $name($name),)*
        }

        impl Specification {
            /// Name of the kernel in its text.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(specification) => specification.name(),)* }
            }

            /// Writes the kernel.
            ///
            /// # Errors
            /// None for a specification that was made: the result is the writer's own.
            pub fn write(&self) -> Result<Module, Error> {
                match self { $(Self::$name(specification) => specification.write(),)* }
            }

            /// The launch that computes all of it.
            #[must_use]
            pub fn launch(&self) -> Launch {
                match self { $(Self::$name(specification) => specification.launch(),)* }
            }
        }

        $(impl From<$name> for Specification {
            fn from(specification: $name) -> Self {
                Self::$name(specification)
            }
        })*
    };
}
specifications!(
    /// A matrix product in f32, one element a thread.
    GemmNaive,
    /// A matrix product in f32 by tiles in shared memory and registers.
    GemmTiled,
    /// A matrix product of 16-bit numbers by tensor cores.
    GemmTensorCore,
    /// The softmax of rows.
    Softmax,
    /// The layer norm or the RMS norm of rows.
    LayerNorm,
    /// Softmax attention.
    Attention,
    /// A product with a matrix of 4-bit weights.
    QuantizedGemm
);

/// Refuses a size outside of its range.
fn within(
    specification: &'static str,
    size: &'static str,
    found: u32,
    range: RangeInclusive<u32>,
) -> Result<(), Error> {
    if range.contains(&found) {
        return Ok(());
    }
    let expected = format!("{} to {}", range.start(), range.end());
    Err(Error::Size { specification, size, found: found.to_string(), expected })
}

/// Element `index` of an array in global memory.
fn load_at<F, E: Element>(
    k: &mut Scope<'_, F>,
    array: Pointer<E, Global>,
    index: impl Value<Type = u32>,
) -> Reg<E::Loaded> {
    let address = k.at(array, index);
    k.load(address)
}
