//! Operations that a rule's equations ask for: multiplications and additions of products with the memory, forward. What
//! only scales it, and what a form in chunks does beyond that, is not counted, so that figures of all forms compare.

use hecate::{
    Rule,
    families::{Channel, ChannelRule, Deep, DeepRule, Linear, LinearRule, Own, RewriteKey},
    rules::{Atlas, Lattice, Lif, Trellis},
};

/// A rule whose operations are known.
///
/// The parameter names the family, so that each family has one impl for all of its rules.
pub(super) trait Counted<F = <Self as Rule>::Family>: Rule {
    /// Of one token and head, for keys and values of these widths.
    // `key` is `K`, `value` is `V`: a memory of one matrix is `[K,V]`.
    fn operations(self, key: usize, value: usize) -> f64;
}

/// Products of vectors with matrices, or of two vectors into one, of `rows × columns`.
///
/// A multiplication and an addition for each element of the matrix.
fn products(count: u32, rows: usize, columns: usize) -> f64 {
    2.0 * f64::from(count) * rows as f64 * columns as f64
}

/// Written and read; who erases, or is taught by an error, asks for a prediction before.
impl<R: LinearRule> Counted<Linear> for R {
    fn operations(self, key: usize, value: usize) -> f64 {
        let spec = self.spec();
        products(2 + u32::from(spec.erases() || spec.frozen.is_some()), key, value)
    }
}

/// (111), (113) and (114); an erase with a key of its own is one more write.
impl<R: ChannelRule> Counted<Channel> for R {
    fn operations(self, key: usize, value: usize) -> f64 {
        let rewrites = R::FORM.erases() && R::FORM.rewrite != RewriteKey::Key;
        products(2 + u32::from(R::FORM.erases()) + u32::from(rewrites), key, value)
    }
}

/// Prediction, gradient, read: (33)–(46).
impl<R: DeepRule> Counted<Deep> for R {
    fn operations(self, key: usize, value: usize) -> f64 {
        match self.spec().structure.hidden(key) {
            None => products(3, key, value),
            // Back through the second layer in addition.
            Some(hidden) => products(3, key, hidden) + products(4, hidden, value),
        }
    }
}

/// (60)–(64) with the norm.
impl Counted<Own> for Lattice {
    fn operations(self, key: usize, value: usize) -> f64 {
        products(6, key, value)
    }
}

/// (100) and (103): a current in and a spike out.
impl Counted<Own> for Lif {
    fn operations(self, key: usize, value: usize) -> f64 {
        products(2, key, value)
    }
}

/// (75) and (76): for either memory the code's logits, the write, and the read.
impl Counted<Own> for Trellis {
    fn operations(self, key: usize, value: usize) -> f64 {
        products(3, self.slots as usize, key) + products(3, self.slots as usize, value)
    }
}

impl Counted<Own> for Atlas {
    fn operations(self, key: usize, value: usize) -> f64 {
        let (less, more) = (key.min(value), key.max(value));
        // (89), (90): `X Xᵀ`, its square, and a product with `X`.
        let step =
            products(less as u32, less, more) + products(less as u32, less, less) + products(less as u32, less, more);
        // Each token of the window is predicted and written, and the query read.
        products(2 * self.window + 1, key, value) + f64::from(self.newton_schulz) * step
    }
}
