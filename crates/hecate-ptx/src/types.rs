//! Types of registers: what a register holds is part of its Rust type.

use std::{fmt, marker::PhantomData};

/// Keeps traits to this crate's types: a type of PTX is known to the writer, or it is none.
pub(crate) mod sealed {
    #[allow(unnameable_types, reason = "a bound that other crates cannot name")]
    pub trait Sealed {}
}

/// A half-precision number of 16 bits (IEEE binary16), as registers and arrays hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F16;

/// A number of 16 bits with the exponent of an `f32` (bfloat16), as registers and arrays hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16;

/// Two numbers of 16 bits in one register of 32, the first in the lower half: what tensor cores read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed<T>(PhantomData<T>);

/// Registers of one name and width. Classes are declared once a kernel, at its top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unnameable_types, reason = "a detail of the sealed trait `Type`")]
pub enum Class {
    F32,
    F64,
    B16,
    B32,
    U32,
    U64,
    Pred,
}

/// All classes, in the order of their declarations.
pub(crate) const CLASSES: [Class; 7] =
    [Class::Pred, Class::B16, Class::B32, Class::U32, Class::U64, Class::F32, Class::F64];

impl Class {
    /// Type of the declaration, and the prefix of registers' names.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::F32 => ("f32", "%f"),
            Self::F64 => ("f64", "%fd"),
            Self::B16 => ("b16", "%h"),
            Self::B32 => ("b32", "%hh"),
            Self::U32 => ("u32", "%r"),
            Self::U64 => ("u64", "%rd"),
            Self::Pred => ("pred", "%p"),
        }
    }
}

/// What a register can hold: `f32`, `f64`, `u32`, `u64`, [`F16`], [`Bf16`] or [`Packed`] pairs of the last two.
pub trait Type: Copy + sealed::Sealed {
    #[doc(hidden)]
    const CLASS: Class;
    /// How instructions name the type, such as `f32`; `b16` and `b32` where PTX has no name for it.
    const SUFFIX: &'static str;
}

/// Types on which `add`, `sub`, `mul`, `div`, `min` and `max` are defined.
pub trait Number: Type {
    /// Suffix of sums: `.rn.f32` rounds to nearest, and keeps the assembler from fusing two roundings into one.
    const SUM: &'static str;
    /// Suffix of products: the lower half, for integers.
    const PRODUCT: &'static str;
    /// Instruction of `a * b + c`: one rounding for floats, the lower half for integers.
    const MUL_ADD: &'static str;
}

/// `f32` and `f64`.
pub trait Float: Number + Value<Type = Self> {
    /// An integer of the same width.
    type Bits: Integer;
    /// What is added to an exponent in the bits.
    const BIAS: Self;
    /// Bits below the exponent.
    const MANTISSA: u32;
}

/// `u32` and `u64`.
pub trait Integer: Number {}

/// [`F16`] and [`Bf16`].
pub trait Half: Type {
    /// How conversions and tensor cores name the type.
    const NAME: &'static str;
}

macro_rules! types {
    ($($type:ty: $class:ident $suffix:literal),*) => { $(
        impl sealed::Sealed for $type {}
        impl Type for $type {
            const CLASS: Class = Class::$class;
            const SUFFIX: &'static str = $suffix;
        }
    )* };
}
types!(f32: F32 "f32", f64: F64 "f64", u32: U32 "u32", u64: U64 "u64", F16: B16 "b16", Bf16: B16 "b16");

impl<T: Half> sealed::Sealed for Packed<T> {}
impl<T: Half> Type for Packed<T> {
    const CLASS: Class = Class::B32;
    const SUFFIX: &'static str = "b32";
}

macro_rules! numbers {
    ($($type:ty: $sum:literal $product:literal $mul_add:literal),*) => { $(
        impl Number for $type {
            const SUM: &'static str = $sum;
            const PRODUCT: &'static str = $product;
            const MUL_ADD: &'static str = $mul_add;
        }
    )* };
}
numbers!(
    f32: "rn.f32" "rn.f32" "fma.rn.f32", f64: "rn.f64" "rn.f64" "fma.rn.f64",
    u32: "u32" "lo.u32" "mad.lo.u32", u64: "u64" "lo.u64" "mad.lo.u64"
);

impl Integer for u32 {}
impl Integer for u64 {}

impl Float for f32 {
    type Bits = u32;
    const BIAS: Self = 127.0;
    const MANTISSA: u32 = 23;
}
impl Float for f64 {
    type Bits = u64;
    const BIAS: Self = 1023.0;
    const MANTISSA: u32 = 52;
}

impl Half for F16 {
    const NAME: &'static str = "f16";
}
impl Half for Bf16 {
    const NAME: &'static str = "bf16";
}

/// A register that holds a `T`. It is a name: a copy names the same register.
///
/// A register of one type is refused where another is asked:
///
/// ```compile_fail,E0271
/// hecate_ptx::kernel("wrong", [32, 1, 1], |k| {
///     let (x, address) = (k.variable(1f32), k.variable(1u64));
///     k.add(address, x); // expected `u64`, found `f32`
/// });
/// ```
#[derive(Debug)]
pub struct Reg<T> {
    id: u32,
    holds: PhantomData<T>,
}

/// A register that holds the same `T` in all threads of a block, such as a parameter.
///
/// Only what is uniform may decide whether threads come to a barrier. There is no way to assign one: it has one value, or it
/// counts a loop that all threads run together.
#[derive(Debug)]
pub struct Uniform<T>(pub(crate) Reg<T>);

/// A predicate: a truth that each thread has for itself.
#[derive(Clone, Copy, Debug)]
pub struct Pred(pub(crate) u32);

/// A predicate that is the same in all threads of a block.
#[derive(Clone, Copy, Debug)]
pub struct UniformPred(pub(crate) Pred);

impl<T> Clone for Reg<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Reg<T> {}
impl<T> Clone for Uniform<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Uniform<T> {}

impl<T> Reg<T> {
    pub(crate) fn new(id: u32) -> Self {
        Self { id, holds: PhantomData }
    }
}

impl<T: Type> fmt::Display for Reg<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", T::CLASS.names().1, self.id)
    }
}

impl fmt::Display for Pred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%p{}", self.0)
    }
}

/// What an instruction reads: a register or a constant.
pub trait Value: Copy + sealed::Sealed {
    /// What it holds.
    type Type: Type;
    #[doc(hidden)]
    fn operand(self) -> Operand;
}

/// A [`Value`] that is the same in all threads of a block: a [`Uniform`] or a constant.
pub trait UniformValue: Value {}

/// How a value is written. Floats are written as their bits, so no decimal digits are lost.
#[derive(Clone, Copy, Debug)]
#[allow(unnameable_types, reason = "a detail of the sealed trait `Value`")]
pub enum Operand {
    Register(Class, u32),
    F32(f32),
    F64(f64),
    Integer(u64),
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Register(class, id) => write!(f, "{}{id}", class.names().1),
            Self::F32(value) => write!(f, "0f{:08X}", value.to_bits()),
            Self::F64(value) => write!(f, "0d{:016X}", value.to_bits()),
            Self::Integer(value) => write!(f, "{value}"),
        }
    }
}

impl<T: Type> sealed::Sealed for Reg<T> {}
impl<T: Type> Value for Reg<T> {
    type Type = T;
    fn operand(self) -> Operand {
        Operand::Register(T::CLASS, self.id)
    }
}

impl<T: Type> sealed::Sealed for Uniform<T> {}
impl<T: Type> UniformValue for Uniform<T> {}
impl<T: Type> Value for Uniform<T> {
    type Type = T;
    fn operand(self) -> Operand {
        self.0.operand()
    }
}

macro_rules! constants {
    ($($type:ty: $operand:expr),*) => { $(
        impl UniformValue for $type {}
        impl Value for $type {
            type Type = Self;
            fn operand(self) -> Operand {
                $operand(self.into())
            }
        }
    )* };
}
constants!(f32: Operand::F32, f64: Operand::F64, u32: Operand::Integer, u64: Operand::Integer);
