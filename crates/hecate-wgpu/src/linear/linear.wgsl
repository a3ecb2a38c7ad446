// What the kernels of the linear engine share: the scalars of the recurrence, and where tokens, states and the segments
// between kept states lie.

// Scalars, edges of sequences and initial states as bits: `args.wgsl` says what lies where.
@group(0) @binding(1) var<storage, read> work: array<u32>;

// w, r, a, η of token and head `i` [rows,H].
fn scalars_of(i: u32) -> vec4<f32> {
    let at = 4u * i;
    return bitcast<vec4<f32>>(vec4<u32>(work[at], work[at + 1u], work[at + 2u], work[at + 3u]));
}

// A sequence: first row, tokens, first kept state.
// Rows count tokens over all sequences; kept states count over all sequences too.
struct Sequence {
    row: u32,
    tokens: u32,
    kept: u32,
}

// Where all sequences have one length, products take the place of the table.
fn sequence(n: u32) -> Sequence {
    if args.differ == 0u {
        return Sequence(n * args.tokens, args.tokens, n * args.kept);
    }
    let at = args.starts + n;
    return Sequence(work[at], work[at + 1u] - work[at], work[at + args.sequences + 1u]);
}

// Kept states of a period.
// A period longer than a chunk keeps one state every 64 tokens of it.
fn each() -> u32 {
    return (args.period + CHUNK - 1u) / CHUNK;
}

// The tokens between a kept state and the next: first row and head in arrays [rows,H], how many, and the first counted
// from the sequence's. Then the places of its kept state and of the first of its period in arrays [kept,H].
struct Segment {
    row: u32,
    head: u32,
    tokens: u32,
    first: u32,
    kept: u32,
    leader: u32,
}

// Segment `i` of [N,H,segments]; no tokens where the sequence has fewer.
// State `i / segments` is a sequence and head; `j` is the segment's number in it.
fn segment(i: u32) -> Segment {
    let state = i / args.segments;
    let j = i % args.segments;
    let head = state % args.heads;
    let all = sequence(state / args.heads);
    let first = j / each() * args.period + j % each() * CHUNK;
    // A segment ends where the next begins: after 64 tokens, or at the end of the period.
    let next = (j + 1u) / each() * args.period + (j + 1u) % each() * CHUNK;
    let tokens = min(next, all.tokens) - min(first, all.tokens);
    let kept = (all.kept + j) * args.heads + head;
    return Segment(all.row + first, head, tokens, first, kept, kept - j % each() * args.heads);
}

// Token `t` of a segment in arrays [rows,H].
fn token(here: Segment, t: u32) -> u32 {
    return (here.row + t) * args.heads + here.head;
}

// How many tokens of the segment were written before the state that token `t`'s frozen target is read from. In longer
// groups that is the first state of the period.
fn group_start(t: u32) -> u32 {
    if args.period > CHUNK {
        return 0u;
    }
    return t - t % args.frozen;
}
