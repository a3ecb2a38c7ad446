//! Arguments of kernels, each defined once: as a structure of Rust whose fields say what they are in C.
//!
//! Every kernel takes one structure by value. [`arguments!`] writes its Rust: a field `q: In<f32>` is an address in Rust and
//! `const float* q` in C. The text of a kernel spells the structure too, because images in the cache, records and the
//! embedded PTX are named after that text. A test makes the C of every argument from its Rust, and compares it with this text
//! field by field. It also compares sizes and offsets with the bytes that the embedded PTX takes and reads.

use std::{fmt, marker::PhantomData};

/// A type that a field of an argument can have.
pub(crate) trait Field {
    /// What the field holds in Rust.
    type Value: Copy + fmt::Debug;

    /// What it is in C.
    #[cfg(test)]
    fn shape() -> Shape;
}

/// The address of elements that the kernel reads: `const T*` in C. It may be null where the kernel says so.
pub(crate) struct In<T>(PhantomData<T>);

/// The address of elements that the kernel writes, and may read: `T*` in C.
pub(crate) struct Out<T>(PhantomData<T>);

/// A structure whose fields stand in C among those around it.
pub(crate) struct InPlace<T>(PhantomData<T>);

/// Elements of a type that the address does not tell: `void` in C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Void;

/// An entry of a table that the host writes in so many words of 64 bits ([`Entries`](crate::primitives::entries::Entries)).
pub(crate) struct Words<const N: usize>;

/// Two words that C reads as one: `uint2`, which begins at a multiple of 8 bytes.
pub(crate) struct Uint2;

/// Defines structures of arguments: `arguments! { struct Pair { from: In<u32>, to: Out<u32>, words: u64 } }`.
///
/// Fields are laid out as C does it. A field's name is that of the field in C, but `dtype` stands for C's `type`. A field may
/// be a number, an address ([`In`], [`Out`]), another such structure, or an array of these.
macro_rules! arguments {
    ($( $(#[$of:meta])* $vis:vis struct $name:ident {
        $( $(#[$of_field:meta])* $vis_field:vis $field:ident : $type:ty ),* $(,)?
    } )*) => { $(
        $(#[$of])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        $vis struct $name {
            $( $(#[$of_field])* $vis_field $field: <$type as $crate::arguments::Field>::Value ),*
        }
        $crate::arguments::known! { $name { $( $field: $type ),* } }
    )* };
}
pub(crate) use arguments;

/// Says what a `repr(C)` structure is in C that is defined elsewhere. All of its fields are named, in their order.
macro_rules! known {
    ($name:ident { $( $field:ident : $type:ty ),* $(,)? }) => {
        impl $crate::arguments::Field for $name {
            type Value = Self;

            #[cfg(test)]
            fn shape() -> $crate::arguments::Shape {
                $crate::arguments::Shape::Structure(vec![ $(
                    $crate::arguments::Member::new::<$type>(stringify!($field), std::mem::offset_of!($name, $field))
                ),* ])
            }
        }

        // A field that is missing here, or has another type there, does not compile.
        const _: fn($name) = |$name { $( $field ),* }| {
            $( let _: <$type as $crate::arguments::Field>::Value = $field; )*
        };
    };
}
pub(crate) use known;

/// Numbers that C has under another name.
macro_rules! numbers {
    ($( $type:ty = $c:literal ),*) => { $(
        impl Field for $type {
            type Value = Self;

            #[cfg(test)]
            fn shape() -> Shape {
                Shape::Number($c, size_of::<Self>())
            }
        }
    )* };
}
numbers! { u8 = "u8", u16 = "u16", u32 = "u32", u64 = "u64", i32 = "int", f32 = "float", f64 = "double", Void = "void" }

impl Field for Uint2 {
    type Value = [u32; 2];

    #[cfg(test)]
    fn shape() -> Shape {
        Shape::Number("uint2", size_of::<Self::Value>())
    }
}

impl<const N: usize> Field for Words<N> {
    type Value = [u64; N];

    #[cfg(test)]
    fn shape() -> Shape {
        Shape::Entry(size_of::<Self::Value>())
    }
}

impl<T: Field> Field for In<T> {
    type Value = u64;

    #[cfg(test)]
    fn shape() -> Shape {
        Shape::Address { of: Box::new(T::shape()), written: false }
    }
}

impl<T: Field> Field for Out<T> {
    type Value = u64;

    #[cfg(test)]
    fn shape() -> Shape {
        Shape::Address { of: Box::new(T::shape()), written: true }
    }
}

impl<T: Field> Field for InPlace<T> {
    type Value = T::Value;

    #[cfg(test)]
    fn shape() -> Shape {
        Shape::InPlace(Box::new(T::shape()))
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    type Value = [T::Value; N];

    #[cfg(test)]
    fn shape() -> Shape {
        Shape::Array { of: Box::new(T::shape()), count: N, step: size_of::<T::Value>() }
    }
}

#[cfg(test)]
pub(crate) use described::{Argument, Member, Row, Shape};

/// What tests compare.
#[cfg(test)]
mod described {
    use super::Field;
    use crate::source::KernelSource;

    /// What a field is in C.
    #[derive(Clone, Debug)]
    pub(crate) enum Shape {
        /// A number, by its name in C. It has so many bytes, and begins at a multiple of them.
        Number(&'static str, usize),
        /// A structure behind an address, by its bytes.
        Entry(usize),
        /// The address of such elements, and whether they are written.
        Address { of: Box<Shape>, written: bool },
        /// So many of them, one every `step` bytes.
        Array { of: Box<Shape>, count: usize, step: usize },
        /// A structure.
        Structure(Vec<Member>),
        /// One whose fields stand among those around it.
        InPlace(Box<Shape>),
    }

    /// A field of a structure, which begins `at` so many bytes.
    #[derive(Clone, Debug)]
    pub(crate) struct Member {
        pub(crate) name: String,
        pub(crate) at: usize,
        pub(crate) shape: Shape,
    }

    impl Member {
        /// A field of Rust. `type` is a word of Rust's own, so that it is called `dtype`.
        pub(crate) fn new<T: Field>(name: &str, at: usize) -> Self {
            let name = if name == "dtype" { "type" } else { name };
            Self { name: name.to_owned(), at, shape: T::shape() }
        }
    }

    /// A number or an address of an argument: `call.q.data` is a `void*` that begins at 0.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Row {
        pub(crate) path: String,
        pub(crate) c: String,
        pub(crate) at: usize,
        pub(crate) bytes: usize,
    }

    impl Shape {
        /// All numbers and addresses in their order.
        pub(crate) fn rows(&self) -> Vec<Row> {
            let mut rows = Vec::new();
            self.add_rows("", 0, &mut rows);
            rows
        }

        fn add_rows(&self, path: &str, at: usize, rows: &mut Vec<Row>) {
            let mut row = |c: String, bytes| rows.push(Row { path: path.to_owned(), c, at, bytes });
            match self {
                Self::Number(c, bytes) => row((*c).to_owned(), *bytes),
                Self::Address { of, written } => {
                    let (of, constant) = (of.rows().remove(0).c, if *written { "" } else { "const " });
                    row(format!("{constant}{of}*"), size_of::<u64>());
                }
                Self::Entry(bytes) => row(format!("entry of {bytes} bytes"), *bytes),
                Self::Array { of, count, step } => {
                    (0..*count).for_each(|i| of.add_rows(&format!("{path}[{i}]"), at + i * step, rows));
                }
                Self::Structure(members) => {
                    for Member { name, at: inside, shape } in members {
                        let dot = if path.is_empty() { "" } else { "." };
                        let own = if matches!(shape, Self::InPlace(_)) {
                            path.to_owned()
                        } else {
                            format!("{path}{dot}{name}")
                        };
                        shape.add_rows(&own, at + inside, rows);
                    }
                }
                Self::InPlace(of) => of.add_rows(path, at, rows),
            }
        }
    }

    /// What a kernel takes, as its launch hands it over. Written by [`kernels!`](crate::launch::kernels).
    pub(crate) struct Argument {
        pub(crate) source: &'static KernelSource,
        pub(crate) kernel: &'static str,
        pub(crate) shape: fn() -> Shape,
        pub(crate) bytes: usize,
    }

    inventory::collect!(Argument);

    impl Argument {
        /// Its fields. A kernel with one structure as its only field takes this structure itself.
        pub(crate) fn rows(&self) -> Vec<Row> {
            match (self.shape)() {
                Shape::Structure(members) => match members.as_slice() {
                    [Member { shape: only @ Shape::Structure(_), .. }] => only.rows(),
                    _ => Shape::Structure(members).rows(),
                },
                shape => shape.rows(),
            }
        }
    }
}
