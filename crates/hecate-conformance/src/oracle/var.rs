//! Matrices in 64 bits that remember how they came about.
//!
//! dfdx keeps its tape in the tensors and records nothing where one has none, which makes a forgotten trace a wrong
//! gradient without a word. Here every matrix holds the one tape of its equations, so nothing can be left out. Two more
//! traps are closed. Operands of one identity (dfdx panics) are told apart. `slice`, whose backward overwrites instead
//! of adding, is not used: arrays are cut into leaves before they are traced.

use dfdx::{
    shapes::{Axes2, Axis, HasShape},
    tensor::{Cpu, Gradients, Merge, NoneTape, OwnedTape, PutTape, SplitTape, Tape, Tensor, TensorFromVec},
    tensor_ops::{Backward, BroadcastTo, PermuteTo, ReshapeTo, SumTo, TryMatMul},
};
use std::{cell::RefCell, fmt, rc::Rc};

/// The tape of one set of equations, shared by all matrices in it.
/// Operations in the order in which they were made; backward takes them from the last to the first.
#[derive(Clone, Default)]
struct Record(Rc<RefCell<OwnedTape<f64, Cpu>>>);

impl Merge<NoneTape> for Record {
    fn merge(self, _: NoneTape) -> Self {
        self
    }
}

impl Merge<Self> for Record {
    fn merge(self, other: Self) -> Self {
        // Gradients of the one would never reach the leaves of the other.
        assert!(Rc::ptr_eq(&self.0, &other.0), "matrices of different equations");
        self
    }
}

impl Tape<f64, Cpu> for Record {
    const OWNS_TAPE: bool = true;

    fn add_backward_op<F>(&mut self, operation: F)
    where
        F: 'static + FnOnce(&mut Gradients<f64, Cpu>) -> Result<(), dfdx::tensor::CpuError>,
    {
        self.0.borrow_mut().add_backward_op(operation);
    }
}

/// Every matrix has rows and columns known at run time: rows of tokens `[1,K]`, memories `[K,V]`, scalars `[1,1]`.
type Matrix = Tensor<(usize, usize), f64, Cpu, Record>;

/// Where leaves are made and gradients are taken.
#[derive(Default)]
pub(super) struct Equations {
    /// dfdx's own memory; nothing here runs on a backend under test.
    device: Cpu,
    /// Shared with every matrix that comes of these equations.
    record: Record,
}

impl Equations {
    /// A matrix that gradients can be asked of.
    pub(super) fn leaf(&self, rows: usize, columns: usize, values: &[f64]) -> Var {
        let matrix = self.device.tensor_from_vec(values.to_vec(), (rows, columns));
        Var(Rc::new(matrix.put_tape(self.record.clone())))
    }

    /// Gradients of a one-by-one matrix by each of `leaves`; the equations are spent.
    ///
    /// Row-major lists, one a slot, with the leaves of a slot one after another. A leaf that the loss does not depend
    /// on
    /// has gradient 0.
    pub(super) fn gradients(self, loss: &Var, leaves: &[Vec<Var>]) -> Vec<Vec<f64>> {
        let (loss, record) = loss.matrix().reshape_like(&()).split_tape();
        let mut gradients = loss.put_tape(record.0.take()).backward();
        let mut of = |leaf: &Var| {
            // dfdx cannot allocate a gradient without elements.
            if leaf.is_empty() {
                return Vec::new();
            }
            // Leaves that no operation touched have no gradient yet; this gives them zeros.
            gradients.try_alloc_for(&*leaf.0).expect("memory for a gradient");
            gradients.get(&*leaf.0).as_vec()
        };
        leaves.iter().map(|slot| slot.iter().flat_map(&mut of).collect()).collect()
    }
}

/// A matrix in 64 bits. Operators act element by element; a one-by-one matrix, a single row or a single column serves
/// all elements, rows or columns of the other operand.
#[derive(Clone)]
// Shared by reference: the same matrix stands in many equations, and a copy would be another identity.
pub struct Var(Rc<Matrix>);

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Var({:?})", self.shape())
    }
}

impl Var {
    /// Number of rows and of columns.
    pub fn shape(&self) -> (usize, usize) {
        *self.0.shape()
    }

    /// The elements, row-major.
    pub fn values(&self) -> Vec<f64> {
        if self.is_empty() { Vec::new() } else { self.0.as_vec() }
    }

    /// Whether it has no elements, which dfdx can neither read nor differentiate.
    fn is_empty(&self) -> bool {
        matches!(self.shape(), (0, _) | (_, 0))
    }

    /// The only element.
    ///
    /// Taken for choices that the equations make by value, which count as constant.
    pub fn value(&self) -> f64 {
        self.values()[0]
    }

    /// Numbers that nothing depends on, among the same equations.
    ///
    /// They hold the tape all the same, so that an operation on constants alone is recorded too.
    pub fn constant(&self, rows: usize, columns: usize, values: Vec<f64>) -> Self {
        let (matrix, record) = self.matrix().split_tape();
        let constant = matrix.device().tensor_from_vec(values, (rows, columns));
        Self(Rc::new(constant.put_tape(record)))
    }

    /// Product of matrices.
    ///
    /// `[m,k]` by `[k,n]` is `[m,n]`.
    pub fn dot(&self, other: &Self) -> Self {
        Self::new(self.matrix().matmul(other.apart(self).matrix()))
    }

    /// The transpose.
    pub fn t(&self) -> Self {
        Self::new(self.copy().permute::<_, Axes2<1, 0>>())
    }

    /// The same elements, row after row, as another number of rows and columns.
    pub fn reshape(&self, rows: usize, columns: usize) -> Self {
        Self::new(self.copy().reshape_like(&(rows, columns)))
    }

    /// `eˣ`.
    pub fn exp(&self) -> Self {
        Self::new(self.matrix().exp())
    }

    /// `log x`.
    pub fn ln(&self) -> Self {
        Self::new(self.matrix().ln())
    }

    /// `√x`.
    pub fn sqrt(&self) -> Self {
        Self::new(self.matrix().sqrt())
    }

    /// `x²`.
    pub fn square(&self) -> Self {
        Self::new(self.matrix().square())
    }

    /// `tanh x`.
    pub fn tanh(&self) -> Self {
        Self::new(self.matrix().tanh())
    }

    /// `factor x`.
    pub fn scale(&self, factor: f64) -> Self {
        Self::new(self.matrix() * factor)
    }

    /// `x + term`.
    pub fn shift(&self, term: f64) -> Self {
        Self::new(self.matrix() + term)
    }

    /// `1 / x`.
    pub fn recip(&self) -> Self {
        Self::new(self.matrix().recip())
    }

    /// Sum of all elements, one by one.
    pub fn sum(&self) -> Self {
        let sum: Tensor<(), f64, Cpu, Record> = self.matrix().sum();
        Self::new(sum.reshape_like(&(1, 1)))
    }

    /// Sum of as many matrices as there are, of one shape.
    ///
    /// # Panics
    /// If there is none.
    pub fn total(terms: impl IntoIterator<Item = Self>) -> Self {
        terms.into_iter().reduce(|a, b| &a + &b).expect("at least one term")
    }

    fn new(matrix: Matrix) -> Self {
        Self(Rc::new(matrix))
    }

    fn matrix(&self) -> Matrix {
        (*self.0).clone()
    }

    /// The same numbers under another identity.
    fn copy(&self) -> Matrix {
        self.matrix() + 0.0
    }

    /// This operand under another identity where it is the other one: dfdx panics where both are one.
    fn apart(&self, other: &Self) -> Self {
        if Rc::ptr_eq(&self.0, &other.0) { Self::new(self.copy()) } else { self.clone() }
    }

    /// Repeated to fill `rows × columns`.
    fn expand(&self, (rows, columns): (usize, usize)) -> Matrix {
        match self.shape() {
            shape if shape == (rows, columns) => self.matrix(),
            (1, 1) => self.copy().reshape_like(&()).broadcast_like::<_, Axes2<0, 1>>(&(rows, columns)),
            (1, _) => self.copy().reshape_like(&(columns,)).broadcast_like::<_, Axis<0>>(&(rows, columns)),
            _ => self.copy().reshape_like(&(rows,)).broadcast_like::<_, Axis<1>>(&(rows, columns)),
        }
    }

    /// Both operands in the shape of the result.
    fn pair(&self, other: &Self) -> (Matrix, Matrix) {
        let ((a, b), (c, d)) = (self.shape(), other.shape());
        // An axis of length 1 fills the other operand's; two that differ otherwise fail in `expand`.
        let shape = (a.max(c), b.max(d));
        (self.expand(shape), other.apart(self).expand(shape))
    }
}

// Owned and borrowed operands alike, so that equations read as they are printed.
macro_rules! operator {
    ($trait:ident $method:ident $symbol:tt) => {
        impl std::ops::$trait for &Var {
            type Output = Var;
            fn $method(self, other: &Var) -> Var {
                let (a, b) = self.pair(other);
                Var::new(a $symbol b)
            }
        }
        impl std::ops::$trait<Var> for &Var {
            type Output = Var;
            fn $method(self, other: Var) -> Var {
                self $symbol &other
            }
        }
        impl std::ops::$trait<&Var> for Var {
            type Output = Var;
            fn $method(self, other: &Var) -> Var {
                &self $symbol other
            }
        }
        impl std::ops::$trait for Var {
            type Output = Var;
            fn $method(self, other: Var) -> Var {
                &self $symbol &other
            }
        }
    };
}
operator!(Add add +);
operator!(Sub sub -);
operator!(Mul mul *);
