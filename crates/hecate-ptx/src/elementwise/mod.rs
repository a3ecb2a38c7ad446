//! Operations on arrays, element by element: one template for every operation and type.
//!
//! Sums, differences, products, quotients, square roots and reciprocals of real numbers are rounded to nearest, so they have the
//! bits that a CPU gives. Complex numbers are two neighbours, the real part first; their operations are sequences of such
//! operations, written at each one, with no fused steps: a CPU that makes the same steps gets the same bits.

mod complex;
mod exponential;

use crate::{
    error::Error,
    kernels::Launch,
    types::{Float, Reg, Uniform},
    writer::{Axis, Converged, Diverged, Element, Flow, Global, Module, Pointer, Scope, kernel},
};

/// Threads of a block.
const THREADS: u32 = 256;

/// What is done with each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `x + y`.
    Add,
    /// `x − y`.
    Sub,
    /// `x y`; of complex numbers `(ac − bd) + (ad + bc) i`.
    Mul,
    /// `x / y`; of complex numbers by Smith's method, which scales by the larger part of `y`.
    Div,
    /// The smaller of two real numbers; of a number and NaN the number.
    Min,
    /// The larger of two real numbers; of a number and NaN the number.
    Max,
    /// `−x`.
    Neg,
    /// `|x|`; of complex numbers a real number, scaled so that no square overflows.
    Abs,
    /// The square root of a real number.
    Sqrt,
    /// `1 / x` of a real number.
    Reciprocal,
    /// `eˣ` of a real number, within two units of the last place: a polynomial, since PTX has no exact instruction.
    Exp,
    /// The complex conjugate.
    Conjugate,
}

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// A complex number of two `f32`.
    C64,
    /// A complex number of two `f64`.
    C128,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 12] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::Min,
        Self::Max,
        Self::Neg,
        Self::Abs,
        Self::Sqrt,
        Self::Reciprocal,
        Self::Exp,
        Self::Conjugate,
    ];

    /// Its name, with which kernels' names begin.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Whether it has a second operand.
    #[must_use]
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Min | Self::Max)
    }

    /// Whether there is such an operation on elements of this type.
    #[must_use]
    pub fn is_defined(self, scalar: Scalar) -> bool {
        match self {
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Neg | Self::Abs => true,
            Self::Min | Self::Max | Self::Sqrt | Self::Reciprocal | Self::Exp => !scalar.is_complex(),
            Self::Conjugate => scalar.is_complex(),
        }
    }

    /// Its name and its formula.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Add => ["add", "x + y"],
            Self::Sub => ["sub", "x - y"],
            Self::Mul => ["mul", "x y"],
            Self::Div => ["div", "x / y"],
            Self::Min => ["min", "min(x, y)"],
            Self::Max => ["max", "max(x, y)"],
            Self::Neg => ["neg", "-x"],
            Self::Abs => ["abs", "|x|"],
            Self::Sqrt => ["sqrt", "sqrt(x)"],
            Self::Reciprocal => ["reciprocal", "1 / x"],
            Self::Exp => ["exp", "exp(x)"],
            Self::Conjugate => ["conjugate", "conjugate(x)"],
        }
    }
}

impl Scalar {
    /// All types.
    pub const ALL: [Self; 4] = [Self::F32, Self::F64, Self::C64, Self::C128];

    /// Its name, with which kernels' names end.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::C64 => "c64",
            Self::C128 => "c128",
        }
    }

    fn is_complex(self) -> bool {
        matches!(self, Self::C64 | Self::C128)
    }
}

/// A kernel that does one operation on all elements of arrays.
///
/// Parameters: `x`, for binary operations `y`, `out`, and `n`, the number of elements (a `u64`). Any number of blocks is right.
///
/// ```
/// use hecate_ptx::{Elementwise, Operation, Scalar};
///
/// let kernel = Elementwise::new(Operation::Div, Scalar::C128)?;
/// assert_eq!(kernel.name(), "div_c128");
/// assert!(kernel.write()?.text().contains(".entry div_c128("));
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elementwise {
    operation: Operation,
    scalar: Scalar,
}

impl Elementwise {
    /// The kernel of an operation on a type.
    ///
    /// # Errors
    /// If there is no such operation on the type.
    ///
    /// ```
    /// use hecate_ptx::{Elementwise, Operation, Scalar};
    ///
    /// assert!(Elementwise::new(Operation::Max, Scalar::F64).is_ok());
    /// assert!(Elementwise::new(Operation::Max, Scalar::C64).is_err()); // complex numbers have no order
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(operation: Operation, scalar: Scalar) -> Result<Self, Error> {
        if !operation.is_defined(scalar) {
            return Err(Error::Undefined { operation: operation.name(), scalar: scalar.name() });
        }
        Ok(Self { operation, scalar })
    }

    /// All kernels that there are.
    pub fn all() -> impl Iterator<Item = Self> {
        let pairs = Operation::ALL.into_iter().flat_map(|operation| Scalar::ALL.map(|scalar| (operation, scalar)));
        pairs.filter_map(|(operation, scalar)| Self::new(operation, scalar).ok())
    }

    /// Name of the kernel: the operation's and the type's.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}_{}", self.operation.name(), self.scalar.name())
    }

    /// A launch for `n` elements: a thread for each, up to the largest grid.
    ///
    /// ```
    /// use hecate_ptx::{Elementwise, Operation, Scalar};
    ///
    /// let add = Elementwise::new(Operation::Add, Scalar::F32)?;
    /// assert_eq!(add.launch(1000).grid, [4, 1, 1]);
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    #[must_use]
    pub fn launch(&self, n: u64) -> Launch {
        let blocks = n.div_ceil(THREADS.into()).clamp(1, i32::MAX as u64);
        Launch { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1] }
    }

    /// Writes the kernel.
    ///
    /// # Errors
    /// None for a kernel that was made: the result is the writer's own.
    pub fn write(&self) -> Result<Module, Error> {
        kernel(&self.name(), [THREADS, 1, 1], |k| {
            let [_, formula] = self.operation.names();
            let scalar = self.scalar.name();
            k.comment(&format!(
                "out = {formula} for n elements of {scalar}; a thread takes one, and every grid of them after it"
            ));
            match self.scalar {
                Scalar::F32 => Arrays::<f32>::read(k, self.operation).map(k, real),
                Scalar::F64 => Arrays::<f64>::read(k, self.operation).map(k, real),
                Scalar::C64 => Arrays::<f32>::read(k, self.operation).map(k, complex::element),
                Scalar::C128 => Arrays::<f64>::read(k, self.operation).map(k, complex::element),
            }
        })
    }
}

/// `f32` and `f64`, as elements, as registers and as constants.
trait Real: Float + Element<Loaded = Self> + From<f32> + exponential::Exp {}
impl Real for f32 {}
impl Real for f64 {}

/// A kernel's arguments: arrays of real numbers or of parts of complex ones, and the number of elements.
#[derive(Clone, Copy)]
struct Arrays<T> {
    operation: Operation,
    x: Pointer<T, Global>,
    /// The second operand; `x` again where there is none.
    y: Pointer<T, Global>,
    out: Pointer<T, Global>,
    n: Uniform<u64>,
}

impl<T: Real> Arrays<T> {
    fn read(k: &mut Scope<'_, Converged>, operation: Operation) -> Self {
        let x = k.pointer("x");
        let y = if operation.is_binary() { k.pointer("y") } else { x };
        Self { operation, x, y, out: k.pointer("out"), n: k.parameter("n") }
    }

    /// Does `element` with the index of each element.
    fn map(self, k: &mut Scope<'_, Converged>, element: impl FnOnce(&mut Scope<'_, Diverged>, Self, Reg<u64>)) {
        let (block, blocks) = (k.block_index(Axis::X), k.grid_size(Axis::X));
        let thread = k.thread_index(Axis::X);
        let (before, within) = (k.mul_wide(block, THREADS), k.to_u64(thread));
        let (first, stride) = (k.add(before, within), k.mul_wide(blocks, THREADS));
        k.for_each(first, self.n, stride, |k, i| element(k, self, i));
    }
}

/// One real element.
fn real<F: Flow, T: Real>(k: &mut Scope<'_, F>, arrays: Arrays<T>, i: Reg<u64>) {
    let mut load = |array| {
        let address = k.at_wide(array, i);
        k.load(address)
    };
    let x = load(arrays.x);
    let y = if arrays.operation.is_binary() { load(arrays.y) } else { x };
    let result = match arrays.operation {
        Operation::Add => k.add(x, y),
        Operation::Sub => k.sub(x, y),
        Operation::Mul => k.mul(x, y),
        Operation::Div => k.div(x, y),
        Operation::Min => k.min(x, y),
        Operation::Max => k.max(x, y),
        Operation::Neg => k.neg(x),
        Operation::Abs => k.abs(x),
        Operation::Sqrt => k.sqrt(x),
        Operation::Reciprocal => k.reciprocal(x),
        Operation::Exp => exponential::exp(k, x),
        Operation::Conjugate => x,
    };
    let to = k.at_wide(arrays.out, i);
    k.store(to, result);
}
