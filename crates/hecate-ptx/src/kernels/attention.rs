//! Softmax attention, key after key: no matrix of scores is ever in memory.

use super::{GRID_Y, Launch, reduce, softmax::exp_of_difference, within};
use crate::{
    error::Error,
    types::{Pred, Reg, Uniform},
    writer::{Axis, Comparison, Converged, Flow, Global, Module, Pointer, Scope, Shared, kernel},
};

/// Queries of a block: one for each of its warps.
const QUERIES: u32 = 8;
/// Keys of a tile: one for each lane.
const KEYS: u32 = 32;
/// Most columns of a head: those of a tile's keys and of a block's queries must fit into shared memory.
const COLUMNS: u32 = 256;
/// Steps of a loop that are written one after another.
const UNROLLED: u32 = 4;

/// `O = softmax(Q Kᵀ / √D) V` in f32, a warp a query. Heads of queries may share heads of keys and values.
///
/// Parameters: `Q` and `O` (heads × tokens × D), `K` and `V` (key heads × tokens × D), `tokens`. The text serves all numbers of tokens and
/// heads; it has in it `D`, the query heads of a key head, and whether it is causal, which is when a query sees keys up to its own
/// token.
///
/// A warp takes 32 keys at a time. With `m` the largest score so far, `l` and `o` the sums of `exp(s − m)` and of `exp(s − m) v`, a larger
/// score rescales both sums by `exp(m − m')`; in the end `O = o / l`. Keys that a query does not see have no effect even if they are NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    tokens: u32,
    heads: u32,
    key_heads: u32,
    head_dim: u32,
    causal: bool,
}

impl Attention {
    /// Attention over `tokens` tokens, where `[heads, key_heads]` are the numbers of heads of queries, and of keys and values.
    ///
    /// # Errors
    /// If a size is 0, if `head_dim` is over 256, if there are over 65535 heads or 2³¹ − 1 tokens, or if `heads` is no multiple
    /// of `key_heads`.
    ///
    /// ```
    /// use hecate_ptx::{Attention, Specification};
    ///
    /// // 32 heads of queries, four for each of 8 heads of keys and values.
    /// let attention = Specification::from(Attention::new(2048, [32, 8], 128, true)?);
    /// assert_eq!(attention.name(), "flash_attention_causal");
    /// assert_eq!(attention.launch().grid, [256, 32, 1]); // 8 queries a block
    /// # Ok::<(), hecate_ptx::Error>(())
    /// ```
    pub fn new(tokens: u32, [heads, key_heads]: [u32; 2], head_dim: u32, causal: bool) -> Result<Self, Error> {
        within("Attention", "tokens", tokens, 1..=super::GRID_X)?;
        within("Attention", "heads", heads, 1..=GRID_Y)?;
        within("Attention", "key_heads", key_heads, 1..=heads)?;
        within("Attention", "head_dim", head_dim, 1..=COLUMNS)?;
        if !heads.is_multiple_of(key_heads) {
            let (found, expected) = (heads.to_string(), format!("a multiple of the {key_heads} heads of keys"));
            return Err(Error::Size { specification: "Attention", size: "heads", found, expected });
        }
        Ok(Self { tokens, heads, key_heads, head_dim, causal })
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.causal { "flash_attention_causal" } else { "flash_attention" }
    }

    pub(crate) fn launch(&self) -> Launch {
        Launch { grid: [self.tokens.div_ceil(QUERIES), self.heads, 1], block: [32 * QUERIES, 1, 1] }
    }

    pub(crate) fn write(&self) -> Result<Module, Error> {
        kernel(self.name(), self.launch().block, |k| {
            let (columns, group) = (self.head_dim, self.heads / self.key_heads);
            k.comment(&format!("O = softmax(Q K^T / sqrt({columns})) V, {group} heads of queries for one of keys; a warp computes a query"));
            let block = Block::new(k, self);
            let warp = Warp::new(k, &block);
            k.for_range(0u32, block.limit, KEYS, |k, first| {
                block.load_keys(k, first);
                k.barrier();
                let score = warp.score(k, &block, first);
                let weight = warp.weigh(k, score);
                warp.add_values(k, &block, first, weight);
                k.comment("all have read these keys before they are overwritten");
                k.barrier();
            });
            warp.write(k, &block);
        })
    }
}

/// What the threads of a block share: a head, some queries of it, and a tile of keys.
struct Block {
    columns: u32,
    causal: bool,
    tokens: Uniform<u32>,
    /// First query.
    first: Uniform<u32>,
    /// Keys that any of its queries sees.
    limit: Uniform<u32>,
    /// Arrays of the head, from its first token on.
    q: Pointer<f32, Global>,
    k: Pointer<f32, Global>,
    v: Pointer<f32, Global>,
    o: Pointer<f32, Global>,
    /// Queries, one after another.
    queries: Pointer<f32, Shared>,
    /// Keys, each one element longer than its columns: lanes that read one column of all keys have no bank conflicts.
    keys: Pointer<f32, Shared>,
}

impl Block {
    fn new(k: &mut Scope<'_, Converged>, of: &Attention) -> Self {
        let [q, keys, v, o] = ["Q", "K", "V", "O"].map(|name| k.pointer(name));
        let tokens = k.parameter("tokens");
        let columns = of.head_dim;
        let queries = k.shared("smem_Q", (QUERIES * columns) as usize);
        let tile = k.shared("smem_K", (KEYS * (columns + 1)) as usize);
        let head = k.block_index(Axis::Y);
        let key_head = k.uniform_div(head, of.heads / of.key_heads);
        let mut of_head = |array, head| {
            let before = k.mul_wide(head, tokens);
            let first = k.mul(before, u64::from(columns));
            k.at_wide(array, first)
        };
        let [q, o] = [q, o].map(|array| of_head(array, head));
        let [keys, v] = [keys, v].map(|array| of_head(array, key_head));
        let block = k.block_index(Axis::X);
        let first = k.uniform_mul(block, QUERIES);
        let limit = if of.causal {
            let after = k.uniform_add(first, QUERIES);
            k.uniform_min(after, tokens)
        } else {
            tokens
        };
        Self { columns, causal: of.causal, tokens, first, limit, q, k: keys, v, o, queries, keys: tile }
    }

    /// Columns that each lane has: the first is its number, the next 32 further.
    fn of_lane(&self) -> u32 {
        self.columns.div_ceil(32)
    }

    /// Whether a lane has its column `32 i`: nothing where all lanes do.
    fn has_column<F: Flow>(&self, k: &mut Scope<'_, F>, lane: Reg<u32>, i: u32) -> Option<Pred> {
        (32 * (i + 1) > self.columns).then(|| k.lt(lane, self.columns - 32 * i))
    }

    /// Copies 32 keys into shared memory, zeros after the last one. All threads copy, each every 256th element.
    fn load_keys(&self, k: &mut Scope<'_, Converged>, first: Uniform<u32>) {
        k.comment("32 keys into shared memory");
        let thread = k.thread_index(Axis::X);
        let from = k.row(self.k, first, self.columns);
        k.for_each(thread, KEYS * self.columns, 32 * QUERIES, |k, element| {
            let row = k.div(element, self.columns);
            let key = k.add(row, first);
            let inside = k.lt(key, self.tokens);
            let address = k.at(from, element);
            let value = k.load_or(inside, address, 0f32);
            // Every row before this one is an element longer.
            let place = k.add(element, row);
            let to = k.at_shared(self.keys, place);
            k.store(to, value);
        });
    }
}

/// What a warp has of its query: sums of what it saw so far.
struct Warp {
    lane: Reg<u32>,
    /// The query's columns in shared memory.
    query: Pointer<f32, Shared>,
    /// Row of `O`, and whether there is such a row.
    out: Pointer<f32, Global>,
    is_inside: Pred,
    /// Number of keys that the query sees.
    seen: Reg<u32>,
    /// The largest score, the sum of exponentials, and of values by their exponentials, for the lane's columns.
    largest: Reg<f32>,
    sum: Reg<f32>,
    out_sums: Vec<Reg<f32>>,
}

impl Warp {
    fn new(k: &mut Scope<'_, Converged>, block: &Block) -> Self {
        let (lane, warp) = (k.lane(), k.warp());
        let number = k.add(warp, block.first);
        let is_inside = k.lt(number, block.tokens);
        k.comment("warps after the last token do as if they had the last one, so that all come to barriers");
        let last = k.sub(block.tokens, 1u32);
        let token = k.min(number, last);
        let seen = if block.causal { k.add(token, 1u32) } else { k.variable(block.tokens) };
        let (from, out) = (k.row(block.q, token, block.columns), k.row(block.o, token, block.columns));
        let own = k.mul(warp, block.columns);
        let query = k.at_shared(block.queries, own);
        k.comment("the query into shared memory, from where every lane reads all of it");
        let (lane_from, lane_to) = (k.at(from, lane), k.at_shared(query, lane));
        for i in 0..block.of_lane() {
            let (from, to) = (lane_from.plus(32 * i), lane_to.plus(32 * i));
            match block.has_column(k, lane, i) {
                Some(inside) => k.if_(inside, |k| copy(k, from, to)),
                None => copy(k, from, to),
            }
        }
        let out_sums = (0..block.of_lane()).map(|_| k.variable(0f32)).collect();
        let (largest, sum) = (k.variable(f32::NEG_INFINITY), k.variable(0f32));
        Self { lane, query, out, is_inside, seen, largest, sum, out_sums }
    }

    /// The score of a lane's key, `q · k / √D`; −∞ where the query does not see it.
    fn score(&self, k: &mut Scope<'_, Converged>, block: &Block, first: Uniform<u32>) -> Reg<f32> {
        k.comment("a lane's score: its key times the query");
        let own = k.mul(self.lane, block.columns + 1);
        let key = k.at_shared(block.keys, own);
        let product = k.variable(0f32);
        let step = if block.columns.is_multiple_of(UNROLLED) { UNROLLED } else { 1 };
        k.for_range(0u32, block.columns, step, |k, column| {
            let (x, y) = (k.at_shared(self.query, column), k.at_shared(key, column));
            for i in 0..step {
                let (x, y) = (k.load(x.plus(i)), k.load(y.plus(i)));
                k.accumulate(product, x, y);
            }
        });
        let score = k.mul(product, (1.0 / f64::from(block.columns).sqrt()) as f32);
        let number = k.add(self.lane, first);
        let is_seen = k.lt(number, self.seen);
        k.select(is_seen, score, f32::NEG_INFINITY)
    }

    /// The exponential of a lane's score, by the largest of all so far. What was summed before is rescaled.
    fn weigh(&self, k: &mut Scope<'_, Converged>, score: Reg<f32>) -> Reg<f32> {
        k.comment("the largest score so far; what was summed by the one before is rescaled");
        let largest = k.variable(score);
        reduce::warp(k, largest, |k, a, b| k.max(a, b));
        let largest = k.max(largest, self.largest);
        // Where all scores are −∞ nothing is subtracted: −∞ − (−∞) would be NaN.
        let is_nothing = k.compare(Comparison::Equal, largest, f32::NEG_INFINITY);
        let base = k.select(is_nothing, 0f32, largest);
        let (weight, rescale) = (exp_of_difference(k, score, base), exp_of_difference(k, self.largest, base));
        k.assign(self.largest, largest);
        let sum = k.variable(weight);
        reduce::warp(k, sum, |k, a, b| k.add(a, b));
        k.scale(self.sum, rescale);
        k.add_to(self.sum, sum);
        self.out_sums.iter().for_each(|out| k.scale(*out, rescale));
        weight
    }

    /// Adds the values of 32 keys by the weights that their lanes have.
    fn add_values(&self, k: &mut Scope<'_, Converged>, block: &Block, first: Uniform<u32>, weight: Reg<f32>) {
        k.comment("values times their weights, which come from the keys' lanes");
        let values = k.row(block.v, first, block.columns);
        let inside: Vec<_> = (0..block.of_lane()).map(|i| block.has_column(k, self.lane, i)).collect();
        k.for_range(0u32, KEYS, UNROLLED, |k, from| {
            for i in 0..UNROLLED {
                let key = k.add(from, i);
                let weight = k.shuffle_from(weight, key);
                let number = k.add(key, first);
                let is_seen = k.lt(number, self.seen);
                let place = k.mul_add(key, block.columns, self.lane);
                let value = k.at(values, place);
                for (j, (sum, inside)) in self.out_sums.iter().zip(&inside).enumerate() {
                    let reads = inside.map_or(is_seen, |inside| k.both(is_seen, inside));
                    let value = k.load_or(reads, value.plus(32 * j as u32), 0f32);
                    k.accumulate(*sum, weight, value);
                }
            }
        });
    }

    fn write(&self, k: &mut Scope<'_, Converged>, block: &Block) {
        k.comment("O = the sum of values / the sum of weights");
        let to = k.at(self.out, self.lane);
        for (i, sum) in (0..).zip(&self.out_sums) {
            let value = k.div(*sum, self.sum);
            let inside = match block.has_column(k, self.lane, i) {
                Some(inside) => k.both(inside, self.is_inside),
                None => self.is_inside,
            };
            k.guarded(inside, |k| k.store(to.plus(32 * i), value));
        }
    }
}

/// Copies an element to shared memory.
fn copy<F>(k: &mut Scope<'_, F>, from: Pointer<f32, Global>, to: Pointer<f32, Shared>) {
    let value = k.load(from);
    k.store(to, value);
}
