// The call of a kernel of the linear engine. Equation numbers are those of the core's rules.
//
// `work` is the pass's own memory, as bits. First come the scalars w, r, a, η [rows,H,4]. Where sequences differ, their
// first rows and the end [N+1] follow, then as many first kept states. Last are the states that the pass starts from, M
// [N,H,K,V] and, if there is one, S.

// Defined in `layout.rs`.
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
