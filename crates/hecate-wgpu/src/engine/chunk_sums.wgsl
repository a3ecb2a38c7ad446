// Sums over a token's row, of queries and keys, which are x and y: (25), and the inner products of (31). The gradient of
// the values.

@group(0) @binding(4) var<storage, read_write> space: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> dz: array<f32>;         // [rows,H,V]: Λ
@group(0) @binding(6) var<storage, read> targets: array<f32>;    // [rows,H,V]: v - f k M_c
@group(0) @binding(7) var<storage, read> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(8) var<storage, read_write> dv: array<f32>;   // [rows,H,V]

fn put(chunk: u32, which: u32, t: u32, x: f32) {
    let at = vector_at(chunk, which, t);
    space[at / 4u][at % 4u] = x;
}

fn product_four(chunk: u32, which: u32, t: u32, i: u32) -> vec4<f32> {
    return space[product_at(chunk, which, t, i) / 4u];
}

// (25) of token `t` of a chunk, which is token and head `at` of all.
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

@compute @workgroup_size(64)
fn sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let chunk = thread / CHUNK;
    let t = thread % CHUNK;
    let here = span(args.first + chunk);
    if t >= here.tokens {
        return;
    }
    let at = token(here, t);
    strengths(chunk, t, at);
    // (31), of M and of S.
    var read = vec2<f32>();
    var erase = vec2<f32>();
    var behind = vec2<f32>();
    for (var i = 0u; i < args.key; i += 4u) {
        let key = y_four(at * args.key, i);
        let query = x_four(at * args.key, i);
        read.x += dot(query, product_four(chunk, OUT_M, t, i));
        behind.x += dot(key, product_four(chunk, WRITES_DM, t, i));
        if args.erase != ERASE_NOTHING || args.frozen > 0u {
            erase.x += dot(key, product_four(chunk, ADJOINT_M, t, i));
        }
        if args.matrices == 2u {
            read.y += dot(query, product_four(chunk, OUT_S, t, i));
            behind.y += dot(key, product_four(chunk, WRITES_DS, t, i));
            erase.y += dot(key, product_four(chunk, ADJOINT_S, t, i));
        }
    }
    put(chunk, READ_M, t, read.x);
    put(chunk, READ_S, t, read.y);
    put(chunk, ERASE_M, t, erase.x);
    put(chunk, ERASE_S, t, erase.y);
    put(chunk, BEHIND_M, t, behind.x);
    put(chunk, BEHIND_S, t, behind.y);
}
