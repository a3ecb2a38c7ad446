//! Sliding-window attention.
//!
//! Queries are `[B,T,G·Hkv,d]`, keys `[B,T,Hkv,d]`, values `[B,T,Hkv,dv]`: `G` query heads share one of keys and
//! values. A query sees itself, the `W − 1` places before it and the `P` persistent tokens of the prefix. Before the
//! first token of a sequence lies the cache, `[N,W−1,Hkv,·]`, whose places may be empty.

mod nan;

use super::{CaseResult, Output, PrimitiveCase, Slot};
use crate::{Array, Random, oracle::Var};
use hecate_core::primitives::Primitives;
use hecate_core::{
    Sequences, Tensor,
    primitives::{self, AttentionInputs, AttentionOptions, Cache, Prefix},
};

/// Sizes of a call.
#[derive(Clone)]
struct AttentionCase {
    /// Rows of all sequences together: `B T`.
    sequences: Sequences,
    /// `B`; 1 where sequences are packed.
    batch: usize,
    /// `Hkv`, and query heads to each.
    heads: (usize, usize),
    /// `d`, `dv`.
    widths: (usize, usize),
    /// `W`, the token itself included: at least 1.
    window: usize,
    /// Whether something lies before the sequences; without it every place there is empty.
    cache: bool,
    /// Whether something uses the cache after the call, so that it has a gradient.
    after: bool,
    /// `P`, 0 for none.
    prefix: usize,
}

/// Windows wider and narrower than the text, groups of heads, caches half full, persistent tokens, packing.
pub fn attention<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    let call = |sequences: Sequences, batch, heads, widths, window| AttentionCase {
        sequences,
        batch,
        heads,
        widths,
        window,
        cache: false,
        after: true,
        prefix: 0,
    };
    // A window wider than the text, one narrower, and one that sequences of 1 to 9 tokens fill or do not.
    let plain = call(Sequences::batch(1, 5), 1, (1, 1), (3, 4), 8);
    let grouped = call(Sequences::batch(2, 7), 2, (2, 2), (4, 3), 3);
    let packed = call(Sequences::packed(&[1, 9, 4]), 1, (1, 3), (5, 2), 4);
    vec![
        case(plain.clone()),
        case(AttentionCase { cache: true, ..plain.clone() }),
        case(AttentionCase { prefix: 2, ..plain }),
        case(grouped.clone()),
        case(AttentionCase { cache: true, prefix: 3, ..grouped }),
        case(packed.clone()),
        case(AttentionCase { cache: true, prefix: 1, ..packed }),
        // Decoding: one query after a cache that is nearly full.
        case(AttentionCase { cache: true, ..call(Sequences::batch(1, 1), 1, (1, 2), (6, 6), 5) }),
        // Longer than the window twice over, so that most rows see a full one.
        case(call(Sequences::batch(1, 37), 1, (1, 1), (16, 8), 16)),
        // Several blocks of queries and of keys, of the cache and of the prefix.
        case(AttentionCase { cache: true, prefix: 3, ..call(Sequences::packed(&[70, 2]), 1, (1, 1), (4, 3), 33) }),
        // A cache so long that its keys are shared out.
        case(AttentionCase { cache: true, ..call(Sequences::batch(1, 1), 1, (1, 2), (3, 2), 1100) }),
    ]
}

/// Several tiles of queries, of keys and of columns: too much for the equations, so one backend is held to another.
pub fn attention_in_tiles<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Lengths and windows that no tile divides, widths from 4 to 260, a prefix longer than a tile.
    let calls = [
        (Sequences::batch(2, 100), 2, (2, 1), (64, 64), 70, true, 3),
        (Sequences::packed(&[1, 130, 67]), 1, (1, 3), (70, 40), 33, true, 70),
        (Sequences::batch(1, 150), 1, (1, 1), (130, 260), 1000, false, 0),
        (Sequences::batch(1, 90), 1, (1, 2), (40, 129), 200, true, 0),
        (Sequences::batch(1, 600), 1, (1, 2), (4, 4), 8, false, 2),
    ];
    cases(calls, true)
}

/// Widths that tensor cores take 16-bit elements of: whole pieces of eight, of one panel of 64 columns, two and four.
pub fn attention_in_narrow_tiles<B: Primitives>() -> Vec<PrimitiveCase<B>> {
    // Causal over several tiles, then narrow windows, groups, caches, packing and prefixes of more than a tile.
    let calls = [
        (Sequences::batch(1, 400), 1, (2, 1), (64, 64), 400, false, 0),
        (Sequences::batch(2, 300), 2, (1, 2), (128, 128), 300, false, 0),
        (Sequences::batch(1, 500), 1, (1, 3), (128, 128), 90, false, 0),
        (Sequences::batch(2, 150), 2, (2, 1), (16, 24), 70, true, 3),
        (Sequences::packed(&[1, 200, 67, 128]), 1, (1, 3), (64, 64), 100, false, 0),
        (Sequences::packed(&[1, 130, 67]), 1, (1, 3), (72, 40), 33, true, 70),
        (Sequences::batch(1, 150), 1, (1, 1), (136, 256), 1000, false, 0),
        (Sequences::batch(1, 190), 1, (1, 2), (256, 200), 120, true, 5),
        (Sequences::batch(1, 2), 1, (1, 2), (128, 64), 300, true, 0),
        (Sequences::packed(&[129, 1, 257]), 1, (2, 4), (40, 128), 300, false, 0),
        (Sequences::batch(1, 300), 1, (2, 1), (128, 128), 130, false, 9),
        // Few queries after a cache so long that its keys are shared out: one, several, of odd widths, of several texts.
        (Sequences::batch(1, 1), 1, (2, 1), (64, 64), 900, true, 0),
        (Sequences::batch(1, 1), 1, (1, 3), (70, 250), 1300, true, 2),
        (Sequences::packed(&[1, 2, 1]), 1, (1, 2), (128, 128), 700, true, 1),
        (Sequences::batch(2, 4), 2, (2, 1), (33, 61), 600, true, 0),
        (Sequences::batch(1, 3), 1, (1, 4), (128, 64), 4000, true, 5),
        (Sequences::packed(&[1, 5]), 1, (2, 1), (64, 64), 1500, true, 0),
    ];
    // Where there is no cache before the call, nothing uses the one after it either.
    cases(calls, false)
}

/// What [`AttentionCase`] says, in a line.
type CaseLine = (Sequences, usize, (usize, usize), (usize, usize), usize, bool, usize);

fn cases<B: Primitives>(calls: impl IntoIterator<Item = CaseLine>, after: bool) -> Vec<PrimitiveCase<B>> {
    let calls = calls.into_iter().map(|(sequences, batch, heads, widths, window, cache, prefix)| AttentionCase {
        sequences,
        batch,
        heads,
        widths,
        window,
        cache,
        after: after || cache,
        prefix,
    });
    calls.map(case).collect()
}

impl AttentionCase {
    /// `[B,T,heads,width]`.
    fn token(&self, heads: usize, width: usize) -> [usize; 4] {
        [self.batch, self.sequences.rows() / self.batch, heads, width]
    }

    /// `[N,P]`.
    fn kept(&self) -> [usize; 2] {
        [self.sequences.count(), self.window - 1]
    }

    /// `[N,P,Hkv,width]`.
    fn past(&self, width: usize) -> [usize; 4] {
        let [count, kept] = self.kept();
        [count, kept, self.heads.0, width]
    }
}

fn case<B: Primitives>(call: AttentionCase) -> PrimitiveCase<B> {
    let random = &mut Random::new(53);
    let (heads, group) = call.heads;
    let (key, value) = call.widths;
    let host = call.clone();
    PrimitiveCase {
        // The cases are told apart in messages by what the equations depend on.
        name: "attention",
        options: format!(
            "starts {:?} heads {heads}×{group} widths {key},{value} window {} cache {} prefix {}",
            call.sequences.starts().collect::<Vec<_>>(),
            call.window,
            call.cache,
            call.prefix
        ),
        slots: arguments(&call, random),
        outputs: results(&call, random),
        forward: Box::new(move |x| equations(&host, x)),
        device: Box::new(move |x, dy| device(&call, x, dy)),
    }
}

/// In the order `q`, `k`, `v`, the cache where there is one, the prefix where there is one.
fn arguments(call: &AttentionCase, random: &mut Random) -> Vec<Slot> {
    let ((heads, group), (key, value)) = (call.heads, call.widths);
    let mut slots = vec![
        Slot::rows("q", random.normals(call.token(heads * group, key))),
        Slot::rows("k", random.normals(call.token(heads, key))),
        Slot::rows("v", random.normals(call.token(heads, value))),
    ];
    if call.cache {
        // Sequence `n` remembers what stands after its first `n + 1` places.
        let [count, kept] = call.kept();
        // So every sequence has empty places, and each another number of them.
        let valid = (0..count * kept).map(|i| f64::from(u8::from(i % kept > i / kept)));
        slots.push(Slot::rows("cache k", random.normals(call.past(key))));
        slots.push(Slot::rows("cache v", random.normals(call.past(value))));
        // The mask of places is 32 bits wide whatever keys are: 1 for a token, 0 for nothing.
        slots.push(Slot { wide: true, ..Slot::elements("cache valid", Array::new([count, kept], valid.collect())) });
    }
    if call.prefix > 0 {
        slots.push(Slot::rows("prefix k", random.normals([call.prefix, heads, key])));
        slots.push(Slot::rows("prefix v", random.normals([call.prefix, heads, value])));
    }
    slots
}

/// In the order `y`, `lse`, the cache after the call.
fn results(call: &AttentionCase, random: &mut Random) -> Vec<Output> {
    let ((heads, group), (key, value)) = (call.heads, call.widths);
    let [batch, tokens, heads, _] = call.token(heads * group, value);
    vec![
        Output::new("y", random.normals([batch, tokens, heads, value])),
        // `log Σ exp`, kept for the backward: it has no gradient of its own.
        Output::wide("lse", Array::full([batch, tokens, heads], 0.0)),
        Output::new("cache k", random.normals(call.past(key))),
        Output::new("cache v", random.normals(call.past(value))),
        // A mask: no gradient either.
        Output::wide("cache valid", Array::full(call.kept(), 0.0)),
    ]
}

/// What one sequence has in mind: per position its keys and values by head, and whether a token stands there.
/// Positions count from the first place of the cache, so token `t` of the sequence stands at `W − 1 + t`.
struct Seen {
    k: Vec<Vec<Var>>,
    v: Vec<Vec<Var>>,
    valid: Vec<bool>,
}

/// `y = softmax(scale q Kᵀ) V` over what a query sees, `lse`, and the cache after the call.
fn equations(call: &AttentionCase, x: &[Vec<Var>]) -> Vec<Vec<Var>> {
    let (heads, group) = call.heads;
    let mut results = vec![Vec::new(); 5];
    // Arguments without a cache are three fewer: keys, values and mask.
    let prefix_at = if call.cache { 6 } else { 3 };
    for (n, rows) in call.sequences.ranges().enumerate() {
        let seen = seen(call, x, n, rows.clone());
        for (t, row) in rows.enumerate() {
            for head in 0..heads * group {
                // Neighbouring query heads share keys and values.
                let kv = head / group;
                // The window ends at the token itself, which stands after the `W − 1` places before the sequence.
                let window = t..t + call.window;
                let near = window.filter(|&j| seen.valid[j]).map(|j| (&seen.k[j][kv], &seen.v[j][kv]));
                let prefix = (0..call.prefix).map(|j| j * heads + kv);
                // Persistent tokens belong to no sequence: every query of every sequence sees all of them.
                let far = prefix.map(|i| (&x[prefix_at][i], &x[prefix_at + 1][i]));
                let (y, lse) = softmax(call.widths.0, &x[0][row * heads * group + head], far.chain(near).collect());
                results[0].push(y);
                results[1].push(lse);
            }
        }
        // The last `W − 1` places, cache and tokens together, are the cache of the next call.
        let after = seen.valid.len() - (call.window - 1);
        let like = &x[0][0];
        results[2].extend(seen.k.into_iter().skip(after).flatten());
        results[3].extend(seen.v.into_iter().skip(after).flatten());
        let valid = seen.valid.into_iter().skip(after);
        results[4].extend(valid.map(|valid| like.constant(1, 1, vec![f64::from(u8::from(valid))])));
    }
    results
}

/// The `W − 1` places before a sequence, and the sequence.
fn seen(call: &AttentionCase, x: &[Vec<Var>], n: usize, rows: std::ops::Range<usize>) -> Seen {
    let (heads, kept) = (call.heads.0, call.window - 1);
    let by_head = |slot: usize, row: usize| x[slot][row * heads..(row + 1) * heads].to_vec();
    // Masked by `valid`, so zeros are never read.
    let nothing = |width: usize| vec![x[0][0].constant(1, width, vec![0.0; width]); heads];
    // Rows of the cache that belong to sequence `n`.
    let places = n * kept..(n + 1) * kept;
    let before = |slot: usize, width: usize| -> Vec<Vec<Var>> {
        places.clone().map(|place| if call.cache { by_head(slot, place) } else { nothing(width) }).collect()
    };
    let (mut k, mut v) = (before(3, call.widths.0), before(4, call.widths.1));
    let mut valid: Vec<bool> = places.map(|place| call.cache && x[5][place].value() > 0.5).collect();
    for row in rows {
        k.push(by_head(1, row));
        v.push(by_head(2, row));
        valid.push(true);
    }
    Seen { k, v, valid }
}

/// One query `[1,d]` over its keys and values: the output `[1,dv]` and `log Σ exp`. No maximum is taken off: logits of
/// normal numbers are far from what 64 bits hold.
fn softmax(width: usize, q: &Var, seen: Vec<(&Var, &Var)>) -> (Var, Var) {
    let weight = |k: &Var| q.dot(&k.t()).scale(scale(width)).exp();
    let weights: Vec<Var> = seen.iter().map(|(k, _)| weight(k)).collect();
    let total = Var::total(weights.iter().cloned());
    let y = Var::total(weights.iter().zip(&seen).map(|(w, (_, v))| w * *v)) * total.recip();
    (y, total.ln())
}

/// `d^{−1/2}` as the 32-bit float that crosses the interface.
fn scale(width: usize) -> f64 {
    f64::from((1.0 / (width as f64).sqrt()) as f32)
}

/// The same through core, forward and backward; lists are in the order of [`arguments`] and [`results`].
fn device<B: Primitives>(
    call: &AttentionCase,
    x: &[Tensor<B>],
    dy: &[Tensor<B>],
) -> hecate_core::Result<CaseResult<B>> {
    let at = |i: usize| x[i].clone();
    let cache = call.cache.then(|| Cache { k: at(3), v: at(4), valid: at(5) });
    let first = if call.cache { 6 } else { 3 };
    let prefix = (call.prefix > 0).then(|| Prefix { k: at(first), v: at(first + 1) });
    let inputs = AttentionInputs { q: at(0), k: at(1), v: at(2), cache, prefix };
    let options = AttentionOptions { window: call.window, scale: scale(call.widths.0) as f32 };
    let after = primitives::attention_cache(options, &call.sequences, &inputs)?;
    let primitives::Attended { y, pass } = primitives::attention(options, &call.sequences, inputs.clone())?;
    // Cloned, since the backward takes the pass.
    let lse = pass.lse().clone();
    // On every device and at every size, since each has kernels of its own.
    nan::reaches_gradients(call, options, &inputs, &dy[0])?;
    shows_nan(call, options, inputs, [&y, &lse])?;
    // The cache after the call is a result with a gradient, which reaches keys and values of this call.
    let dcache = Cache { k: dy[2].clone(), v: dy[3].clone(), valid: dy[4].clone() };
    let grads = pass.backward(&dy[0], call.after.then_some(&dcache))?;
    let mut list = vec![Some(grads.q), Some(grads.k), Some(grads.v)];
    if let Some(cache) = grads.cache {
        list.extend([cache.k, cache.v, cache.valid].map(Some));
    }
    if let Some(prefix) = grads.prefix {
        list.extend([prefix.k, prefix.v].map(Some));
    }
    assert_eq!(list.len(), x.len(), "a gradient for every argument of attention");
    Ok(CaseResult { outputs: vec![y, lse, after.k, after.v, after.valid], grads: list })
}

/// A key that is no number makes none of what the queries that see it read, and changes nothing of the others.
fn shows_nan<B: Primitives>(
    call: &AttentionCase,
    options: AttentionOptions,
    mut inputs: AttentionInputs<Tensor<B>>,
    sound: [&Tensor<B>; 2],
) -> hecate_core::Result<()> {
    let (heads, group) = call.heads;
    // The last element of a token's last key, in the middle of the rows: others come before it and after it.
    let at = call.sequences.rows() / 2;
    let mut k = Array::download(&inputs.k)?;
    k.values[(at + 1) * heads * call.widths.0 - 1] = f64::NAN;
    inputs.k = k.upload(inputs.k.device(), inputs.k.dtype())?;
    let primitives::Attended { y, pass } = primitives::attention(options, &call.sequences, inputs)?;
    // Who sees it: tokens of its sequence from it on, as far as the window goes, by the query heads of its own.
    let last = call.sequences.range(call.sequences.owner(at)).end.min(at + call.window);
    // `[rows, heads, dv]`, and `[rows, heads]` of `lse`.
    for (found, sound) in [(&y, sound[0]), (pass.lse(), sound[1])] {
        let (found, sound) = (Array::download(found)?.values, Array::download(sound)?.values);
        let width = found.len() / (call.sequences.rows() * heads * group);
        for (i, (found, sound)) in found.chunks(width).zip(sound.chunks(width)).enumerate() {
            let (row, head) = (i / (heads * group), i % (heads * group));
            if (at..last).contains(&row) && head / group == heads - 1 {
                assert!(found.iter().all(|x| x.is_nan()), "row {row} of query head {head} sees a NaN in row {at}");
            } else {
                assert_eq!(found, sound, "row {row} of query head {head} sees no NaN");
            }
        }
    }
    Ok(())
}
