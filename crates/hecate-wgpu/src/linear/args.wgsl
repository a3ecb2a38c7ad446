// The call of a kernel of the linear engine. Equation numbers are those of the core's rules.
//
// `work` is the pass's own memory, as bits. First come the scalars w, r, a, η [rows,H,4]. Where sequences differ, their
// first rows and the end [N+1] follow, then as many first kept states. Last are the states that the pass starts from, M
// [N,H,K,V] and, if there is one, S.

struct LinearArgs {
    tokens: u32, kept: u32,                // of every sequence, where all are alike
    heads: u32, sequences: u32,
    key: u32, value: u32,
    frozen: u32, period: u32,              // G (0: not frozen); states are kept every 64 tokens of each period
    erase: u32, before: u32,               // how r follows from the gates; 1: a token reads before its write
    differ: u32, segments: u32,               // 1: sequences differ; segments of the longest
    starts: u32, m: u32, s: u32,           // places in `work`
    first: u32,                            // chunk, of a kernel over some of them
    count: u32,                            // of invocations or, in scans, of workgroups
    scalars: u32, states: u32,             // rows times H; elements of all matrices [N,H,K,V]
    width: u32, slot: u32, offset: u32, lagging: u32,  // of a product of a chunk: see there
    keep: u32, matrices: u32,              // 1: a scan writes states that a backward starts from; 2 with an S, else 1
    unused0: u32, unused1: u32, unused2: u32,
}

// The same structure as `LinearArgs` of `layout.rs`, field by field.
@group(0) @binding(0) var<uniform> args: LinearArgs;

// Invocations of a workgroup of the kernels that are not scans.
const GROUP = 64u;
// Tokens of a chunk: kept states are this far apart at most.
const CHUNK = 64u;

// How the erase strength follows from the gates: r = 0, θ, θ a, β, θ + β.
const ERASE_NOTHING = 0u;
const ERASE_THETA = 1u;
const ERASE_DECAYED = 2u;
const ERASE_BETA = 3u;

// The number of a thread.
// Invocations are numbered over all workgroups; kernels leave where the number is not below `args.count`.
fn thread_of(group: vec3<u32>, local: u32) -> u32 {
    return group_index(group) * GROUP + local;
}
