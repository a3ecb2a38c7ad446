//! Loops compiled for the widest vectors of the processor they run on.

use pulp::{Arch, Simd, WithSimd};

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
    Arch::new().dispatch(Call(argument, work))
}
