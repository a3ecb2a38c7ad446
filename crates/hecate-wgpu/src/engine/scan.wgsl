// The recurrence token by token, forward: equations (1)-(5). A thread holds a column of one sequence and head.

@group(0) @binding(2) var<storage, read> q: array<f32>;             // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<f32>;             // [rows,H,K]
@group(0) @binding(4) var<storage, read> v: array<f32>;             // [rows,H,V]
@group(0) @binding(5) var<storage, read_write> out: array<f32>;     // [rows,H,V]
@group(0) @binding(6) var<storage, read_write> last_m: array<f32>;  // [N,H,K,V]
@group(0) @binding(7) var<storage, read_write> last_s: array<f32>;  // [N,H,K,V]
@group(0) @binding(8) var<storage, read_write> kept: array<f32>;    // [kept,H,M and S,K,V], with KEEP

// The state as kept state `i` [kept,H].
fn keep(i: u32, column: u32) {
    let at = i * MATRICES * KEY * args.value + column;
    for (var j = 0u; j < KEY; j++) {
        kept[at + j * args.value] = m_at(j);
    }
    if MOMENTUM == 1u {
        for (var j = 0u; j < KEY; j++) {
            kept[at + (KEY + j) * args.value] = s_at(j);
        }
    }
}

// (1) and (2): what token and head `t` writes; and what it reads if it does so before.
fn predict(t: u32, value: f32, gates: vec4<f32>) -> vec2<f32> {
    var target_value = value;
    var predicted = 0.0;
    var read = 0.0;
    if args.erase != ERASE_NOTHING {
        for (var i = 0u; i < KEY; i++) {
            predicted += k[t * KEY + i] * m_at(i);
        }
        predicted *= gates.y;
    }
    if FROZEN == 1u {
        for (var i = 0u; i < KEY; i++) {
            target_value -= k[t * KEY + i] * c_at(i);
        }
    }
    if args.before == 1u {
        for (var i = 0u; i < KEY; i++) {
            read += q[t * KEY + i] * m_at(i);
        }
    }
    return vec2<f32>(gates.x * target_value - predicted, read);
}

// (3) and (4); what is read after.
fn update(t: u32, z: f32, gates: vec4<f32>) -> f32 {
    var read = 0.0;
    for (var i = 0u; i < KEY; i++) {
        var write = k[t * KEY + i] * z;
        if MOMENTUM == 1u {
            write += gates.w * s_at(i);
            set_s(i, write);
        }
        let m = gates.z * m_at(i) + write;
        set_m(i, m);
        read += q[t * KEY + i] * m;
    }
    return read;
}

@compute @workgroup_size(64)
fn scan(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    take(thread);
    let column = thread % args.value;
    let state = thread / args.value;
    let head = state % args.heads;
    let all = sequence(state / args.heads);
    let matrix = state * KEY * args.value + column;
    for (var i = 0u; i < KEY; i++) {
        set_m(i, bitcast<f32>(work[args.m + matrix + i * args.value]));
        if MOMENTUM == 1u {
            set_s(i, bitcast<f32>(work[args.s + matrix + i * args.value]));
        }
    }
    var of_period = 0u;
    var of_group = 0u;
    var number = all.kept * args.heads + head;
    for (var t = 0u; t < all.tokens; t++) {
        if KEEP == 1u && of_period % CHUNK == 0u {
            keep(number, column);
            number += args.heads;
        }
        if FROZEN == 1u && of_group == 0u {
            for (var i = 0u; i < KEY; i++) {
                set_c(i, m_at(i));
            }
        }
        let at = (all.row + t) * args.heads + head;
        let gates = scalars_of(at);
        let made = predict(at, v[at * args.value + column], gates);
        let after = update(at, made.x, gates);
        out[at * args.value + column] = select(after, made.y, args.before == 1u);
        of_period = select(of_period + 1u, 0u, of_period + 1u == args.period);
        of_group = select(of_group + 1u, 0u, of_group + 1u == args.frozen);
    }
    for (var i = 0u; i < KEY; i++) {
        last_m[matrix + i * args.value] = m_at(i);
        if MOMENTUM == 1u {
            last_s[matrix + i * args.value] = s_at(i);
        }
    }
}
