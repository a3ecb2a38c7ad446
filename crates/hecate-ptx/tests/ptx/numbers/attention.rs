//! Softmax attention.

use super::{F32, close, random, run, upload};
use crate::interpreter::Device;
use hecate_ptx::Attention;

/// What one run is of.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tokens: usize,
    heads: usize,
    key_heads: usize,
    columns: usize,
    causal: bool,
}

impl Sizes {
    fn arrays(&self, seed: u64) -> [Vec<f32>; 3] {
        let head = self.tokens * self.columns;
        [
            random(seed, self.heads * head),
            random(seed + 1, self.key_heads * head),
            random(seed + 2, self.key_heads * head),
        ]
    }

    /// The row of one query, in float64.
    fn row(&self, head: usize, token: usize, [q, k, v]: [&[f32]; 3]) -> Vec<f64> {
        let key_head = head / (self.heads / self.key_heads);
        let row = |array: &[f32], head: usize, token: usize| -> Vec<f64> {
            let first = (head * self.tokens + token) * self.columns;
            array[first..first + self.columns].iter().copied().map(f64::from).collect()
        };
        let query = row(q, head, token);
        let seen = if self.causal { token + 1 } else { self.tokens };
        let scores: Vec<f64> = (0..seen)
            .map(|key| query.iter().zip(row(k, key_head, key)).map(|(q, k)| q * k).sum::<f64>())
            .map(|product| product / (self.columns as f64).sqrt())
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; self.columns];
        for (key, weight) in weights.iter().enumerate() {
            out.iter_mut().zip(row(v, key_head, key)).for_each(|(out, v)| *out += weight / sum * v);
        }
        out
    }

    fn check(&self, [q, k, v]: [&[f32]; 3]) {
        let Self { tokens, heads, key_heads, columns, causal } = *self;
        let mut device = Device::default();
        let inputs = [q, k, v].map(|array| upload(&mut device, array));
        let output = device.output(q.len() * 4);
        let specification = Attention::new(tokens as u32, [heads as u32, key_heads as u32], columns as u32, causal);
        let arguments = [inputs[0], inputs[1], inputs[2], output, (tokens as u32).into()];
        run(specification.expect("sizes").into(), &mut device, &arguments);
        let rows = (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token)));
        let truth: Vec<f64> = rows.flat_map(|(head, token)| self.row(head, token, [q, k, v])).collect();
        close(&format!("{self:?}"), &device.read(output, f32::from_le_bytes), &truth, F32);
    }
}

/// Tokens around tiles of 8 queries and of 32 keys, columns that are no multiple of a warp or of a loop's steps.
#[test]
fn attention() {
    let sizes = [(1, 1, 1, 1), (7, 1, 1, 5), (33, 2, 1, 32), (70, 4, 2, 20), (40, 3, 3, 70), (9, 1, 1, 256)];
    for (tokens, heads, key_heads, columns) in sizes {
        for causal in [false, true] {
            let sizes = Sizes { tokens, heads, key_heads, columns, causal };
            let [mut q, k, v] = sizes.arrays(20);
            // Scores spread over some powers of e.
            q.iter_mut().for_each(|q| *q *= 8.0);
            sizes.check([&q, &k, &v]);
        }
    }
}

/// NaN and infinities reach the queries that see them, and no other. The last token's keys are seen by all, or only by itself.
#[test]
fn specials() {
    for causal in [false, true] {
        let sizes = Sizes { tokens: 40, heads: 2, key_heads: 1, columns: 36, causal };
        let [q, k, v] = sizes.arrays(30);
        let last = v.len() - 1;
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = v.clone();
            values[last] = special;
            sizes.check([&q, &k, &values]);
            let mut keys = k.clone();
            keys[last] = special;
            sizes.check([&q, &keys, &v]);
        }
    }
}

/// Scores of −∞ have no weight, also where they are all of a tile's.
#[test]
fn keys_without_weight() {
    let sizes = Sizes { tokens: 70, heads: 1, key_heads: 1, columns: 4, causal: false };
    let [q, mut k, v] = sizes.arrays(40);
    let q: Vec<f32> = q.into_iter().map(|q| q.abs() + 0.1).collect();
    k[..32 * 4].fill(f32::NEG_INFINITY);
    sizes.check([&q, &k, &v]);
    k.fill(f32::NEG_INFINITY);
    sizes.check([&q, &k, &v]);
}
