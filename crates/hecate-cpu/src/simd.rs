//! Loops compiled for the widest vectors of the processor they run on.

use pulp::{Arch, Simd, WithSimd};
use std::sync::OnceLock;

/// Environment variable that, set to `scalar`, keeps every loop of this crate's own away from vector instructions.
const VARIABLE: &str = "HECATE_CPU_SIMD";

/// The level of vector instructions that loops run at: the best there is, or none where [`VARIABLE`] says so.
#[inline]
fn level() -> Arch {
    static LEVEL: OnceLock<Arch> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(level) if level == "scalar" => Arch::Scalar,
        _ => Arch::new(),
    })
}

/// Whether vector instructions were forbidden from outside.
pub(crate) fn is_scalar() -> bool {
    matches!(level(), Arch::Scalar)
}

/// Runs a kernel at the best level of vector instructions.
#[inline(always)]
pub(crate) fn dispatch<K: WithSimd>(kernel: K) -> K::Output {
    level().dispatch(kernel)
}

struct Call<T, F>(T, F);

impl<T, R, F: Fn(T) -> R> WithSimd for Call<T, F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> R {
        (self.1)(self.0)
    }
}

/// `work(argument)`, compiled once for each level of vector instructions; the best level here is run.
///
/// All that `work` changes goes through `argument`, and `work` is written `#[inline(always)] |..| ..`. This way the
/// body itself is what is compiled again: a closure that is called as another kind than its own goes through a shim
/// that knows nothing of `inline(always)`, and then all the wide code there is calls a narrow one.
#[inline(always)]
pub(crate) fn wide<T, R>(argument: T, work: impl Fn(T) -> R) -> R {
    dispatch(Call(argument, work))
}

/// `N` vectors from the front of `x`, which holds as many.
#[inline(always)]
pub(crate) fn load<S: Simd, const N: usize>(_: S, x: &[f32]) -> [S::f32s; N] {
    let (vectors, _) = S::as_simd_f32s(&x[..N * S::F32_LANES]);
    std::array::from_fn(|n| vectors[n])
}

/// The way back of [`load`].
#[inline(always)]
pub(crate) fn store<S: Simd, const N: usize>(_: S, x: &mut [f32], values: [S::f32s; N]) {
    let (vectors, _) = S::as_mut_simd_f32s(&mut x[..N * S::F32_LANES]);
    vectors.copy_from_slice(&values);
}

/// `N` vectors from the front of `x`; zeros where it ends before.
#[inline(always)]
pub(crate) fn load_part<S: Simd, const N: usize>(simd: S, x: &[f32]) -> [S::f32s; N] {
    if x.len() >= N * S::F32_LANES {
        return load(simd, x);
    }
    std::array::from_fn(|n| simd.partial_load_f32s(x.get(n * S::F32_LANES..).unwrap_or_default()))
}

/// The way back of [`load_part`]: what lies behind the end of `x` is dropped.
#[inline(always)]
pub(crate) fn store_part<S: Simd, const N: usize>(simd: S, x: &mut [f32], values: [S::f32s; N]) {
    if x.len() >= N * S::F32_LANES {
        return store(simd, x, values);
    }
    for (x, values) in x.chunks_mut(S::F32_LANES).zip(values) {
        simd.partial_store_f32s(x, values);
    }
}

/// Work that goes through a matrix in blocks of columns, of some vectors each.
pub(crate) trait Panel<S: Simd> {
    /// Columns from `column` on, `N` vectors of them.
    fn panel<const N: usize>(&mut self, simd: S, column: usize);
}

/// Goes through `columns` columns, in blocks as wide as registers allow, up to whole vectors.
#[inline(always)]
pub(crate) fn panels<S: Simd, P: Panel<S>>(simd: S, columns: usize, mut work: P) {
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
