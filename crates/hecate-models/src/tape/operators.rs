//! The operators `+ − * /` between values of a tape, and between values and numbers.

use super::{Var, arithmetic, record::Ledger};
use crate::{Error, Result};
use hecate_core::Backend;
use sealed::Term;
use std::{
    ops::{Add, Div, Mul, Neg, Sub},
    sync::Arc,
};

/// What can stand on the right of `+ − * /` behind a [`Var`]: a value, the result of another operator, or a number.
///
/// Shapes that do not fit are errors, so an operator gives a `Result`. It goes into the next operator as it is, beside a
/// value; beside a number, or another result, one of the two needs a `?` first. One operand may serve all rows of the
/// other, as in [`Tape::add`](crate::Tape::add).
///
/// ```
/// use hecate_core::Tensor;
/// use hecate_cpu::Cpu;
/// use hecate_models::{Parameters, Tape};
///
/// # fn main() -> hecate_models::Result<()> {
/// let (cpu, mut parameters) = (Cpu::new(), Parameters::new());
/// let place = parameters.add("x", Tensor::from_f32(&cpu, [2], vec![1.0, 3.0])?, false);
/// let tape = Tape::recording(&parameters);
/// let x = tape.parameter(place)?;
/// // x / (1 + x²)
/// let y = (&x / (1.0 + (&x * &x)?))?;
/// assert_eq!(y.value().to_f32()?, [0.5, 0.3]);
/// let loss = tape.sum(&y)?;
/// let gradients = tape.backward(&loss)?;
/// // (1 − x²) / (1 + x²)²
/// assert_eq!(gradients.get(place).expect("a gradient").to_f32()?[0], 0.0);
/// # Ok(())
/// # }
/// ```
pub trait Operand<B: Backend>: sealed::Sealed<B> {}
impl<B: Backend, O: sealed::Sealed<B>> Operand<B> for O {}

/// Keeps the list of operands closed.
mod sealed {
    use super::{Result, Var};
    use hecate_core::Backend;

    /// An operand, looked at.
    #[derive(Debug)]
    pub enum Term<B: Backend> {
        /// A value.
        Value(Var<B>),
        /// A number at every place.
        Number(f32),
    }

    /// What has a [`Term`].
    pub trait Sealed<B: Backend> {
        /// It, or the error that it was.
        fn term(self) -> Result<Term<B>>;
    }
}

impl<B: Backend> sealed::Sealed<B> for Var<B> {
    fn term(self) -> Result<Term<B>> {
        Ok(Term::Value(self))
    }
}

impl<B: Backend> sealed::Sealed<B> for &Var<B> {
    fn term(self) -> Result<Term<B>> {
        Ok(Term::Value(self.clone()))
    }
}

impl<B: Backend> sealed::Sealed<B> for Result<Var<B>> {
    fn term(self) -> Result<Term<B>> {
        self.map(Term::Value)
    }
}

impl<B: Backend> sealed::Sealed<B> for f32 {
    fn term(self) -> Result<Term<B>> {
        Ok(Term::Number(self))
    }
}

/// An operation of two values, as [`arithmetic`] has them.
type Binary<B> = fn(Option<&Arc<Ledger<B>>>, &Var<B>, &Var<B>) -> Result<Var<B>>;

/// Applies it, on the tape of the first operand that is of one.
fn apply<B: Backend>(operation: Binary<B>, a: &Var<B>, b: &Var<B>) -> Result<Var<B>> {
    let ledger = a.ledger.upgrade().or_else(|| b.ledger.upgrade());
    operation(ledger.as_ref(), a, b)
}

/// `factor x`, on the tape of `x`.
fn scale<B: Backend>(factor: f32, x: &Var<B>) -> Result<Var<B>> {
    arithmetic::scale(x.ledger.upgrade().as_ref(), factor, x)
}

/// With a value or a number on the right.
fn with_term<B: Backend>(operation: Binary<B>, a: &Var<B>, term: Term<B>) -> Result<Var<B>> {
    match term {
        Term::Value(b) => apply(operation, a, &b),
        Term::Number(number) => apply(operation, a, &arithmetic::number_for(number, a)?),
    }
}

/// One operator for owned and borrowed values, for results of operators, and for numbers on the left.
macro_rules! operator {
    ($trait:ident $method:ident, |$a:ident, $term:ident| $result:expr, |$number:ident, $x:ident| $of_number:expr) => {
        impl<B: Backend, O: Operand<B>> $trait<O> for &Var<B> {
            type Output = Result<Var<B>>;
            fn $method(self, other: O) -> Result<Var<B>> {
                let ($a, $term) = (self, other.term()?);
                $result
            }
        }
        impl<B: Backend, O: Operand<B>> $trait<O> for Var<B> {
            type Output = Result<Var<B>>;
            fn $method(self, other: O) -> Result<Var<B>> {
                (&self).$method(other)
            }
        }
        impl<B: Backend> $trait<Var<B>> for Result<Var<B>, Error> {
            type Output = Result<Var<B>>;
            fn $method(self, other: Var<B>) -> Result<Var<B>> {
                self?.$method(other)
            }
        }
        impl<B: Backend> $trait<&Var<B>> for Result<Var<B>, Error> {
            type Output = Result<Var<B>>;
            fn $method(self, other: &Var<B>) -> Result<Var<B>> {
                self?.$method(other)
            }
        }
        impl<B: Backend> $trait<&Var<B>> for f32 {
            type Output = Result<Var<B>>;
            fn $method(self, other: &Var<B>) -> Result<Var<B>> {
                let ($number, $x) = (self, other);
                $of_number
            }
        }
        impl<B: Backend> $trait<Var<B>> for f32 {
            type Output = Result<Var<B>>;
            fn $method(self, other: Var<B>) -> Result<Var<B>> {
                self.$method(&other)
            }
        }
    };
}

operator!(Add add, |a, term| with_term(arithmetic::add, a, term), |number, x| x.add(number));
operator!(Sub sub, |a, term| with_term(arithmetic::sub, a, term), |number, x| arithmetic::number_for(number, x)?.sub(x));
operator!(
    Mul mul,
    |a, term| match term {
        Term::Number(factor) => scale(factor, a),
        value => with_term(arithmetic::mul, a, value),
    },
    |number, x| scale(number, x)
);
operator!(
    Div div,
    |a, term| match term {
        Term::Number(number) => scale(number.recip(), a),
        value => with_term(arithmetic::div, a, value),
    },
    |number, x| arithmetic::number_for(number, x)?.div(x)
);

impl<B: Backend> Neg for &Var<B> {
    type Output = Result<Var<B>>;

    fn neg(self) -> Result<Var<B>> {
        scale(-1.0, self)
    }
}

impl<B: Backend> Neg for Var<B> {
    type Output = Result<Var<B>>;

    fn neg(self) -> Result<Var<B>> {
        -&self
    }
}
