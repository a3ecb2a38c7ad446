// What the states around a chunk give to the gradients of queries and keys: (27), (28). The inner products of (31).
//
// x [rows,H,V] is dO, Z or Λ, y the states or their gradients, k the queries or the keys, dk their gradient.

@group(0) @binding(5) var<storage, read_write> space: array<f32>;

// x, M and S.
const SLICES = 2u + MOMENTUM;

// A launch has one of three kinds, `args.slot`, and another launch adds to the gradient that one has begun (`args.offset`).
// Which of three: the states that tokens read, the gradients of those after the chunk, the states that are erased from.
const READS = 0u;
const AFTER = 1u;

// What each token's product with M and with S counts.
var<workgroup> weights: array<vec2<f32>, CHUNK>;

// A[t] and c[t,0] of (15), (17): what M₀ and S₀ count in M after `t` tokens of the chunk.
// Each token makes its own product of gates: they are in workgroup memory, and no token waits for another.
fn of_first(t: u32) -> vec2<f32> {
    var all = 1.0;
    var influence = 0.0;
    var pushed = 1.0;
    for (var i = 0u; i < t; i++) {
        pushed *= gates[i].w;
        influence = gates[i].z * influence + pushed;
        all *= gates[i].z;
    }
    return vec2<f32>(all, influence);
}

// c[C,t] and E[C,t] of (16), (17): what token `t` writes counts in M and in S after the chunk.
fn of_last(t: u32, tokens: u32) -> vec2<f32> {
    var influence = 1.0;
    var pushed = 1.0;
    for (var i = t + 1u; i < tokens; i++) {
        pushed *= gates[i].w;
        influence = gates[i].z * influence + pushed;
    }
    return vec2<f32>(influence, pushed);
}

// (27), (28): a read sees its own write or not, an erase never does.
fn weight(t: u32, tokens: u32) -> vec2<f32> {
    if args.slot == READS {
        return of_first(t + 1u - args.before);
    }
    if args.slot == AFTER {
        return of_last(t, tokens);
    }
    return -gates[t].y * of_first(t);
}

// Products of an invocation with M and S: four tokens by four elements of a key. That with S is nothing without momentum.
struct Products {
    m: mat4x4<f32>,
    s: mat4x4<f32>,
}

// x yᵀ for the rows of M and S from `first` on: 64 tokens by 64 elements of a key.
// All 256 invocations bring a slice, four elements each; barriers stand before and after.
fn products_of(here: Segment, first: u32, own: Own, local: u32) -> Products {
    // In registers until the last slice.
    var sums: Products;
    // The invocation's share of a slice: four elements of token `t`, and of as many rows of M and S.
    // Tokens after the last repeat it, and `finish` leaves them out.
    let t = local / 4u;
    let four = local % 4u;
    let origin = token(here, min(t, here.tokens - 1u)) * args.width;
    // Rows after the last repeat it: no gradient has a place for them.
    let matrix = here.kept * args.matrices * args.key;
    let row = (matrix + min(first + t, args.key - 1u)) * args.width;
    // `args.width` is V here: sums run over the columns of the states.
    for (var c = 0u; c < args.width; c += COLUMNS) {
        workgroupBarrier();
        slices[place_of(0u, t, four)] = x_four(origin, c + 4u * four);
        slices[place_of(1u, t, four)] = y_four(row, c + 4u * four);
        if MOMENTUM == 1u {
            slices[place_of(2u, t, four)] = y_four(row + args.key * args.width, c + 4u * four);
        }
        workgroupBarrier();
        // Short keys leave some columns without work.
        if first + 4u * own.column < args.key {
            for (var i = 0u; i < 4u; i++) {
                let rows = four_rows(0u, own.row, i);
                sums.m = with_products(sums.m, rows, four_rows(1u, own.column, i));
                if MOMENTUM == 1u {
                    sums.s = with_products(sums.s, rows, four_rows(2u, own.column, i));
                }
            }
        }
    }
    return sums;
}

// Writes a row, four elements of the gradient of token `t`; what it adds to the inner products with M and S.
// These are of the plain products: (31) has their weights in the tables.
fn finish(here: Segment, t: u32, column: u32, m: vec4<f32>, s: vec4<f32>) -> vec2<f32> {
    if t >= here.tokens {
        return vec2<f32>();
    }
    let at = token(here, t) * args.key;
    // What M and S count for this token.
    let by = weights[t];
    let key = k_four(at, column);
    if MOMENTUM == 1u {
        add_dk(at, column, by.x * m + by.y * s, args.offset == 0u);
        return vec2<f32>(dot(key, m), dot(key, s));
    }
    add_dk(at, column, by.x * m, args.offset == 0u);
    return vec2<f32>(dot(key, m), 0.0);
}

// A workgroup has a chunk; it goes over the keys' elements 64 at a time.
@compute @workgroup_size(256)
fn states(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let chunk = group_index(group);
    if chunk >= args.count {
        return;
    }
    let here = segment(args.first + chunk);
    if here.tokens == 0u {
        return;
    }
    // Gates first: the weights are products of them.
    read_gates(here, local);
    workgroupBarrier();
    if local < here.tokens {
        weights[local] = weight(local, here.tokens);
    }
    let own = own_of(local);
    // Inner products of four rows each, over all elements of the keys.
    var of_m = vec4<f32>();
    var of_s = vec4<f32>();
    for (var first = 0u; first < args.key; first += CHUNK) {
        let sums = products_of(here, first, own, local);
        let t = 4u * own.row;
        let column = first + 4u * own.column;
        let a = finish(here, t, column, sums.m[0], sums.s[0]);
        let b = finish(here, t + 1u, column, sums.m[1], sums.s[1]);
        let c = finish(here, t + 2u, column, sums.m[2], sums.s[2]);
        let d = finish(here, t + 3u, column, sums.m[3], sums.s[3]);
        of_m += vec4<f32>(a.x, b.x, c.x, d.x);
        of_s += vec4<f32>(a.y, b.y, c.y, d.y);
    }
    // Sixteen invocations have shares of a row: the slices are free for them.
    workgroupBarrier();
    slices[own.row * 16u + own.column] = of_m;
    slices[SLICE + own.row * 16u + own.column] = of_s;
    workgroupBarrier();
    // The vectors of the three kinds follow one another.
    if local < here.tokens {
        space[vector_at(chunk, READ_M + 2u * args.slot, local)] = row_sum(0u, local);
        space[vector_at(chunk, READ_S + 2u * args.slot, local)] = row_sum(1u, local);
    }
}
