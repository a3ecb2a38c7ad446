// What the tokens of a chunk give to the gradients of each other's queries and keys: (27), (28). dQ gets dG K, dK gets
// (dN + dNᵀ) K + dGᵀ Q.
//
// x has the queries. Squares are mirrored at the diagonal, so that only rows of them are read.

@group(0) @binding(4) var<storage, read> space: array<vec4<f32>>;

// dG, dN, and keys or queries: sixteen tokens of 64 columns each.
const SLICES = 3u;
const TOKENS = 16u;

// Row `s` of dG where column `t` is at or after it (`later`), or at or before it.
fn half_of_dg(chunk: u32, s: u32, four: u32, later: bool) -> vec4<f32> {
    let t = 4u * four + vec4<u32>(0u, 1u, 2u, 3u);
    let whole = space[square_at(chunk, DG, s, 4u * four) / 4u];
    return select(vec4<f32>(), whole, select(t <= vec4<u32>(s), t >= vec4<u32>(s), later));
}

// Four by four elements for eight reads. Adds the outer product of four tokens' factors and four elements.
fn with_outer(sums: mat4x4<f32>, by: vec4<f32>, y: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(sums[0] + by.x * y, sums[1] + by.y * y, sums[2] + by.z * y, sums[3] + by.w * y);
}

// Sums of an invocation for dQ and dK.
struct Grads {
    q: mat4x4<f32>,
    k: mat4x4<f32>,
}

// Sixteen tokens from `s` on, whose keys are in a slice: dG K and (dN + dNᵀ) K.
fn by_keys(all: Grads, own: Own, s: u32) -> Grads {
    var sums = all;
    let erases = args.erase != ERASE_NOTHING;
    // Only later tokens have read what these wrote.
    let reads = 4u * own.row + 3u >= s;
    for (var i = 0u; i < TOKENS; i++) {
        let key = slices[2u * SLICE + i * 16u + own.column];
        if reads {
            sums.q = with_outer(sums.q, slices[i * 16u + own.row], key);
        }
        if erases {
            sums.k = with_outer(sums.k, slices[SLICE + i * 16u + own.row], key);
        }
    }
    return sums;
}

// The same of their queries: dGᵀ Q, for keys that were written no later.
fn by_queries(all: mat4x4<f32>, own: Own, s: u32) -> mat4x4<f32> {
    var sums = all;
    if 4u * own.row < s + TOKENS {
        for (var i = 0u; i < TOKENS; i++) {
            sums = with_outer(sums, slices[i * 16u + own.row], slices[2u * SLICE + i * 16u + own.column]);
        }
    }
    return sums;
}

// Of the 64 elements from `first` on.
fn grads_of(chunk: u32, here: Segment, first: u32, own: Own, local: u32) -> Grads {
    var sums: Grads;
    let four = local % 16u;
    // Barriers stand before and after each slice: its end is the same for all invocations.
    for (var s = 0u; s < here.tokens; s += TOKENS) {
        // The invocation's share of a slice: tokens after the last are zeros in the squares.
        let t = s + local / 16u;
        let at = token(here, min(t, here.tokens - 1u)) * args.key;
        workgroupBarrier();
        slices[local] = half_of_dg(chunk, t, four, true);
        if args.erase != ERASE_NOTHING {
            slices[SLICE + local] = space[square_at(chunk, DN, t, 4u * four) / 4u];
        }
        slices[2u * SLICE + local] = k_four(at, first + 4u * four);
        workgroupBarrier();
        sums = by_keys(sums, own, s);
        workgroupBarrier();
        slices[local] = half_of_dg(chunk, t, four, false);
        slices[2u * SLICE + local] = x_four(at, first + 4u * four);
        workgroupBarrier();
        sums.k = by_queries(sums.k, own, s);
    }
    return sums;
}

// Adds a row to what the states gave.
fn finish(here: Segment, t: u32, column: u32, query: vec4<f32>, key: vec4<f32>) {
    if t < here.tokens {
        let at = token(here, t) * args.key;
        add_dq(at, column, query);
        add_dk(at, column, key, false);
    }
}

// A workgroup has a chunk; it goes over the keys' elements 64 at a time.
@compute @workgroup_size(256)
fn keys(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let chunk = group_index(group);
    if chunk >= args.count {
        return;
    }
    let here = segment(args.first + chunk);
    let own = own_of(local);
    if here.tokens == 0u {
        return;
    }
    for (var first = 0u; first < args.key; first += CHUNK) {
        let sums = grads_of(chunk, here, first, own, local);
        let t = 4u * own.row;
        let column = first + 4u * own.column;
        finish(here, t, column, sums.q[0], sums.k[0]);
        finish(here, t + 1u, column, sums.q[1], sums.k[1]);
        finish(here, t + 2u, column, sums.q[2], sums.k[2]);
        finish(here, t + 3u, column, sums.q[3], sums.k[3]);
    }
}
