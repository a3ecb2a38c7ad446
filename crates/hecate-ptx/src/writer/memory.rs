//! Loads and stores. A pointer knows the type of its elements and the memory in which they are.

use super::{Converged, Flow, SHARED_ALIGN, Scope, SharedArray};
use crate::types::{Bf16, F16, Half, Packed, Pred, Reg, Type, Value, sealed::Sealed};
use std::{fmt, marker::PhantomData};

/// The memory of the GPU: an address has 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Global;

/// The memory of a block: an address has 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Shared;

/// [`Global`] or [`Shared`].
pub trait Space: Copy + Sealed {
    /// What an address is.
    type Address: Type;
    /// How instructions name the memory.
    const NAME: &'static str;
}

impl Sealed for Global {}
impl Space for Global {
    type Address = u64;
    const NAME: &'static str = "global";
}

impl Sealed for Shared {}
impl Space for Shared {
    type Address = u32;
    const NAME: &'static str = "shared";
}

/// What an array holds: any type of registers, or `u8` and `u16`, which come as a `u32`.
pub trait Element: Copy + Sealed {
    /// Type of the register that it is loaded into.
    type Loaded: Type;
    #[doc(hidden)]
    const SUFFIX: &'static str;
    /// Bytes of an element.
    const BYTES: u32;
}

macro_rules! elements {
    ($($type:ty: $loaded:ty, $suffix:literal $bytes:literal),*) => { $(
        impl Element for $type {
            type Loaded = $loaded;
            const SUFFIX: &'static str = $suffix;
            const BYTES: u32 = $bytes;
        }
    )* };
}
elements!(
    f32: f32, "f32" 4, f64: f64, "f64" 8, u32: u32, "u32" 4, u64: u64, "u64" 8,
    F16: F16, "b16" 2, Bf16: Bf16, "b16" 2, u8: u32, "u8" 1, u16: u32, "u16" 2
);
impl Sealed for u8 {}
impl Sealed for u16 {}

impl<H: Half> Element for Packed<H> {
    type Loaded = Self;
    const SUFFIX: &'static str = "b32";
    const BYTES: u32 = 4;
}

/// The address of an element of type `E`: a register, and a number of bytes that is known when the text is written.
pub struct Pointer<E, S: Space> {
    base: Reg<S::Address>,
    offset: u64,
    element: PhantomData<E>,
}

impl<E, S: Space> Clone for Pointer<E, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E, S: Space> Copy for Pointer<E, S> {}

impl<E, S: Space> fmt::Debug for Pointer<E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{self}", S::NAME)
    }
}

impl<E, S: Space> fmt::Display for Pointer<E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            0 => write!(f, "[{}]", self.base),
            offset => write!(f, "[{}+{offset}]", self.base),
        }
    }
}

impl<E: Element, S: Space> Pointer<E, S> {
    pub(super) fn new(base: Reg<S::Address>) -> Self {
        Self { base, offset: 0, element: PhantomData }
    }

    /// The address `elements` further. It takes no instruction.
    #[must_use]
    pub fn plus(self, elements: u32) -> Self {
        Self { offset: self.offset + u64::from(elements) * u64::from(E::BYTES), ..self }
    }

    /// The same address, read as another type. The text's assembler does not check its alignment.
    #[must_use]
    pub fn cast<G: Element>(self) -> Pointer<G, S> {
        Pointer { base: self.base, offset: self.offset, element: PhantomData }
    }
}

impl Scope<'_, Converged> {
    /// An array in shared memory, at a multiple of 16 bytes. Its memory is undefined until it is written.
    ///
    /// All arrays of a kernel together have at most [`SHARED_LIMIT`](crate::SHARED_LIMIT) bytes:
    ///
    /// ```
    /// use hecate_ptx::{Error, kernel};
    ///
    /// let refused = kernel("large", [32, 1, 1], |k| {
    ///     k.shared::<f32>("keys", 128 * 128);
    /// });
    /// assert_eq!(refused, Err(Error::SharedMemory { kernel: "large".to_owned(), bytes: 65536 }));
    /// ```
    pub fn shared<E: Element>(&mut self, name: &str, length: usize) -> Pointer<E, Shared> {
        let taken = self.writer.shared.iter().any(|other| other.name == name);
        self.writer.name(name, taken);
        let bytes = length.saturating_mul(E::BYTES as usize);
        let declaration = format!(".shared .align {SHARED_ALIGN} .{} {name}[{length}];", E::SUFFIX);
        self.writer.shared.push(SharedArray { name: name.to_owned(), declaration, bytes });
        let base = self.writer.register::<u32>();
        self.writer.line(format_args!("mov.u32 {base}, {name}"));
        Pointer::new(base)
    }
}

impl<F> Scope<'_, F> {
    /// The address of element `index` of an array in global memory.
    pub fn at<E: Element>(&mut self, array: Pointer<E, Global>, index: impl Value<Type = u32>) -> Pointer<E, Global> {
        let base = self.writer.register::<u64>();
        self.writer.line(format_args!("mad.wide.u32 {base}, {}, {}, {}", index.operand(), E::BYTES, array.base));
        Pointer { base, ..array }
    }

    /// As [`Scope::at`], for arrays of more elements than 32 bits can number.
    pub fn at_wide<E: Element>(
        &mut self,
        array: Pointer<E, Global>,
        index: impl Value<Type = u64>,
    ) -> Pointer<E, Global> {
        let base = self.writer.register::<u64>();
        self.writer.line(format_args!("mad.lo.u64 {base}, {}, {}, {}", index.operand(), E::BYTES, array.base));
        Pointer { base, ..array }
    }

    /// The address of row `row` of a matrix in global memory whose rows have `length` elements.
    ///
    /// The product of both is computed in 64 bits, so a matrix may have more elements than 32 bits can number.
    pub fn row<E: Element>(
        &mut self,
        matrix: Pointer<E, Global>,
        row: impl Value<Type = u32>,
        length: impl Value<Type = u32>,
    ) -> Pointer<E, Global> {
        let first = self.mul_wide(row, length);
        self.at_wide(matrix, first)
    }

    /// The address of element `index` of an array in shared memory.
    pub fn at_shared<E: Element>(
        &mut self,
        array: Pointer<E, Shared>,
        index: impl Value<Type = u32>,
    ) -> Pointer<E, Shared> {
        let base = self.mul_add(index, E::BYTES, array.base);
        Pointer { base, ..array }
    }

    /// The element at an address.
    pub fn load<E: Element, S: Space>(&mut self, from: Pointer<E, S>) -> Reg<E::Loaded> {
        let d = self.writer.register::<E::Loaded>();
        self.writer.line(format_args!("ld.{}.{} {d}, {from}", S::NAME, E::SUFFIX));
        d
    }

    /// Writes an element.
    pub fn store<E: Element, S: Space>(&mut self, to: Pointer<E, S>, value: impl Value<Type = E::Loaded>) {
        self.writer.line(format_args!("st.{}.{} {to}, {}", S::NAME, E::SUFFIX, value.operand()));
    }

    /// `N` neighbours at once, 2 or 4 of at most 16 bytes, from an address that is a multiple of their size.
    ///
    /// ```
    /// # use hecate_ptx::{kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let x = k.pointer::<f32>("x");
    /// let [a, b, c, d] = k.load_vector(x);
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    ///
    /// Vectors of more than 16 bytes do not compile:
    ///
    /// ```compile_fail
    /// hecate_ptx::kernel("wrong", [32, 1, 1], |k| {
    ///     let x = k.pointer::<f64>("x");
    ///     k.load_vector::<4, _, _>(x);
    /// });
    /// ```
    pub fn load_vector<const N: usize, E: Element, S: Space>(&mut self, from: Pointer<E, S>) -> [Reg<E::Loaded>; N] {
        const { assert!((N == 2 || N == 4) && N as u32 * E::BYTES <= 16, "vectors have 2 or 4 elements, and 16 bytes") };
        let d = std::array::from_fn(|_| self.writer.register::<E::Loaded>());
        self.writer.line(format_args!("ld.{}.v{N}.{} {}, {from}", S::NAME, E::SUFFIX, list(&d)));
        d
    }

    /// Writes `N` neighbours at once, to an address that is a multiple of their size.
    pub fn store_vector<const N: usize, E: Element, S: Space>(
        &mut self,
        to: Pointer<E, S>,
        values: [Reg<E::Loaded>; N],
    ) {
        const { assert!((N == 2 || N == 4) && N as u32 * E::BYTES <= 16, "vectors have 2 or 4 elements, and 16 bytes") };
        self.writer.line(format_args!("st.{}.v{N}.{} {to}, {}", S::NAME, E::SUFFIX, list(&values)));
    }

    /// Starts to copy 16 bytes from global to shared memory: the first `bytes` of them, and zeros for the rest. Both addresses
    /// are multiples of 16. The copy ends with [`Scope::wait_copies`].
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let (x, tile) = (k.pointer::<f32>("x"), k.shared::<f32>("tile", 256));
    /// let thread = k.thread_index(Axis::X);
    /// let element = k.mul(thread, 4u32);
    /// let (from, to) = (k.at(x, element), k.at_shared(tile, element));
    /// k.copy_async(to, from, 16u32);
    /// k.commit_copies();
    /// k.wait_copies(0); // for this thread's copies; the barrier is for those of the others
    /// k.barrier();
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn copy_async<E: Element>(
        &mut self,
        to: Pointer<E, Shared>,
        from: Pointer<E, Global>,
        bytes: impl Value<Type = u32>,
    ) {
        self.writer.needs((7, 0), 80);
        self.writer.line(format_args!("cp.async.cg.shared.global {to}, {from}, 16, {}", bytes.operand()));
    }

    /// Makes one group of the copies that the thread started since the last group.
    pub fn commit_copies(&mut self) {
        self.writer.needs((7, 0), 80);
        self.writer.line(format_args!("cp.async.commit_group"));
    }

    /// Waits until all groups of the thread's copies have ended but the newest `pending`.
    pub fn wait_copies(&mut self, pending: u32) {
        self.writer.needs((7, 0), 80);
        self.writer.line(format_args!("cp.async.wait_group {pending}"));
    }
}

impl<F: Flow> Scope<'_, F> {
    /// The element at an address where the predicate holds; elsewhere nothing is read, and the result is `otherwise`.
    ///
    /// ```
    /// # use hecate_ptx::{Axis, kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// let (x, n) = (k.pointer::<f32>("x"), k.parameter::<u32>("n"));
    /// let thread = k.thread_index(Axis::X);
    /// let (inside, from) = (k.lt(thread, n), k.at(x, thread));
    /// let element = k.load_or(inside, from, 0f32); // 0 after the last element
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn load_or<E: Element, S: Space>(
        &mut self,
        p: Pred,
        from: Pointer<E, S>,
        otherwise: impl Value<Type = E::Loaded>,
    ) -> Reg<E::Loaded> {
        let d = self.variable(otherwise);
        self.guarded(p, |k| k.writer.line(format_args!("ld.{}.{} {d}, {from}", S::NAME, E::SUFFIX)));
        d
    }
}

/// Registers as a vector: `{%f1, %f2}`.
pub(super) fn list<T: Type>(registers: &[Reg<T>]) -> String {
    let names: Vec<String> = registers.iter().map(ToString::to_string).collect();
    format!("{{{}}}", names.join(", "))
}
