// What the tokens of a chunk give to the gradients of each other's queries and keys: (27), (28). dQ gets dG K, dK gets
// (dN + dNᵀ) K + dGᵀ Q.
//
// x has the queries. Squares are mirrored at the diagonal, so that only rows of them are read.

@group(0) @binding(4) var<storage, read> space: array<vec4<f32>>;

// dG, dN, and keys or queries: sixteen tokens of 64 columns each.
const SLICES = 3u;
const TOKENS = 16u;

// The mirrored square has dG twice: each use wants one half of it, with the diagonal.
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

// Sums of an invocation for dQ and dK: four tokens by four elements of each.
struct Grads {
    q: mat4x4<f32>,
    k: mat4x4<f32>,
}

// Adds what sixteen tokens give: factors [16,64] of one slice by elements [16,64] of the last.
fn with_slice(all: mat4x4<f32>, own: Own, slice: u32) -> mat4x4<f32> {
    var sums = all;
    for (var i = 0u; i < TOKENS; i++) {
        let by = slices[slice * SLICE + i * 16u + own.row];
        sums = with_outer(sums, by, slices[2u * SLICE + i * 16u + own.column]);
    }
    return sums;
}

// Of the 64 elements from `first` on. Sixteen tokens at a time give to all others: first by their keys, then by their
// queries, which take the keys' place in workgroup memory.
fn grads_of(chunk: u32, here: Segment, first: u32, own: Own, local: u32) -> Grads {
    // In registers until the last slice.
    var sums: Grads;
    let four = local % 16u;
    // Barriers stand before and after each slice: its end is the same for all invocations.
    for (var s = 0u; s < here.tokens; s += TOKENS) {
        // The invocation's share of a slice, four elements of one token's rows: tokens after the last are zeros in the squares.
        let t = s + local / 16u;
        let at = token(here, min(t, here.tokens - 1u)) * args.key;
        workgroupBarrier();
        slices[local] = half_of_dg(chunk, t, four, true);
        if args.erase != ERASE_NOTHING {
            slices[SLICE + local] = space[square_at(chunk, DN, t, 4u * four) / 4u];
        }
        slices[2u * SLICE + local] = k_four(at, first + 4u * four);
        workgroupBarrier();
        // dG K: only later tokens have read what these wrote.
        if 4u * own.row + 3u >= s {
            sums.q = with_slice(sums.q, own, 0u);
        }
        // (dN + dNᵀ) K.
        if args.erase != ERASE_NOTHING {
            sums.k = with_slice(sums.k, own, 1u);
        }
        workgroupBarrier();
        slices[local] = half_of_dg(chunk, t, four, false);
        slices[2u * SLICE + local] = x_four(at, first + 4u * four);
        workgroupBarrier();
        // dGᵀ Q: only for keys that were written no later.
        // Neighbours agree on that, sixteen rows at a time.
        if 4u * own.row < s + TOKENS {
            sums.k = with_slice(sums.k, own, 0u);
        }
    }
    return sums;
}

// Adds a row to what the states gave, if the chunk has such a token.
// No other invocation writes these elements.
fn finish(here: Segment, t: u32, column: u32, query: vec4<f32>, key: vec4<f32>) {
    if t < here.tokens {
        let at = token(here, t) * args.key;
        add_dq(at, column, query);
        add_dk(at, column, key, false);
    }
}

// A workgroup has a chunk; it goes over the keys' elements 64 at a time. What the states gave is in dQ and dK by now.
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
