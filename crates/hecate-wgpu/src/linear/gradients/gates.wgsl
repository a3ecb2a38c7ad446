// Gradients of the gates of a token: what the states before the chunk give, (31), (32), (14), and what each rule makes of
// dw and dr.

@group(0) @binding(2) var<storage, read> kept: array<f32>;         // [kept,H,M and S,K,V]
@group(0) @binding(3) var<storage, read> kept_grads: array<f32>;   // [kept,H,M and S,K,V]
@group(0) @binding(4) var<storage, read> space: array<f32>;
@group(0) @binding(5) var<storage, read_write> log_a: array<f32>;  // [rows,H]
@group(0) @binding(6) var<storage, read_write> theta: array<f32>;  // [rows,H]: dw, then the gradient
@group(0) @binding(7) var<storage, read_write> gate2: array<f32>;  // [rows,H]: dr, then that of log η with an S, else of β

// None of them is used.
const SLICES = 1u;

// What the tokens give to A[t] and c[t,0] of (31), where `t` is the state after a token.
var<workgroup> reads: array<vec2<f32>, CHUNK>;
// A, c and E of the state before a token; then what the first states give to its a and η.
var<workgroup> counts: array<vec3<f32>, CHUNK>;
// Shares of ⟨dM_C, M₀⟩, ⟨dM_C, S₀⟩, ⟨dS_C, S₀⟩.
var<workgroup> ends: array<vec3<f32>, WIDTH>;

// An invocation's share of those. Neighbours read neighbouring elements.
fn ends_of(here: Segment, local: u32) -> vec3<f32> {
    let matrix = args.key * args.value;
    let first = here.kept * args.matrices * matrix;
    var sum = vec3<f32>();
    for (var i = first + local; i < first + matrix; i += WIDTH) {
        let dm = kept_grads[i];
        sum.x += dm * kept[i];
        // S follows M after K V elements.
        if args.matrices == 2u {
            sum.y += dm * kept[i + matrix];
            sum.z += kept_grads[i + matrix] * kept[i + matrix];
        }
    }
    return sum;
}

// (15)-(17) of the states before the chunk, in front of token `t`: A, then c and E of column 0.
fn counts_of(t: u32) -> vec3<f32> {
    var all = vec3<f32>(1.0, 0.0, 1.0);
    for (var i = 0u; i < t; i++) {
        all.z *= gates[i].w;
        all.y = gates[i].z * all.y + all.z;
        all.x *= gates[i].z;
    }
    return all;
}

// What token `t` gives by its read, and by what it erases: to A first, then to c of column 0.
fn by_read(chunk: u32, t: u32) -> vec2<f32> {
    return vec2<f32>(space[vector_at(chunk, READ_M, t)], space[vector_at(chunk, READ_S, t)]);
}

// dP is -r Λ: (25).
fn by_erase(chunk: u32, t: u32) -> vec2<f32> {
    if args.erase == ERASE_NOTHING {
        return vec2<f32>();
    }
    return -gates[t].y * vec2<f32>(space[vector_at(chunk, ERASE_M, t)], space[vector_at(chunk, ERASE_S, t)]);
}

// Erases see the state before their token, reads that state or the one after.
// The state after token `t` is read by that token, or by the next; the next one erases from it.
fn reads_of(chunk: u32, tokens: u32, t: u32) -> vec2<f32> {
    var sum = vec2<f32>();
    if args.before == 0u {
        sum = by_read(chunk, t);
    }
    if t + 1u < tokens {
        sum += by_erase(chunk, t + 1u);
        if args.before == 1u {
            sum += by_read(chunk, t + 1u);
        }
    }
    return sum;
}

// (32) of the states before the chunk, from the last token to the first. One invocation goes, since every step waits for
// the one before; all chunks go at once.
fn back_to_first(tokens: u32) {
    // Gradients of A, and of c and E of column 0, which begin with ⟨dM_C, M₀⟩, ⟨dM_C, S₀⟩ and ⟨dS_C, S₀⟩.
    var now = vec3<f32>();
    for (var i = 0u; i < CHUNK; i++) {
        now += ends[i];
    }
    for (var t = tokens; t > 0u; t--) {
        let first = counts[t - 1u];
        now += vec3<f32>(reads[t - 1u], 0.0);
        // c takes all that E has, so E gets what c gets.
        now.z += now.y;
        counts[t - 1u] = vec3<f32>(now.x * first.x + now.y * first.y, now.z * first.z, 0.0);
        now *= gates[t - 1u].zzw;
    }
}

// What the rule makes of them, token `t`. `strengths` has left dw and dr where the gradients of its gates go.
fn lower_backward(chunk: u32, here: Segment, t: u32) {
    let at = token(here, t);
    // What the first states give, then what the writes of the chunk give.
    let da = counts[t].x + space[vector_at(chunk, DA, t)];
    let deta = counts[t].y + space[vector_at(chunk, DETA, t)];
    put_gates(at, gates[t], theta[at], gate2[at], da, deta);
}

// A workgroup has a chunk: sums over the states by all invocations, then a token an invocation, and one that goes back.
@compute @workgroup_size(256)
fn gradients(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let chunk = group_index(group);
    if chunk >= args.count {
        return;
    }
    let here = segment(args.first + chunk);
    if here.tokens == 0u {
        return;
    }
    read_gates(here, local);
    ends[local] = ends_of(here, local);
    workgroupBarrier();
    // 256 shares become 64, which one invocation adds up.
    if local < CHUNK {
        ends[local] += ends[local + CHUNK] + ends[local + 2u * CHUNK] + ends[local + 3u * CHUNK];
    }
    if local < here.tokens {
        counts[local] = counts_of(local);
        reads[local] = reads_of(chunk, here.tokens, local);
    }
    workgroupBarrier();
    if local == 0u {
        back_to_first(here.tokens);
    }
    workgroupBarrier();
    if local < here.tokens {
        lower_backward(chunk, here, local);
    }
}
