// Sums over a token's row, of queries and keys, which are x and y: (25), and the inner products of (31). The gradient of
// the values.

@group(0) @binding(4) var<storage, read_write> space: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> dz: array<f32>;         // [rows,H,V]: Λ
@group(0) @binding(6) var<storage, read> targets: array<f32>;    // [rows,H,V]: v - f k M_c
@group(0) @binding(7) var<storage, read> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(8) var<storage, read_write> dv: array<f32>;   // [rows,H,V]

// Vectors lie among vectors of four: one element of one of them is written.
fn put(chunk: u32, which: u32, t: u32, x: f32) {
    let at = vector_at(chunk, which, t);
    space[at / 4u][at % 4u] = x;
}

// Elements `i` to `i + 3` of row `t` of a product.
fn product_four(chunk: u32, which: u32, t: u32, i: u32) -> vec4<f32> {
    return space[product_at(chunk, which, t, i) / 4u];
}

// (25) of token `t` of a chunk, which is token and head `at` of all.
// dv = w Λ, dw = Λ·(v - k M_c), dr = -Λ·p, all over the columns of one token.
fn strengths(chunk: u32, t: u32, at: u32) {
    let w = scalars_of(at).x;
    var dw = 0.0;
    var dr = 0.0;
    for (var c = at * args.value; c < (at + 1u) * args.value; c++) {
        let x = dz[c];
        dv[c] = w * x;
        dw += x * targets[c];
        if args.erase != ERASE_NOTHING {
            dr -= x * predicted[c];
        }
    }
    put(chunk, DW, t, dw);
    put(chunk, DR, t, dr);
}

// An invocation owns one token of one chunk.
@compute @workgroup_size(64)
fn sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let own = own_token(group, local);
    if !own.works {
        return;
    }
    let chunk = own.chunk;
    let t = own.t;
    let at = token(own.here, t);
    strengths(chunk, t, at);
    // Inner products of the token's query and key with rows of the products of states.
    // (31), of M and of S.
    // read: q dO M₀ᵀ. erase: k Λ M₀ᵀ. after: k Z dM_Cᵀ. The first element is of M, the second of S.
    var read = vec2<f32>();
    var erase = vec2<f32>();
    var after = vec2<f32>();
    for (var i = 0u; i < args.key; i += 4u) {
        let key = y_four(at * args.key, i);
        let query = x_four(at * args.key, i);
        read.x += dot(query, product_four(chunk, OUT_M, t, i));
        after.x += dot(key, product_four(chunk, WRITES_DM, t, i));
        if args.erase != ERASE_NOTHING || args.frozen > 0u {
            erase.x += dot(key, product_four(chunk, ADJOINT_M, t, i));
        }
        // Without momentum the vectors of S take zeros, which nobody reads.
        if args.matrices == 2u {
            read.y += dot(query, product_four(chunk, OUT_S, t, i));
            after.y += dot(key, product_four(chunk, WRITES_DS, t, i));
            erase.y += dot(key, product_four(chunk, ADJOINT_S, t, i));
        }
    }
    put(chunk, READ_M, t, read.x);
    put(chunk, READ_S, t, read.y);
    put(chunk, ERASE_M, t, erase.x);
    put(chunk, ERASE_S, t, erase.y);
    put(chunk, AFTER_M, t, after.x);
    put(chunk, AFTER_S, t, after.y);
}
