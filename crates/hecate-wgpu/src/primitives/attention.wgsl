// What the kernels of attention share: where queries and keys lie, and products of tiles of them.
//
// Under one key-value head, the queries of a sequence are its units: unit u is query head u % group of token u / group.
// Keys are counted as tokens are, from the sequence's first; those before it, of the cache, have negative numbers. A
// workgroup of 64 takes tiles of 32 units and of 32 keys. Invocation (ty, tx) of 8 x 8 holds rows 4 ty .. 4 ty + 3 and
// columns 4 tx .. 4 tx + 3 of a tile of 32 x 32 elements. A row lies in each column of a matrix.
//
// Keys and values come as one array each: the prefix, then the cache of every sequence, then the tokens. After the keys
// stands, in f32, which places of the cache count.

// Sizes and offsets of the call: `AttentionArgs` of `attention.rs`.
@group(0) @binding(0) var<uniform> args: AttentionArgs;
// Four words a job.
@group(0) @binding(1) var<storage, read> jobs: array<u32>;
// [rows, Hq, d]
@group(0) @binding(2) var<storage, read> q: array<f32>;
// [Np + N P + rows, Hkv, d], and after them [N, P]
@group(0) @binding(3) var<storage, read> k: array<f32>;
// [Np + N P + rows, Hkv, dv]
@group(0) @binding(4) var<storage, read> v: array<f32>;

const TILE = 32;
// How much of a sum is in workgroup memory at a time.
const DEEP = 16u;
// Columns of results that a workgroup makes.
const SLAB = 64u;
// No row, and a score that counts for nothing.
// Slots of a tile that stand for nothing have this row.
const NONE = 0xffffffffu;
const NOTHING = -3e38;
const FAR = 0x7fffffff;

// Arrays of rows of units, and of keys.
const Q = 0u;
const DY = 1u;
const K = 2u;
const V = 3u;

// Rows of units and keys in their arrays, the token of a unit (-1: none), and the tokens that see a key.
// Rows, tokens and visibility of the tile are found once and read by all 64 invocations.
var<workgroup> unit_rows: array<u32, TILE>;
var<workgroup> unit_tokens: array<i32, TILE>;
var<workgroup> key_rows: array<u32, TILE>;
var<workgroup> key_first: array<i32, TILE>;
var<workgroup> key_last: array<i32, TILE>;
// Two tiles of [DEEP, 32], or one of [DEEP, 64].
// Columns of both operands pass through here, DEEP at a time, since each is read eight times.
var<workgroup> stage: array<vec4<f32>, 256>;
// [KINDS, 32, 32], the sum's index first.
// The tile of weights moves from the registers of its makers to those who sum over keys.
var<workgroup> weights: array<vec4<f32>, KINDS * 256>;

// Work of a workgroup: a tile, or a run of tiles, of one sequence under one head, and the columns of the results.
struct Job {
    // The sequence, its first row, its tokens.
    n: u32,
    start: u32,
    length: i32,
    // Unit or key.
    first: i32,
    head: u32,
    slab: u32,
}

// A table row for every KV head and slab: neighbours share a job.
fn job_of(group: u32) -> Job {
    let index = group / args.slabs;
    let at = 4u * (index / args.heads);
    return Job(jobs[at], jobs[at + 1u], i32(jobs[at + 2u]), bitcast<i32>(jobs[at + 3u]), index % args.heads,
        group % args.slabs);
}

// Query heads that share a key.
fn shared_by() -> i32 {
    return i32(args.query_heads / args.heads);
}

// Row of a unit in arrays [rows, Hq, ..].
// Query heads of a group stand side by side.
fn unit_row(job: Job, unit: i32) -> u32 {
    let together = shared_by();
    return (job.start + u32(unit / together)) * args.query_heads + job.head * u32(together) + u32(unit % together);
}

// Row of a key in arrays [.., Hkv, ..]: of the cache where `at` is negative, else of a token.
fn window_row(job: Job, at: i32) -> u32 {
    if at < 0 { return (u32(args.prefix) + job.n * u32(args.kept) + u32(args.kept + at)) * args.heads + job.head; }
    return (args.tokens_at + job.start + u32(at)) * args.heads + job.head;
}

// Units at or after `end` are none.
fn set_unit(job: Job, slot: u32, unit: i32, end: i32) {
    let real = unit < end;
    unit_rows[slot] = select(NONE, unit_row(job, unit), real);
    unit_tokens[slot] = select(-1, unit / shared_by(), real);
}

// Tokens `first` to `last` see the key.
fn set_key(slot: u32, row: u32, first: i32, last: i32) {
    key_rows[slot] = row;
    key_first[slot] = first;
    key_last[slot] = last;
}

// An interval that no token is in.
fn no_key(slot: u32) {
    set_key(slot, NONE, 0, -1);
}

// Every token sees the prefix.
fn prefix_key(job: Job, slot: u32, place: i32) {
    set_key(slot, u32(place) * args.heads + job.head, 0, FAR);
}

// Key `at`, which tokens at .. at + P see. Whatever lies in places of the cache that do not count is not looked at.
fn window_key(job: Job, slot: u32, at: i32) {
    if at < 0 && !(k[args.valid_at + job.n * u32(args.kept) + u32(args.kept + at)] > 0.5) {
        no_key(slot);
        return;
    }
    set_key(slot, window_row(job, at), max(at, 0), at + args.kept);
}

// Which of four keys a token sees.
fn seen_by(token: i32, four: u32) -> vec4<bool> {
    let first = vec4<i32>(key_first[four], key_first[four + 1u], key_first[four + 2u], key_first[four + 3u]);
    let last = vec4<i32>(key_last[four], key_last[four + 1u], key_last[four + 2u], key_last[four + 3u]);
    return (vec4<i32>(token) >= first) & (vec4<i32>(token) <= last);
}

// eˣ of scores that are seen, else 0. A NaN stays one, which the language's own `exp` may swallow.
fn powers(x: vec4<f32>, sees: vec4<bool>) -> vec4<f32> {
    let none = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    return select(vec4<f32>(), select(exp(x), vec4<f32>(not_a_number()), none), sees);
}

// Which of the units of four tokens see a key.
fn seers_of(key: u32, tokens: vec4<i32>) -> vec4<bool> {
    return (tokens >= vec4<i32>(key_first[key])) & (tokens <= vec4<i32>(key_last[key]));
}

// Queries and keys have `key` columns, values and dy `value`.
fn width_of(array: u32) -> u32 {
    return select(args.value, args.key, array == Q || array == K);
}

// Elements `column .. column + 3` of the row in slot `slot`, 0 after its end.
// Missing rows and columns are zero, so that sums need no tests.
fn four_of(array: u32, slot: u32, column: u32) -> vec4<f32> {
    var row = key_rows[slot];
    if array == Q || array == DY { row = unit_rows[slot]; }
    let width = width_of(array);
    var x = vec4<f32>();
    if row == NONE || column >= width { return x; }
    let at = row * width + column;
    x.x = number_of(array, at);
    if column + 1u < width { x.y = number_of(array, at + 1u); }
    if column + 2u < width { x.z = number_of(array, at + 2u); }
    if column + 3u < width { x.w = number_of(array, at + 3u); }
    return x;
}

// Rows from `x`, columns from `y`.
// A rank-1 update of a 4 x 4 tile in registers.
fn outer(x: vec4<f32>, y: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x.x * y, x.y * y, x.z * y, x.w * y);
}

// Where four rows of a staged column stand, such that neither writing nor reading meets a bank twice.
// Fours are swapped by a bitwise XOR of their number, which spreads them over the banks.
fn stage_place(side: u32, column: u32, four: u32) -> u32 {
    return (side * DEEP + column) * 8u + (four ^ ((column / 4u) * 2u));
}

// Four columns of four rows.
// Four rows are read along their columns, then transposed.
fn block_of(array: u32, four: u32, column: u32) -> mat4x4<f32> {
    return transpose(mat4x4<f32>(four_of(array, four, column), four_of(array, four + 1u, column),
        four_of(array, four + 2u, column), four_of(array, four + 3u, column)));
}

// The sums over columns c of left[4 ty + i, c] right[4 tx + j, c]. Barriers in front of the first look at the rows.
// Half of the invocations bring the left operand, the other half the right one.
fn scores(lane: u32, left: u32, right: u32) -> mat4x4<f32> {
    var p = mat4x4<f32>();
    let side = lane / 32u;
    let mine = stage_place(side, 4u * (lane % 4u), lane % 32u / 4u);
    for (var start = 0u; start < width_of(left); start += DEEP) {
        // Nobody reads the columns before any more.
        workgroupBarrier();
        let column = start + 4u * (lane % 4u);
        let four = lane % 32u / 4u * 4u;
        var block = mat4x4<f32>();
        if side == 0u { block = block_of(left, four, column); } else { block = block_of(right, four, column); }
        stage[mine] = block[0];
        stage[mine + 8u] = block[1];
        stage[mine + 16u] = block[2];
        stage[mine + 24u] = block[3];
        workgroupBarrier();
        for (var c = 0u; c < DEEP; c += 4u) {
            let x = stage_place(0u, c, lane / 8u);
            let y = stage_place(1u, c, lane % 8u);
            p += outer(stage[x], stage[y]);
            p += outer(stage[x + 8u], stage[y + 8u]);
            p += outer(stage[x + 16u], stage[y + 16u]);
            p += outer(stage[x + 24u], stage[y + 24u]);
        }
    }
    return p;
}

// Where four rows of the weights of sum index `r` stand.
// The same swap as in `stage_place`.
// A product [32, count] x [count, 64] of weights and rows, 16 terms at a time.
fn weight_place(kind: u32, r: u32, four: u32) -> u32 {
    return (kind * 32u + r) * 8u + (four ^ (r / 4u));
}

// Keeps a tile of weights transposed, so that `weigh` sums over its columns.
// After it the index of the sum comes first, as `weigh` reads it.
fn keep(lane: u32, kind: u32, tile: mat4x4<f32>) {
    let turned = transpose(tile);
    let to = weight_place(kind, 4u * (lane % 8u), lane / 8u);
    weights[to] = turned[0];
    weights[to + 8u] = turned[1];
    weights[to + 16u] = turned[2];
    weights[to + 24u] = turned[3];
}

// Four rows of results: columns 4 tx .. 4 tx + 3 of a slab, and those 32 further right.
// An invocation makes 4 rows by 8 columns.
struct Wide {
    near: mat4x4<f32>,
    far: mat4x4<f32>,
}

// Adds the sums over r < count of weights[kind][r, 4 ty + i] x[r, start + ..], for `array` of 32 rows.
fn weigh(lane: u32, sums: Wide, kind: u32, count: i32, array: u32, start: u32) -> Wide {
    var out = sums;
    for (var first = 0u; first < u32(count); first += DEEP) {
        workgroupBarrier();
        for (var i = lane; i < 256u; i += 64u) { stage[i] = four_of(array, first + i / 16u, start + 4u * (i % 16u)); }
        workgroupBarrier();
        for (var r = 0u; r < DEEP; r += 1u) {
            let weight = weights[weight_place(kind, first + r, lane / 8u)];
            out.near += outer(weight, stage[r * 16u + lane % 8u]);
            out.far += outer(weight, stage[r * 16u + lane % 8u + 8u]);
        }
    }
    return out;
}

// Keys that the units of a tile see, in order: the prefix, then the window from `low` on.
struct Seen {
    low: i32,
    count: i32,
}

// `low` is the first key of the window that the first unit's token sees.
fn seen(job: Job) -> Seen {
    let together = shared_by();
    let last = min((job.first + TILE - 1) / together, job.length - 1);
    let low = max(job.first / together - args.kept, select(0, -args.kept, args.cached == 1u));
    return Seen(low, args.prefix + last - low + 1);
}

// Key number `i` of those.
// Slots after the last key are none.
fn seen_key(job: Job, all: Seen, slot: u32, i: i32) {
    if i >= all.count {
        no_key(slot);
    } else if i < args.prefix {
        prefix_key(job, slot, i);
    } else {
        window_key(job, slot, all.low + i - args.prefix);
    }
}
