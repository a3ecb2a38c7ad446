//! Instructions that compute: each returns a new register with its result.

use super::{Converged, Scope};
use crate::types::{
    Bf16, Class, F16, Float, Half, Integer, Number, Packed, Pred, Reg, Type, Uniform, UniformPred, UniformValue, Value,
};

/// How two numbers are compared. With NaN all are false but [`Comparison::Unordered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `a < b`.
    Less,
    /// `a ≤ b`.
    LessOrEqual,
    /// `a > b`.
    Greater,
    /// `a ≥ b`.
    GreaterOrEqual,
    /// `a = b`.
    Equal,
    /// `a ≠ b`, for numbers that are not NaN.
    NotEqual,
    /// One of them is NaN: for floats alone.
    Unordered,
}

impl Comparison {
    fn name(self) -> &'static str {
        match self {
            Self::Less => "lt",
            Self::LessOrEqual => "le",
            Self::Greater => "gt",
            Self::GreaterOrEqual => "ge",
            Self::Equal => "eq",
            Self::NotEqual => "ne",
            Self::Unordered => "nan",
        }
    }
}

/// Methods with one operand: their documentation, name, types, instruction.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident: $of:ident = $instruction:expr;)*) => { $(
        $(#[$doc])*
        pub fn $name<A: Value<Type: $of>>(&mut self, a: A) -> Reg<A::Type> {
            let (d, ty) = (self.writer.register::<A::Type>(), A::Type::SUFFIX);
            self.writer.line(format_args!(concat!($instruction, ".{} {}, {}"), ty, d, a.operand()));
            d
        }
    )* };
}

/// Methods with two operands of one type: their documentation, name, types, instruction and its suffix.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident: $of:ident = $instruction:literal, $suffix:ident;)*) => { $(
        $(#[$doc])*
        pub fn $name<A: Value<Type: $of>>(&mut self, a: A, b: impl Value<Type = A::Type>) -> Reg<A::Type> {
            self.two($instruction, A::Type::$suffix, a, b)
        }
    )* };
}

/// Methods on the bits of integers, which have no sign.
macro_rules! bitwise {
    ($($(#[$doc:meta])* $name:ident = $instruction:literal;)*) => { $(
        $(#[$doc])*
        pub fn $name<A: Value<Type: Integer>>(&mut self, a: A, b: impl Value<Type = A::Type>) -> Reg<A::Type> {
            self.two($instruction, bits(A::Type::CLASS), a, b)
        }
    )* };
}

/// Name of a type of bits alone.
fn bits(class: Class) -> &'static str {
    match class {
        Class::Pred => "pred",
        Class::B16 => "b16",
        Class::B32 | Class::U32 | Class::F32 => "b32",
        Class::U64 | Class::F64 => "b64",
    }
}

impl<F> Scope<'_, F> {
    binary! {
        /// `a + b`, rounded to nearest for floats.
        add: Number = "add", SUM;
        /// `a − b`, rounded to nearest for floats.
        sub: Number = "sub", SUM;
        /// `a · b`, rounded to nearest for floats; the lower half for integers.
        mul: Number = "mul", PRODUCT;
        /// `a / b`, rounded to nearest for floats, downwards for integers.
        div: Number = "div", SUM;
        /// The smaller; of a number and NaN the number.
        min: Number = "min", SUFFIX;
        /// The larger; of a number and NaN the number.
        max: Number = "max", SUFFIX;
        /// The remainder of `a / b`.
        rem: Integer = "rem", SUFFIX;
    }

    bitwise! {
        /// Bits of both.
        and = "and";
        /// Bits of either.
        or = "or";
        /// Bits of one alone.
        xor = "xor";
    }

    unary! {
        /// `−a`.
        neg: Float = "neg";
        /// `|a|`.
        abs: Float = "abs";
        /// The square root, rounded to nearest.
        sqrt: Float = "sqrt.rn";
        /// `1 / a`, rounded to nearest.
        reciprocal: Float = "rcp.rn";
        /// The nearest whole number, halves to the even one.
        round: Float = "cvt.rni.{0}";
        /// The largest whole number that is not larger.
        floor: Float = "cvt.rmi.{0}";
    }

    fn two<A: Value>(&mut self, name: &str, suffix: &str, a: A, b: impl Value<Type = A::Type>) -> Reg<A::Type> {
        let d = self.writer.register::<A::Type>();
        self.writer.line(format_args!("{name}.{suffix} {d}, {}, {}", a.operand(), b.operand()));
        d
    }

    /// Bits of `a`, `by` places higher.
    pub fn shl<A: Value<Type: Integer>>(&mut self, a: A, by: impl Value<Type = u32>) -> Reg<A::Type> {
        let (d, ty) = (self.writer.register::<A::Type>(), bits(A::Type::CLASS));
        self.writer.line(format_args!("shl.{ty} {d}, {}, {}", a.operand(), by.operand()));
        d
    }

    /// Bits of `a`, `by` places lower.
    pub fn shr<A: Value<Type: Integer>>(&mut self, a: A, by: impl Value<Type = u32>) -> Reg<A::Type> {
        let (d, ty) = (self.writer.register::<A::Type>(), A::Type::SUFFIX);
        self.writer.line(format_args!("shr.{ty} {d}, {}, {}", a.operand(), by.operand()));
        d
    }

    /// `a · b + c`: one rounding for floats, the lower half for integers.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let (block, thread) = (k.block_index(Axis::X), k.thread_index(Axis::X));
    /// let i = k.mul_add(block, 64u32, thread); // number of the thread in the grid
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn mul_add<A: Value<Type: Number>>(
        &mut self,
        a: A,
        b: impl Value<Type = A::Type>,
        c: impl Value<Type = A::Type>,
    ) -> Reg<A::Type> {
        let (d, name) = (self.writer.register::<A::Type>(), A::Type::MUL_ADD);
        self.writer.line(format_args!("{name} {d}, {}, {}, {}", a.operand(), b.operand(), c.operand()));
        d
    }

    /// `2^a` with a relative error of at most 2⁻²²; 0 of −∞.
    pub fn exp2(&mut self, a: impl Value<Type = f32>) -> Reg<f32> {
        let d = self.writer.register::<f32>();
        self.writer.line(format_args!("ex2.approx.f32 {d}, {}", a.operand()));
        d
    }

    /// `2ⁿ` of a whole number between −126 and 127; for `f64` between −1022 and 1023.
    pub fn power_of_two<T: Float>(&mut self, n: Reg<T>) -> Reg<T> {
        let biased = self.add(n, T::BIAS);
        let (exponent, d) = (self.writer.register::<T::Bits>(), self.writer.register::<T>());
        self.writer.line(format_args!("cvt.rzi.{}.{} {exponent}, {biased}", T::Bits::SUFFIX, T::SUFFIX));
        let placed = self.shl(exponent, T::MANTISSA);
        self.writer.line(format_args!("mov.{} {d}, {placed}", bits(T::CLASS)));
        d
    }

    /// A register that can be assigned, with a first value.
    pub fn variable<A: Value>(&mut self, value: A) -> Reg<A::Type> {
        let d = self.writer.register::<A::Type>();
        self.assign(d, value);
        d
    }

    /// Gives a register another value.
    ///
    /// A uniform register cannot be assigned: in some threads it would be another one then.
    ///
    /// ```compile_fail,E0308
    /// hecate_ptx::kernel("wrong", [32, 1, 1], |k| {
    ///     let n = k.parameter::<u32>("n");
    ///     k.assign(n, 0u32);
    /// });
    /// ```
    pub fn assign<T: Type>(&mut self, register: Reg<T>, value: impl Value<Type = T>) {
        self.writer.line(format_args!("mov.{} {register}, {}", T::SUFFIX, value.operand()));
    }

    /// Adds to a register: `register += value`.
    pub fn add_to<T: Number>(&mut self, register: Reg<T>, value: impl Value<Type = T>) {
        self.writer.line(format_args!("add.{} {register}, {register}, {}", T::SUM, value.operand()));
    }

    /// Adds a product to a register: `register += a · b`, with one rounding for floats.
    pub fn accumulate<A: Value<Type: Number>>(&mut self, register: Reg<A::Type>, a: A, b: impl Value<Type = A::Type>) {
        let name = A::Type::MUL_ADD;
        self.writer.line(format_args!("{name} {register}, {}, {}, {register}", a.operand(), b.operand()));
    }

    /// Multiplies a register: `register *= by`.
    pub fn scale<T: Number>(&mut self, register: Reg<T>, by: impl Value<Type = T>) {
        self.writer.line(format_args!("mul.{} {register}, {register}, {}", T::PRODUCT, by.operand()));
    }

    /// Whether two numbers compare so.
    pub fn compare<A: Value<Type: Number>>(&mut self, how: Comparison, a: A, b: impl Value<Type = A::Type>) -> Pred {
        let p = Pred(self.writer.number(Class::Pred));
        self.writer.line(format_args!("setp.{}.{} {p}, {}, {}", how.name(), A::Type::SUFFIX, a.operand(), b.operand()));
        p
    }

    /// `a < b`.
    pub fn lt<A: Value<Type: Number>>(&mut self, a: A, b: impl Value<Type = A::Type>) -> Pred {
        self.compare(Comparison::Less, a, b)
    }

    /// Whether both predicates hold.
    pub fn both(&mut self, a: Pred, b: Pred) -> Pred {
        let p = Pred(self.writer.number(Class::Pred));
        self.writer.line(format_args!("and.pred {p}, {a}, {b}"));
        p
    }

    /// Whether the predicate does not hold.
    pub fn not(&mut self, a: Pred) -> Pred {
        let p = Pred(self.writer.number(Class::Pred));
        self.writer.line(format_args!("not.pred {p}, {a}"));
        p
    }

    /// `a` where the predicate holds, else `b`.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, Comparison, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let thread = k.thread_index(Axis::X);
    /// let is_first = k.compare(Comparison::Equal, thread, 0u32);
    /// let sign = k.select(is_first, 1f32, -1f32);
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn select<A: Value>(&mut self, p: Pred, a: A, b: impl Value<Type = A::Type>) -> Reg<A::Type> {
        let (d, ty) = (self.writer.register::<A::Type>(), A::Type::SUFFIX);
        self.writer.line(format_args!("selp.{ty} {d}, {}, {}, {p}", a.operand(), b.operand()));
        d
    }

    /// An integer as a float, rounded to nearest.
    pub fn to_f32(&mut self, a: impl Value<Type = u32>) -> Reg<f32> {
        let d = self.writer.register::<f32>();
        self.writer.line(format_args!("cvt.rn.f32.u32 {d}, {}", a.operand()));
        d
    }

    /// An integer of 32 bits as one of 64.
    pub fn to_u64(&mut self, a: impl Value<Type = u32>) -> Reg<u64> {
        let d = self.writer.register::<u64>();
        self.writer.line(format_args!("cvt.u64.u32 {d}, {}", a.operand()));
        d
    }

    /// The 64 bits of `a · b`.
    pub fn mul_wide(&mut self, a: impl Value<Type = u32>, b: impl Value<Type = u32>) -> Reg<u64> {
        let d = self.writer.register::<u64>();
        self.writer.line(format_args!("mul.wide.u32 {d}, {}, {}", a.operand(), b.operand()));
        d
    }

    /// A number of 16 bits as the same number of 32 bits.
    pub fn widen<H: Half>(&mut self, a: Reg<H>) -> Reg<f32> {
        let d = self.writer.register::<f32>();
        if H::NAME == F16::NAME {
            self.writer.line(format_args!("cvt.f32.f16 {d}, {a}"));
        } else {
            // A bfloat16 is the upper half of the same `f32`.
            let bits = self.writer.register::<u32>();
            self.writer.line(format_args!("cvt.u32.u16 {bits}, {a}"));
            let shifted = self.shl(bits, 16u32);
            self.writer.line(format_args!("mov.b32 {d}, {shifted}"));
        }
        d
    }

    /// A number as one of 16 bits, rounded to nearest.
    ///
    /// ```
    /// # use hecate_ptx::{Bf16, F16, kernel};
    /// let half = kernel("half", [1, 1, 1], |k| drop(k.narrow::<F16>(1f32)))?;
    /// let bfloat = kernel("bfloat", [1, 1, 1], |k| drop(k.narrow::<Bf16>(1f32)))?;
    /// // An A100 and later GPUs have the instruction for bfloat16.
    /// assert_eq!([half.target().capability, bfloat.target().capability], [70, 80]);
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn narrow<H: Half>(&mut self, a: impl Value<Type = f32>) -> Reg<H> {
        if H::NAME == Bf16::NAME {
            self.writer.needs((7, 0), 80);
        }
        let d = self.writer.register::<H>();
        self.writer.line(format_args!("cvt.rn.{}.f32 {d}, {}", H::NAME, a.operand()));
        d
    }

    /// Two numbers, each rounded to 16 bits, in one register.
    pub fn narrow_pair<H: Half>(
        &mut self,
        low: impl Value<Type = f32>,
        high: impl Value<Type = f32>,
    ) -> Reg<Packed<H>> {
        self.writer.needs((7, 0), 80);
        let d = self.writer.register::<Packed<H>>();
        // The instruction names the upper half first.
        self.writer.line(format_args!("cvt.rn.{}x2.f32 {d}, {}, {}", H::NAME, high.operand(), low.operand()));
        d
    }

    /// Two registers of 16 bits as one of 32.
    pub fn pack<H: Half>(&mut self, low: Reg<H>, high: Reg<H>) -> Reg<Packed<H>> {
        let d = self.writer.register::<Packed<H>>();
        self.writer.line(format_args!("mov.b32 {d}, {{{low}, {high}}}"));
        d
    }
}

/// Methods whose result is uniform, since both operands are: documentation, name, the method of [`Scope`] behind it.
macro_rules! uniform {
    ($($(#[$doc:meta])* $name:ident: $of:ident = $method:ident;)*) => { $(
        $(#[$doc])*
        pub fn $name<A>(&mut self, a: A, b: impl UniformValue<Type = A::Type>) -> Uniform<A::Type>
        where
            A: UniformValue<Type: $of>,
        {
            Uniform(self.$method(a, b))
        }
    )* };
}

impl Scope<'_, Converged> {
    uniform! {
        /// `a + b`.
        uniform_add: Number = add;
        /// `a · b`.
        uniform_mul: Number = mul;
        /// `a / b`, rounded downwards.
        uniform_div: Integer = div;
        /// The remainder of `a / b`.
        uniform_rem: Integer = rem;
        /// The smaller.
        uniform_min: Number = min;
    }

    /// A constant in a register.
    pub fn uniform<A: UniformValue>(&mut self, value: A) -> Uniform<A::Type> {
        Uniform(self.variable(value))
    }

    /// Whether `a < b`, in all threads of the block or in none.
    pub fn uniform_lt<A>(&mut self, a: A, b: impl UniformValue<Type = A::Type>) -> UniformPred
    where
        A: UniformValue<Type: Number>,
    {
        UniformPred(self.lt(a, b))
    }
}
