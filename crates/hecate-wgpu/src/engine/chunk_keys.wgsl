// Gradients of queries and keys: (27), (28). Four tokens by four numbers a thread.

@group(0) @binding(2) var<storage, read> q: array<f32>;         // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<f32>;         // [rows,H,K]
@group(0) @binding(4) var<storage, read> space: array<f32>;
@group(0) @binding(5) var<storage, read_write> dq: array<f32>;  // [rows,H,K]
@group(0) @binding(6) var<storage, read_write> dk: array<f32>;  // [rows,H,K]

fn vector(chunk: u32, which: u32, t: u32) -> f32 {
    return space[vector_at(chunk, which, t)];
}

// What the states around the chunk give to dq and dk of token `t`, number `i`.
fn from_states(here: Span, chunk: u32, t: u32, i: u32) -> vec2<f32> {
    let gates = scalars_of(token(here, t));
    let seen = t + 1u - args.before;
    var start = 0u;
    if FROZEN == 1u {
        start = group_start(t);
    }
    var query = vector(chunk, AT_A, seen) * space[product_at(chunk, OUT_M, t, i)];
    var key = vector(chunk, LAST_C, t) * space[product_at(chunk, WRITES_DM, t, i)];
    if args.erase != ERASE_NOTHING {
        key -= gates.y * vector(chunk, AT_A, t) * space[product_at(chunk, ADJOINT_M, t, i)];
    }
    if FROZEN == 1u {
        key -= gates.x * vector(chunk, AT_A, start) * space[product_at(chunk, of_group(), t, i)];
    }
    if MOMENTUM == 1u {
        query += vector(chunk, AT_B, seen) * space[product_at(chunk, OUT_S, t, i)];
        key += vector(chunk, LAST_E, t) * space[product_at(chunk, WRITES_DS, t, i)];
        var adjoint = gates.y * vector(chunk, AT_B, t);
        if FROZEN == 1u {
            adjoint += gates.x * vector(chunk, AT_B, start);
        }
        key -= adjoint * space[product_at(chunk, ADJOINT_S, t, i)];
    }
    return vec2<f32>(query, key);
}

struct Both {
    query: mat4x4<f32>,
    key: mat4x4<f32>,
}

// What the tokens of the chunk give to each other: dG K, and (dN + dNᵀ) K + dGᵀ Q. One token a column of these.
fn from_tokens(here: Span, chunk: u32, t: u32, i: vec4<u32>) -> Both {
    var sums: Both;
    for (var j = 0u; j < here.tokens; j++) {
        let at = token(here, j) * args.key + i;
        let key = vec4<f32>(k[at.x], k[at.y], k[at.z], k[at.w]);
        let query = vec4<f32>(q[at.x], q[at.y], q[at.z], q[at.w]);
        for (var s = 0u; s < 4u; s++) {
            let row = min(t + s, here.tokens - 1u);
            sums.query[s] += space[square_at(chunk, DG, row, j)] * key;
            sums.key[s] += space[square_at(chunk, DG, j, row)] * query;
            if args.erase != ERASE_NOTHING || FROZEN == 1u {
                sums.key[s] += (space[square_at(chunk, DN, row, j)] + space[square_at(chunk, DN, j, row)]) * key;
            }
        }
    }
    return sums;
}

@compute @workgroup_size(64)
fn keys(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let across = (args.key + 3u) / 4u;
    let chunk = thread / across / 16u;
    let t = thread / across % 16u * 4u;
    let i = thread % across * 4u;
    let here = span(args.first + chunk);
    if t >= here.tokens {
        return;
    }
    let sums = from_tokens(here, chunk, t, min(vec4<u32>(i, i + 1u, i + 2u, i + 3u), vec4<u32>(args.key - 1u)));
    for (var s = 0u; s < min(4u, here.tokens - t); s++) {
        let to = token(here, t + s) * args.key;
        for (var c = 0u; c < min(4u, args.key - i); c++) {
            let more = from_states(here, chunk, t + s, i + c);
            dq[to + i + c] = sums.query[s][c] + more.x;
            dk[to + i + c] = sums.key[s][c] + more.y;
        }
    }
}
