//! The writer: from calls to the text of a kernel.
//!
//! [`kernel`] calls a function with a [`Scope`], on which every instruction is a method. The text is written as the methods are
//! called, in order; registers get their numbers in that order too, so the same calls give the same text.
//!
//! A register that is first written in a branch, a loop or under a predicate holds nothing for threads that did not come there.
//! What is needed afterwards is a variable from before, which the branch assigns.

mod arithmetic;
mod control;
mod memory;
mod tensor;
mod warp;

pub use arithmetic::Comparison;
pub use control::{Converged, Diverged, Flow, Guarded};
pub use memory::{Element, Global, Pointer, Shared, Space};
pub use tensor::{Accumulator, Matrices};

use crate::{
    error::{Error, SHARED_LIMIT},
    types::{CLASSES, Class, Pred, Reg, Type, Uniform},
};
use std::{
    fmt::{self, Write},
    marker::PhantomData,
};

/// What a kernel needs: a version of the PTX language, which the driver must know, and a compute capability of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Version of the language, such as `(7, 0)`.
    pub isa: (u32, u32),
    /// Compute capability times ten, such as 80 of an A100.
    pub capability: u32,
}

impl Target {
    /// What every kernel needs: independent threads, on which the `.sync` instructions stand.
    pub const LEAST: Self = Self { isa: (7, 0), capability: 70 };

    /// Whether what needs `self` runs where `has` is.
    ///
    /// ```
    /// use hecate_ptx::Target;
    ///
    /// let a100 = Target { isa: (8, 0), capability: 80 };
    /// assert!(Target::LEAST.runs_on(a100));
    /// assert!(!Target { isa: (8, 0), capability: 90 }.runs_on(a100)); // an older GPU
    /// assert!(!Target { isa: (8, 3), capability: 80 }.runs_on(a100)); // an older driver
    /// ```
    #[must_use]
    pub fn runs_on(self, has: Self) -> bool {
        self.isa <= has.isa && self.capability <= has.capability
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX {}.{} and sm_{}", self.isa.0, self.isa.1, self.capability)
    }
}

/// A parameter of a kernel, in the order of launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name without the prefix `param_` that it has in the text.
    pub name: String,
    /// Its type in PTX: `u64` for addresses, `u32`, or `f32`.
    pub suffix: &'static str,
}

/// A kernel as text, with what a launch has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    name: String,
    text: String,
    parameters: Vec<Parameter>,
    target: Target,
    shared: usize,
    block: [u32; 3],
}

impl Module {
    /// Name of the kernel, which is that of its `.entry`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text, which a driver loads and an assembler takes.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parameters, in the order in which a launch passes them.
    ///
    /// ```
    /// use hecate_ptx::{Softmax, Specification};
    ///
    /// let module = Specification::from(Softmax::new(8, 100)?).write()?;
    /// let names: Vec<&str> = module.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
    /// assert_eq!(names, ["input", "output", "rows", "length"]);
    /// assert_eq!(module.parameters()[2].suffix, "u32");
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The oldest language and GPU that have all of the kernel's operations.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// Bytes of shared memory that a block has.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.shared
    }

    /// Threads of a block along x, y and z. The text demands them: a launch with others fails.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.block
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An array in shared memory.
#[derive(Debug)]
struct SharedArray {
    name: String,
    declaration: String,
    bytes: usize,
}

/// Bytes of which every array begins at a multiple: tensor cores and asynchronous copies ask for it.
const SHARED_ALIGN: usize = 16;

/// What has been written of a kernel.
#[derive(Debug)]
pub(crate) struct Writer {
    name: String,
    block: [u32; 3],
    parameters: Vec<Parameter>,
    shared: Vec<SharedArray>,
    body: String,
    /// Levels of nesting, which the text shows by spaces.
    depth: usize,
    /// The predicate under which instructions are written.
    guard: Option<Pred>,
    /// How many registers there are of each class.
    counts: [u32; CLASSES.len()],
    labels: u32,
    target: Target,
    /// The first thing that was wrong: later ones may follow from it.
    error: Option<Error>,
}

impl Writer {
    fn register<T: Type>(&mut self) -> Reg<T> {
        Reg::new(self.number(T::CLASS))
    }

    fn number(&mut self, class: Class) -> u32 {
        let at = CLASSES.iter().position(|other| *other == class).expect("every class is in the list");
        self.counts[at] += 1;
        self.counts[at] - 1
    }

    /// Writes one instruction, under the predicate if there is one.
    fn line(&mut self, instruction: fmt::Arguments<'_>) {
        self.indent(1);
        if let Some(guard) = self.guard {
            let _ = write!(self.body, "@{guard} ");
        }
        let _ = writeln!(self.body, "{instruction};");
    }

    fn indent(&mut self, extra: usize) {
        (0..self.depth + extra).for_each(|_| self.body.push_str("    "));
    }

    fn label(&mut self, label: &str) {
        self.indent(0);
        let _ = writeln!(self.body, "{label}:");
    }

    fn needs(&mut self, isa: (u32, u32), capability: u32) {
        self.target = Target { isa: self.target.isa.max(isa), capability: self.target.capability.max(capability) };
    }

    fn wrong(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Checks the name of a parameter or an array, or of the kernel itself.
    fn name(&mut self, name: &str, taken: bool) {
        let first = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let expected = if !first || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            "a letter, then letters, digits and `_`"
        } else if taken {
            "another one: the kernel has it already"
        } else {
            return;
        };
        let (kernel, name) = (self.name.clone(), name.to_owned());
        self.wrong(Error::Name { kernel, name, expected });
    }

    /// Checks that a block is whole warps along x, on which operations of warps stand.
    fn whole_warps(&mut self) {
        let [x, y, z] = self.block;
        if x % 32 != 0 || y != 1 || z != 1 {
            let (kernel, block) = (self.name.clone(), self.block);
            self.wrong(Error::Block {
                kernel,
                block,
                expected: "a multiple of 32 along x alone, for operations of warps",
            });
        }
    }

    /// Bytes of all arrays, each at a multiple of [`SHARED_ALIGN`].
    fn shared_bytes(&self) -> usize {
        let place = |sum: usize| sum.saturating_add(SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
        self.shared.iter().fold(0, |sum, array| place(sum).saturating_add(array.bytes))
    }

    fn finish(mut self) -> Result<Module, Error> {
        let shared = self.shared_bytes();
        if shared > SHARED_LIMIT {
            let kernel = self.name.clone();
            self.wrong(Error::SharedMemory { kernel, bytes: shared });
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        let text = self.text(shared);
        let Self { name, parameters, target, block, .. } = self;
        Ok(Module { name, text, parameters, target, shared, block })
    }

    /// Header, declarations and body.
    fn text(&self, shared: usize) -> String {
        let mut text = String::with_capacity(self.body.len() + 1024);
        let Target { isa: (major, minor), capability } = self.target;
        let _ = write!(text, ".version {major}.{minor}\n.target sm_{capability}\n.address_size 64\n\n");
        let list: Vec<String> =
            self.parameters.iter().map(|p| format!("    .param .{} param_{}", p.suffix, p.name)).collect();
        let [x, y, z] = self.block;
        let _ = write!(text, ".visible .entry {}(\n{}\n)\n.reqntid {x}, {y}, {z}\n{{\n", self.name, list.join(",\n"));
        for (class, count) in CLASSES.iter().zip(self.counts).filter(|(_, count)| *count > 0) {
            let (ty, prefix) = class.names();
            let _ = writeln!(text, "    .reg .{ty} {prefix}<{count}>;");
        }
        for array in &self.shared {
            let _ = writeln!(text, "    {}", array.declaration);
        }
        if shared > 0 {
            let _ = writeln!(text, "    // {shared} bytes of shared memory");
        }
        text.push('\n');
        text.push_str(&self.body);
        text.push_str("    ret;\n}\n");
        text
    }
}

/// A place in a kernel where instructions are written. `F` says which threads come there: all of a block ([`Converged`]), some
/// of them ([`Diverged`]), or those that a predicate names ([`Guarded`]).
#[derive(Debug)]
pub struct Scope<'w, F> {
    writer: &'w mut Writer,
    flow: PhantomData<F>,
}

/// Writes a kernel of blocks of `block` threads.
///
/// # Errors
/// If the block has no thread or over 1024, if a name is none of PTX's or there twice, or if shared arrays have over
/// [`SHARED_LIMIT`] bytes.
///
/// ```
/// use hecate_ptx::{Axis, kernel};
///
/// // y[i] = 2 x[i] for n elements, in blocks of 128 threads.
/// let module = kernel("double", [128, 1, 1], |k| {
///     let (x, y) = (k.pointer::<f32>("x"), k.pointer::<f32>("y"));
///     let n = k.parameter::<u32>("n");
///     let block = k.block_index(Axis::X);
///     let thread = k.thread_index(Axis::X);
///     let i = k.mul_add(block, 128u32, thread);
///     let inside = k.lt(i, n);
///     k.if_(inside, |k| {
///         let (from, to) = (k.at(x, i), k.at(y, i));
///         let value = k.load(from);
///         let twice = k.add(value, value);
///         k.store(to, twice);
///     });
/// })?;
/// assert!(module.text().contains(".visible .entry double("));
/// # Ok::<(), hecate_ptx::Error>(())
/// ```
pub fn kernel(name: &str, block: [u32; 3], body: impl FnOnce(&mut Scope<'_, Converged>)) -> Result<Module, Error> {
    let mut writer = Writer {
        name: name.to_owned(),
        block,
        parameters: Vec::new(),
        shared: Vec::new(),
        body: String::new(),
        depth: 0,
        guard: None,
        counts: [0; CLASSES.len()],
        labels: 0,
        target: Target::LEAST,
        error: None,
    };
    writer.name(name, false);
    let threads = block.iter().fold(1u32, |product, &axis| product.saturating_mul(axis));
    if threads == 0 || threads > 1024 || block[2] > 64 {
        let kernel = name.to_owned();
        writer.wrong(Error::Block { kernel, block, expected: "1 to 1024 threads, at most 64 along z" });
    }
    body(&mut Scope { writer: &mut writer, flow: PhantomData });
    writer.finish()
}

/// An axis of a grid or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The first, whose neighbours are in one warp.
    X,
    /// The second.
    Y,
    /// The third.
    Z,
}

impl Axis {
    fn letter(self) -> char {
        match self {
            Self::X => 'x',
            Self::Y => 'y',
            Self::Z => 'z',
        }
    }
}

impl<F> Scope<'_, F> {
    /// A line of explanation in the text. Line breaks become spaces.
    ///
    /// ```
    /// # use hecate_ptx::{kernel};
    /// # kernel("example", [64, 1, 1], |k| {
    /// k.comment("a barrier, for the sake of it");
    /// k.barrier();
    /// # })?;
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn comment(&mut self, text: &str) {
        self.writer.indent(1);
        let _ = writeln!(self.writer.body, "// {}", text.replace(['\n', '\r'], " "));
    }

    /// Number of the thread in its block along an axis.
    pub fn thread_index(&mut self, axis: Axis) -> Reg<u32> {
        let index = self.writer.register::<u32>();
        self.writer.line(format_args!("mov.u32 {index}, %tid.{}", axis.letter()));
        index
    }
}

impl Scope<'_, Converged> {
    /// A parameter that is a number. In the text its name begins with `param_`.
    pub fn parameter<T: Type>(&mut self, name: &str) -> Uniform<T> {
        let taken = self.writer.parameters.iter().any(|other| other.name == name);
        self.writer.name(name, taken);
        self.writer.parameters.push(Parameter { name: name.to_owned(), suffix: T::SUFFIX });
        let value = self.writer.register::<T>();
        self.writer.line(format_args!("ld.param.{} {value}, [param_{name}]", T::SUFFIX));
        Uniform(value)
    }

    /// A parameter that is the address of an array in global memory.
    pub fn pointer<E: Element>(&mut self, name: &str) -> Pointer<E, Global> {
        let Uniform(generic) = self.parameter::<u64>(name);
        let base = self.writer.register::<u64>();
        self.writer.line(format_args!("cvta.to.global.u64 {base}, {generic}"));
        Pointer::new(base)
    }

    /// Number of the block in the grid along an axis.
    pub fn block_index(&mut self, axis: Axis) -> Uniform<u32> {
        self.special("ctaid", axis)
    }

    /// Number of blocks of the grid along an axis.
    pub fn grid_size(&mut self, axis: Axis) -> Uniform<u32> {
        self.special("nctaid", axis)
    }

    fn special(&mut self, name: &str, axis: Axis) -> Uniform<u32> {
        let index = self.writer.register::<u32>();
        self.writer.line(format_args!("mov.u32 {index}, %{name}.{}", axis.letter()));
        Uniform(index)
    }
}
