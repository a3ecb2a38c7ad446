// What every token wrote, once more: equations (1)-(4) from the kept states, all spans at once. A thread holds a column of
// one span.

@group(0) @binding(2) var<storage, read> k: array<f32>;                // [rows,H,K]
@group(0) @binding(3) var<storage, read> v: array<f32>;                // [rows,H,V]
@group(0) @binding(4) var<storage, read> kept: array<f32>;             // [kept,H,M and S,K,V]
@group(0) @binding(5) var<storage, read_write> z: array<f32>;          // [rows,H,V]: what is written
@group(0) @binding(6) var<storage, read_write> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(7) var<storage, read_write> targets: array<f32>;    // [rows,H,V]: v - k M_c, with FROZEN

// (1)-(4) of token and head `t`, at this column.
fn step(t: u32, column: u32) {
    let gates = scalars_of(t);
    var p = 0.0;
    var to = v[t * args.value + column];
    if args.erase != ERASE_NOTHING {
        for (var i = 0u; i < KEY; i++) {
            p += k[t * KEY + i] * m_at(i);
        }
        predicted[t * args.value + column] = p;
    }
    if FROZEN == 1u {
        for (var i = 0u; i < KEY; i++) {
            to -= k[t * KEY + i] * c_at(i);
        }
        targets[t * args.value + column] = to;
    }
    let written = gates.x * to - gates.y * p;
    z[t * args.value + column] = written;
    for (var i = 0u; i < KEY; i++) {
        var write = k[t * KEY + i] * written;
        if MOMENTUM == 1u {
            write += gates.w * s_at(i);
            set_s(i, write);
        }
        set_m(i, gates.z * m_at(i) + write);
    }
}

@compute @workgroup_size(64)
fn replay(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    take(thread);
    let column = thread % args.value;
    let here = span(thread / args.value);
    if here.tokens == 0u {
        return;
    }
    let state = here.kept * MATRICES * KEY * args.value + column;
    let leader = here.leader * MATRICES * KEY * args.value + column;
    for (var i = 0u; i < KEY; i++) {
        set_m(i, kept[state + i * args.value]);
        if MOMENTUM == 1u {
            set_s(i, kept[state + (KEY + i) * args.value]);
        }
        if FROZEN == 1u {
            set_c(i, kept[leader + i * args.value]);
        }
    }
    for (var t = 0u; t < here.tokens; t++) {
        if FROZEN == 1u && t > 0u && args.period <= CHUNK && group_start(t) == t {
            for (var i = 0u; i < KEY; i++) {
                set_c(i, m_at(i));
            }
        }
        step(token(here, t), column);
    }
}
