// Gradients of queries and keys, which are x and y: (27), (28). Four tokens by four elements an invocation.

// Squares, vectors and products as the kernels before left them; rows of four.
@group(0) @binding(4) var<storage, read> space: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> dq: array<f32>;  // [rows,H,K]
@group(0) @binding(6) var<storage, read_write> dk: array<f32>;  // [rows,H,K]

// Entry `t` of a vector, out of the four that holds it.
fn vector(chunk: u32, which: u32, t: u32) -> f32 {
    let at = vector_at(chunk, which, t);
    return space[at / 4u][at % 4u];
}

// The four elements of row `t` of a product that this tile owns.
fn product_four(own: Tile, which: u32, t: u32) -> vec4<f32> {
    return space[product_at(own.chunk, which, t, own.column) / 4u];
}

// Shares of dq and dk of one token, four elements each.
struct Pair {
    query: vec4<f32>,
    key: vec4<f32>,
}

// What the states around the chunk give to dq and dk of token `t`.
fn from_states(here: Segment, own: Tile, t: u32) -> Pair {
    // w and r of (28) belong to the writes and to the erases.
    let gates = scalars_of(token(here, t));
    // The state that the token reads: before or after its own write.
    let seen = t + 1u - args.before;
    // The frozen target is read from the state before the token's group.
    let start = group_start(t);
    var query = vector(own.chunk, AT_A, seen) * product_four(own, OUT_M, t);
    var key = vector(own.chunk, LAST_C, t) * product_four(own, WRITES_DM, t);
    // dk of an erase: -r A[t] Λ M₀ᵀ.
    if args.erase != ERASE_NOTHING {
        key -= gates.y * vector(own.chunk, AT_A, t) * product_four(own, ADJOINT_M, t);
    }
    key -= gates.x * vector(own.chunk, AT_A, start) * product_four(own, of_group(), t);
    if MOMENTUM == 1u {
        query += vector(own.chunk, AT_B, seen) * product_four(own, OUT_S, t);
        key += vector(own.chunk, LAST_E, t) * product_four(own, WRITES_DS, t);
        let adjoint = gates.y * vector(own.chunk, AT_B, t) + gates.x * vector(own.chunk, AT_B, start);
        key -= adjoint * product_four(own, ADJOINT_S, t);
    }
    return Pair(query, key);
}

// Four tokens by four elements.
struct Four {
    a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>,
}

// Adds the outer product of `by` (tokens) and `y` (elements).
fn add_outer(x: Four, by: vec4<f32>, y: vec4<f32>) -> Four {
    return Four(x.a + by.x * y, x.b + by.y * y, x.c + by.z * y, x.d + by.w * y);
}

// Sums of a tile for dq and for dk.
struct Both {
    query: Four,
    key: Four,
}

// What the tokens of the chunk give to four of them, from `own.row`: dG K, and (dN + dNᵀ) K + dGᵀ Q. dN and dG are
// there with their mirror images.
// One pass over the tokens `j` of the chunk: their keys and queries are read once for four tokens.
fn from_tokens(here: Segment, own: Tile) -> Both {
    var sums: Both;
    let rows = vec4<u32>(own.row, own.row + 1u, own.row + 2u, own.row + 3u);
    for (var j = 0u; j < here.tokens; j++) {
        let at = token(here, j) * args.key;
        let dg = space[square_at(own.chunk, DG, j, own.row) / 4u];
        let key = y_four(at, own.column);
        // Reads look back: dG counts at and below the diagonal.
        if j <= own.row + 3u {
            sums.query = add_outer(sums.query, select(vec4<f32>(), dg, vec4<u32>(j) <= rows), key);
        }
        // For keys it is transposed: it counts at and above the diagonal.
        if j >= own.row {
            sums.key = add_outer(sums.key, select(vec4<f32>(), dg, vec4<u32>(j) >= rows), x_four(at, own.column));
        }
        sums.key = add_outer(sums.key, space[square_at(own.chunk, DN, j, own.row) / 4u], key);
    }
    return sums;
}

// `t` may be after the last token of a short segment.
fn write(here: Segment, own: Tile, t: u32, query: vec4<f32>, key: vec4<f32>) {
    if t >= here.tokens {
        return;
    }
    let more = from_states(here, own, t);
    let a = more.query + query;
    let b = more.key + key;
    let to = token(here, t) * args.key + own.column;
    dq[to] = a.x;
    dk[to] = b.x;
    // Keys whose length is no multiple of four end inside the tile.
    if own.column + 1u < args.key {
        dq[to + 1u] = a.y;
        dk[to + 1u] = b.y;
    }
    if own.column + 2u < args.key {
        dq[to + 2u] = a.z;
        dk[to + 2u] = b.z;
    }
    if own.column + 3u < args.key {
        dq[to + 3u] = a.w;
        dk[to + 3u] = b.w;
    }
}

// An invocation owns 4 tokens by 4 elements of dq and dk of one chunk.
@compute @workgroup_size(64)
fn keys(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let mine = own_tile(group, local, args.key);
    if !mine.works {
        return;
    }
    let own = mine.tile;
    let here = mine.here;
    let sums = from_tokens(here, own);
    write(here, own, own.row, sums.query.a, sums.key.a);
    write(here, own, own.row + 1u, sums.query.b, sums.key.b);
    write(here, own, own.row + 2u, sums.query.c, sums.key.c);
    write(here, own, own.row + 3u, sums.query.d, sums.key.d);
}
