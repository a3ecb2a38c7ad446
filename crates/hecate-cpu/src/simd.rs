//! Loops compiled for the widest vectors of the processor they run on.
//!
//! `pulp` compiles a kernel once for each level of vector instructions and picks the best one at run time.
//! Only functions inlined into the kernel are compiled with it, hence `#[inline(always)]` on every loop body.
//! A call out of it would run at the level that the whole program is compiled for.

use pulp::{Arch, Simd, WithSimd};
use std::{cell::Cell, sync::OnceLock};

/// Environment variable: `scalar` keeps every loop of this crate away from vector instructions.
const VARIABLE: &str = "HECATE_CPU_SIMD";

thread_local! {
    /// Whether loops on this thread keep away from vector instructions: threads of the reference's pool do.
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Keeps every loop on this thread away from vector instructions, from now on.
pub(crate) fn forbid() {
    FORBIDDEN.set(true);
}

/// The level that loops run at: the best there is, or none where [`VARIABLE`] or [`forbid`] says so. The variable is read
/// once a process.
#[inline]
fn level() -> Arch {
    static LEVEL: OnceLock<Arch> = OnceLock::new();
    if FORBIDDEN.get() {
        return Arch::Scalar;
    }
    *LEVEL.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(level) if level == "scalar" => Arch::Scalar,
        _ => Arch::new(),
    })
}

/// Whether vector instructions were forbidden from outside; `gemm` is then avoided too.
pub(crate) fn is_scalar() -> bool {
    matches!(level(), Arch::Scalar)
}

/// Runs a kernel at the best level of vector instructions.
/// The jump to its copy costs a few nanoseconds, so kernels are at least as long as a row.
#[inline(always)]
pub(crate) fn dispatch<K: WithSimd>(kernel: K) -> K::Output {
    level().dispatch(ScalarApart(kernel))
}

/// A kernel whose copy without vector instructions is a function of its own, as the other copies are.
/// Inlined, it would stand in every caller, which are large as they are and slow to compile.
struct ScalarApart<K>(K);

impl<K: WithSimd> WithSimd for ScalarApart<K> {
    type Output = K::Output;

    /// `S` is known when this is compiled, so the branch costs nothing.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> K::Output {
        if S::IS_SCALAR { apart(self.0, simd) } else { self.0.with_simd(simd) }
    }
}

/// The copy without vector instructions, compiled once for each kernel.
#[inline(never)]
fn apart<K: WithSimd, S: Simd>(kernel: K, simd: S) -> K::Output {
    kernel.with_simd(simd)
}

/// An argument and the closure that is compiled again for it.
struct WideClosure<T, F>(T, F);

impl<T, R, F: Fn(T) -> R> WithSimd for WideClosure<T, F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> R {
        (self.1)(self.0)
    }
}

/// `work(argument)`, compiled once for each level of vector instructions; the best level here is run.
///
/// All that `work` changes goes through `argument`, and `work` is written `#[inline(always)] |..| ..`.
/// This way the body itself is what is compiled again.
/// A closure called as another kind than its own goes through a shim that is not inlined.
/// All the wide code would then call a narrow one.
#[inline(always)]
pub(crate) fn wide<T, R>(argument: T, work: impl Fn(T) -> R) -> R {
    dispatch(WideClosure(argument, work))
}

/// `N` vectors from the front of `x`, which holds at least as many.
#[inline(always)]
pub(crate) fn load<S: Simd, const N: usize>(_: S, x: &[f32]) -> [S::f32s; N] {
    let (vectors, _) = S::as_simd_f32s(&x[..N * S::F32_LANES]);
    std::array::from_fn(|n| vectors[n])
}

/// Writes `N` vectors to the front of `x`: the way back of [`load`].
#[inline(always)]
pub(crate) fn store<S: Simd, const N: usize>(_: S, x: &mut [f32], values: [S::f32s; N]) {
    let (vectors, _) = S::as_mut_simd_f32s(&mut x[..N * S::F32_LANES]);
    vectors.copy_from_slice(&values);
}

/// `N` vectors from the front of `x`, with zeros after its end.
/// Whole blocks take the first branch, which is a plain load.
#[inline(always)]
pub(crate) fn load_part<S: Simd, const N: usize>(simd: S, x: &[f32]) -> [S::f32s; N] {
    if x.len() >= N * S::F32_LANES {
        return load(simd, x);
    }
    std::array::from_fn(|n| simd.partial_load_f32s(x.get(n * S::F32_LANES..).unwrap_or_default()))
}

/// The way back of [`load_part`]: what lies after the end of `x` is dropped.
#[inline(always)]
pub(crate) fn store_part<S: Simd, const N: usize>(simd: S, x: &mut [f32], values: [S::f32s; N]) {
    if x.len() >= N * S::F32_LANES {
        return store(simd, x, values);
    }
    for (x, values) in x.chunks_mut(S::F32_LANES).zip(values) {
        simd.partial_store_f32s(x, values);
    }
}

/// Work that goes through a matrix in panels: blocks of a few vectors' width of columns.
pub(crate) trait Panel<S: Simd> {
    /// Columns from `column` on, `N` vectors of them. `N` is a constant, so that sums stay in registers.
    fn panel<const N: usize>(&mut self, simd: S, column: usize);
}

/// Goes through `columns` columns in panels, rounded up to whole vectors.
///
/// With 32 registers (AVX-512, NEON) a panel is 4 vectors wide, with 16 registers 2.
/// A register tile of 4 rows then fills half of the registers with sums.
#[inline(always)]
pub(crate) fn panels<S: Simd, P: Panel<S>>(simd: S, columns: usize, mut work: P) {
    // Each width is a compiled copy of the kernel's loop; the last columns take narrower ones.
    let (many, vectors) = (S::REGISTER_COUNT >= 32, columns.div_ceil(S::F32_LANES));
    let mut done = 0;
    while done < vectors {
        let column = done * S::F32_LANES;
        done += match vectors - done {
            4.. if many => {
                work.panel::<4>(simd, column);
                4
            }
            2.. => {
                work.panel::<2>(simd, column);
                2
            }
            _ => {
                work.panel::<1>(simd, column);
                1
            }
        };
    }
}

/// A kernel whose columns do not interact: it runs panel after panel on the calling thread.
pub(crate) trait ColumnKernel: Sized {
    /// Columns in all.
    fn columns(&self) -> usize;

    /// Columns from `column` on, `N` vectors of them. At the right edge some of these lie outside.
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize);

    /// All columns, at the best level of vector instructions.
    #[inline(always)]
    fn run(mut self) {
        dispatch(AllColumns(&mut self));
    }
}

/// Turns a [`ColumnKernel`] into a kernel of `pulp`: by its address, which a register holds.
struct AllColumns<'a, K>(&'a mut K);

impl<K: ColumnKernel> WithSimd for AllColumns<'_, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        panels(simd, self.0.columns(), self.0);
    }
}

impl<S: Simd, K: ColumnKernel> Panel<S> for &mut K {
    #[inline(always)]
    fn panel<const N: usize>(&mut self, simd: S, column: usize) {
        K::panel::<S, N>(self, simd, column);
    }
}
