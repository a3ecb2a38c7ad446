//! Attention in blocks against its definition in 64 bits, whatever the number of threads.

use crate::Cpu;
use hecate_core::{
    Sequences, Tensor,
    primitives::{Attended, AttentionInputs, AttentionOptions, Cache, Prefix, attention},
};

/// Sizes of a call: lengths of sequences, query heads to each of two key-value heads, window, prefix.
struct Sizes {
    lengths: &'static [usize],
    group: usize,
    window: usize,
    prefix: usize,
    cached: bool,
}

/// Key-value heads, and widths of keys and values.
const HEADS: usize = 2;
const KEY: usize = 5;
const VALUE: usize = 3;

/// Blocks that end inside windows, many blocks and few, runs longer than one piece, keys shared out to parts.
const CALLS: [Sizes; 5] = [
    Sizes { lengths: &[150], group: 1, window: 150, prefix: 0, cached: false },
    Sizes { lengths: &[1, 97, 40], group: 2, window: 37, prefix: 3, cached: true },
    Sizes { lengths: &[700], group: 1, window: 9, prefix: 0, cached: false },
    Sizes { lengths: &[3], group: 3, window: 3000, prefix: 600, cached: true },
    Sizes { lengths: &[130, 70], group: 1, window: 300, prefix: 0, cached: true },
];

// Several blocks of each kind stand side by side in every call but the fourth, which has three tokens.
/// Numbers from −1 to 1 that look like chance.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    // A prime step through residues of another prime; seeds start elsewhere.
    (0..count).map(|i| (((i + 7 * seed) * 7919 % 2003) as f32 / 1001.0 - 1.0) * 1.5).collect()
}

impl Sizes {
    fn kept(&self) -> usize {
        self.window - 1
    }

    fn rows(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Slots that hold tokens: not the first ones, and a few others not either.
    fn valid(&self) -> Vec<f32> {
        // Runs of ten slots, more than one a block.
        let slots = (0..self.lengths.len()).flat_map(|_| 0..self.kept());
        slots.map(|at| f32::from(at > 1 && at % 11 != 5)).collect()
    }

    /// In the order of [`AttentionInputs::iter`]; what is in empty slots is NaN.
    fn arrays(&self) -> Vec<Vec<f32>> {
        let (rows, slots) = (self.rows(), self.lengths.len() * self.kept());
        let past = |width: usize, seed| -> Vec<f32> {
            let valid = self.valid().into_iter().flat_map(|valid| std::iter::repeat_n(valid, HEADS * width));
            numbers(slots * HEADS * width, seed)
                .into_iter()
                .zip(valid)
                .map(|(x, v)| if v > 0.5 { x } else { f32::NAN })
                .collect()
        };
        vec![
            numbers(rows * HEADS * self.group * KEY, 1),
            numbers(rows * HEADS * KEY, 2),
            numbers(rows * HEADS * VALUE, 3),
            past(KEY, 4),
            past(VALUE, 5),
            numbers(self.prefix * HEADS * KEY, 6),
            numbers(self.prefix * HEADS * VALUE, 7),
        ]
    }

    fn dy(&self) -> Vec<f32> {
        numbers(self.rows() * HEADS * self.group * VALUE, 8)
    }

    fn options(&self) -> AttentionOptions {
        AttentionOptions { window: self.window, scale: 0.5 }
    }

    /// `y`, `lse` and gradients, in the order of [`Sizes::arrays`].
    fn found(&self, device: &Cpu) -> Vec<Vec<f32>> {
        let (rows, n, kept) = (self.rows(), self.lengths.len(), self.kept());
        // Arrays come in the order of the arguments.
        let mut arrays = self.arrays().into_iter();
        let mut next = |axes: &[usize]| Tensor::from_f32(device, axes, arrays.next().unwrap()).unwrap();
        let q = next(&[1, rows, HEADS * self.group, KEY]);
        let (k, v) = (next(&[1, rows, HEADS, KEY]), next(&[1, rows, HEADS, VALUE]));
        // A cache is made in any case, so that those after it are found.
        let (past_k, past_v) = (next(&[n, kept, HEADS, KEY]), next(&[n, kept, HEADS, VALUE]));
        let valid = Tensor::from_f32(device, [n, kept], self.valid()).unwrap();
        let cache = self.cached.then_some(Cache { k: past_k, v: past_v, valid });
        let prefix = (self.prefix > 0)
            .then(|| Prefix { k: next(&[self.prefix, HEADS, KEY]), v: next(&[self.prefix, HEADS, VALUE]) });
        let inputs = AttentionInputs { q, k, v, cache, prefix };
        let Attended { y, pass } = attention(self.options(), &Sequences::packed(self.lengths), inputs).unwrap();
        let dy = Tensor::from_f32(device, y.shape().clone(), self.dy()).unwrap();
        // Before the backward takes the pass.
        let lse = pass.lse().clone();
        let AttentionInputs { q, k, v, cache, prefix } = pass.backward(&dy, None).unwrap();
        // What is absent has no gradient; `valid` has none anyway.
        let mut all = vec![y, lse, q, k, v];
        all.extend(cache.into_iter().flat_map(|cache| [cache.k, cache.v]));
        all.extend(prefix.into_iter().flat_map(|prefix| [prefix.k, prefix.v]));
        all.iter().map(|x| x.to_f32().unwrap()).collect()
    }

    /// The same by the definition, query by query.
    fn truth(&self) -> Vec<Vec<f64>> {
        let arrays = self.arrays();
        let dy = self.dy();
        // Results, then a gradient for every argument.
        let sizes = arrays.iter().map(Vec::len);
        let queries = self.rows() * HEADS * self.group;
        let mut out: Vec<Vec<f64>> =
            [queries * VALUE, queries].into_iter().chain(sizes).map(|count| vec![0.0; count]).collect();
        let (valid, mut start) = (self.valid(), 0);
        for (n, &length) in self.lengths.iter().enumerate() {
            // Query by query, each with the list of what it sees.
            for (t, head) in (0..length).flat_map(|t| (0..HEADS * self.group).map(move |head| (t, head))) {
                // Arrays of keys by number, and rows of one head in them.
                let prefix = (0..self.prefix).map(|i| (5, i));
                let slots = (t..self.kept()).map(|at| n * self.kept() + at);
                let slots = slots.filter(|&at| self.cached && valid[at] > 0.5).map(|i| (3, i));
                let near = (t.saturating_sub(self.kept())..=t).map(|t| (1, start + t));
                let rows = |(array, i): (usize, usize)| (array, i * HEADS + head / self.group);
                // Query heads of a group share a key-value head.
                let seen: Vec<_> = prefix.chain(slots).chain(near).map(rows).collect();
                query(&arrays, &dy, (start + t) * HEADS * self.group + head, &seen, &mut out);
            }
            start += length;
        }
        // Gradients of what the call did not have.
        if !self.cached {
            out.drain(5..7);
        }
        out.retain(|x| !x.is_empty());
        out
    }
}

/// One query's results, and what it adds to gradients.
fn query(arrays: &[Vec<f32>], dy: &[f32], at: usize, seen: &[(usize, usize)], out: &mut [Vec<f64>]) {
    let row = |x: &[f32], i: usize, width: usize| -> Vec<f64> {
        x[i * width..][..width].iter().map(|&x| f64::from(x)).collect()
    };
    let dot = |x: &[f64], y: &[f64]| -> f64 { x.iter().zip(y).map(|(x, y)| x * y).sum() };
    // All in 64 bits, from the 32-bit numbers that the device has.
    let (q, dy) = (row(&arrays[0], at, KEY), row(dy, at, VALUE));
    let k: Vec<_> = seen.iter().map(|&(array, i)| row(&arrays[array], i, KEY)).collect();
    // Tokens, cache and prefix have their values right after their keys.
    let v: Vec<_> = seen.iter().map(|&(array, i)| row(&arrays[array + 1], i, VALUE)).collect();
    // No maximum is taken off: scores are small.
    let total: f64 = k.iter().map(|k| (0.5 * dot(&q, k)).exp()).sum();
    let p: Vec<f64> = k.iter().map(|k| (0.5 * dot(&q, k)).exp() / total).collect();
    out[1][at] = total.ln();
    let along: f64 = p.iter().zip(&v).map(|(p, v)| p * dot(&dy, v)).sum();
    for (((&(array, i), p), k), v) in seen.iter().zip(&p).zip(&k).zip(&v) {
        // The softmax's gradient, with the scale of the scores.
        let ds = 0.5 * p * (dot(&dy, v) - along);
        (0..VALUE).for_each(|c| out[0][at * VALUE + c] += p * v[c]);
        (0..KEY).for_each(|c| out[2][at * KEY + c] += ds * k[c]);
        (0..KEY).for_each(|c| out[2 + array][i * KEY + c] += ds * q[c]);
        (0..VALUE).for_each(|c| out[3 + array][i * VALUE + c] += p * dy[c]);
    }
}

#[test]
fn blocks_give_what_the_definition_says_whatever_the_number_of_threads() {
    let devices = [1, 2, 3].map(|threads| Cpu::with_threads(threads).unwrap());
    for (number, sizes) in CALLS.iter().enumerate() {
        // One device's numbers against the definition, and all devices' bits against each other.
        let truth = sizes.truth();
        let found = devices.each_ref().map(|device| sizes.found(device));
        for (slot, (found, truth)) in found[0].iter().zip(&truth).enumerate() {
            let error: f64 = found.iter().zip(truth).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum();
            let size: f64 = truth.iter().map(|x| x * x).sum();
            // Of a root mean square; a NaN fails.
            assert!((error / size).sqrt() < 3e-6, "array {slot} of call {number}: {error} of {size}");
        }
        assert_eq!(found[0].len(), truth.len());
        // Bits, so that −0 and 0 are told apart.
        let bits = found.map(|found| found.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        assert!(bits[0] == bits[1] && bits[0] == bits[2], "call {number} depends on the number of threads");
    }
}
