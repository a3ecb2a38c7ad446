// What the kernels of the linear engine share: the call, its gates as the scalars of the recurrence, where tokens, states
// and spans between kept states lie. Equation numbers are those of the core's rules.
//
// `work` is the call's own memory, as bits: [rows,H,4] scalars w, r, a, η; where sequences differ, their first rows and the
// end [N+1], then as many first kept states; the states that the pass starts from, M [N,H,K,V] and, with MOMENTUM, S; then
// scratch, where the memory of a thread does not fit into it.

struct Args {
    tokens: u32, kept: u32,                // of every sequence, where all are alike
    heads: u32, sequences: u32,
    key: u32, value: u32,
    frozen: u32, period: u32,              // G (0: not frozen); states are kept every 64 tokens of each period
    erase: u32, before: u32,               // how r follows from the gates; 1: a token reads before its write
    differ: u32, spans: u32,               // 1: sequences differ; spans of the longest
    starts: u32, m: u32, s: u32, scratch: u32,  // places in `work`
    first: u32, count: u32,                // first chunk of a kernel over chunks, number of threads
    scalars: u32, states: u32,             // rows times H; numbers of all matrices [N,H,K,V]
    width: u32, slot: u32, offset: u32, lagging: u32,  // of a product of a chunk: see there
}

@group(0) @binding(0) var<uniform> args: Args;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;

const GROUP = 64u;
const CHUNK = 64u;
const MATRICES = 1u + MOMENTUM;

// How the erase strength follows from the gates: r = 0, θ, θ a, β, θ + β.
const ERASE_NOTHING = 0u;
const ERASE_THETA = 1u;
const ERASE_DECAYED = 2u;
const ERASE_BETA = 3u;

// The number of a thread.
fn thread_of(group: vec3<u32>, local: u32) -> u32 {
    return group_index(group) * GROUP + local;
}

// w, r, a, η of token and head `i` [rows,H].
fn scalars_of(i: u32) -> vec4<f32> {
    let at = 4u * i;
    return bitcast<vec4<f32>>(vec4<u32>(work[at], work[at + 1u], work[at + 2u], work[at + 3u]));
}

// A sequence: first row, tokens, first kept state.
struct Sequence {
    row: u32,
    tokens: u32,
    kept: u32,
}

fn sequence(n: u32) -> Sequence {
    if args.differ == 0u {
        return Sequence(n * args.tokens, args.tokens, n * args.kept);
    }
    let at = args.starts + n;
    return Sequence(work[at], work[at + 1u] - work[at], work[at + args.sequences + 1u]);
}

// Kept states of a period.
fn each() -> u32 {
    return (args.period + CHUNK - 1u) / CHUNK;
}

// The tokens between a kept state and the next: first row and head in arrays [rows,H], tokens, the first token counted
// from the sequence's, the numbers of its kept state and of the first of its period in arrays [kept,H].
struct Span {
    row: u32,
    head: u32,
    tokens: u32,
    first: u32,
    kept: u32,
    leader: u32,
}

// Span `i` of [N,H,spans]; no tokens where the sequence has fewer.
fn span(i: u32) -> Span {
    let state = i / args.spans;
    let j = i % args.spans;
    let head = state % args.heads;
    let all = sequence(state / args.heads);
    let first = j / each() * args.period + j % each() * CHUNK;
    let next = (j + 1u) / each() * args.period + (j + 1u) % each() * CHUNK;
    let tokens = min(next, all.tokens) - min(first, all.tokens);
    let kept = (all.kept + j) * args.heads + head;
    return Span(all.row + first, head, tokens, first, kept, kept - j % each() * args.heads);
}

// Token `t` of a span in arrays [rows,H].
fn token(here: Span, t: u32) -> u32 {
    return (here.row + t) * args.heads + here.head;
}

// How many tokens of the span were written before the state that token `t`'s frozen target is read from. In longer groups
// that is the first state of the period.
fn group_start(t: u32) -> u32 {
    if args.period > CHUNK {
        return 0u;
    }
    return t - t % args.frozen;
}
