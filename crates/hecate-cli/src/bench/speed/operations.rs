//! Operations that a rule's equations ask for: multiplications and additions of products with the memory, forward. What
//! only scales it, and what a form in chunks does beyond that, is not counted, so that figures of all forms compare.

use hecate_core::{Rule, rules::*};

/// A rule whose operations are known.
pub(super) trait Counted: Rule {
    /// Of one token and head, for keys and values of these widths.
    fn operations(self, key: usize, value: usize) -> f64;
}

/// Products of vectors with matrices, or of two vectors into one, of `rows × columns`.
fn products(count: u32, rows: usize, columns: usize) -> f64 {
    2.0 * f64::from(count) * rows as f64 * columns as f64
}

/// Products with one matrix.
macro_rules! matrices {
    ($($rule:ident $count:literal)*) => { $(
        impl Counted for $rule {
            fn operations(self, key: usize, value: usize) -> f64 {
                products($count, key, value)
            }
        }
    )* };
}
// Written and read; the others are asked for a prediction before. Lattice: (60)–(64) with the norm.
matrices! { Hebbian 2 Delta 3 Dgd 3 Titans 3 Lattice 6 }

/// Prediction, gradient, read: (33)–(46).
macro_rules! deep {
    ($($rule:ty),*) => { $(
        impl Counted for $rule {
            fn operations(self, key: usize, value: usize) -> f64 {
                match self.deep().structure.hidden(key) {
                    None => products(3, key, value),
                    // Back through the second layer in addition.
                    Some(hidden) => products(3, key, hidden) + products(4, hidden, value),
                }
            }
        }
    )* };
}
deep!(TitansMlp, Moneta, MonetaMatrix, Yaad, YaadMatrix, YaadMomentum, Memora, MemoraMatrix);

impl Counted for Trellis {
    fn operations(self, key: usize, value: usize) -> f64 {
        products(3, self.slots as usize, key) + products(3, self.slots as usize, value)
    }
}

impl Counted for Atlas {
    fn operations(self, key: usize, value: usize) -> f64 {
        let (less, more) = (key.min(value), key.max(value));
        // (89), (90): `X Xᵀ`, its square, and a product with `X`.
        let step =
            products(less as u32, less, more) + products(less as u32, less, less) + products(less as u32, less, more);
        products(2 * self.window + 1, key, value) + f64::from(self.newton_schulz) * step
    }
}
