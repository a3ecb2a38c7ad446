// The gradient of the memory, token by token in reverse: (6)-(9), (11)-(13) as far as they concern it. It needs no states.
// A thread holds a column of one sequence and head.

@group(0) @binding(2) var<storage, read> q: array<f32>;                 // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<f32>;                 // [rows,H,K]
@group(0) @binding(4) var<storage, read> dout: array<f32>;              // [rows,H,V]
@group(0) @binding(5) var<storage, read_write> first_dm: array<f32>;    // [N,H,K,V]
@group(0) @binding(6) var<storage, read_write> first_ds: array<f32>;    // [N,H,K,V]
@group(0) @binding(7) var<storage, read_write> kept_grads: array<f32>;  // [kept,H,dM and dS,K,V]: behind each span
@group(0) @binding(8) var<storage, read_write> dz: array<f32>;          // [rows,H,V]

fn keep(i: u32, column: u32) {
    let at = i * MATRICES * KEY * args.value + column;
    for (var j = 0u; j < KEY; j++) {
        kept_grads[at + j * args.value] = m_at(j);
        if MOMENTUM == 1u {
            kept_grads[at + (KEY + j) * args.value] = s_at(j);
        }
    }
}

// (6)-(8): dz of token and head `t`.
fn gather(t: u32, dy: f32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < KEY; i++) {
        var dm = m_at(i);
        if args.before == 0u {
            dm += q[t * KEY + i] * dy;
            set_m(i, dm);
        }
        if MOMENTUM == 1u {
            dm += s_at(i);
            set_s(i, dm);
        }
        sum += k[t * KEY + i] * dm;
    }
    return sum;
}

// (11)-(13); `leaves` at the first token of a frozen group.
fn spread(t: u32, dy: f32, dz: f32, leaves: bool) {
    let gates = scalars_of(t);
    let dv = gates.x * dz;
    let dp = select(0.0, -gates.y * dz, args.erase != ERASE_NOTHING);
    let late = select(0.0, dy, args.before == 1u);
    for (var i = 0u; i < KEY; i++) {
        var dm = gates.z * m_at(i) + k[t * KEY + i] * dp;
        if MOMENTUM == 1u {
            set_s(i, gates.w * s_at(i));
        }
        if FROZEN == 1u {
            let dc = c_at(i) - k[t * KEY + i] * dv;
            set_c(i, select(dc, 0.0, leaves));
            dm += select(0.0, dc, leaves);
        }
        set_m(i, dm + q[t * KEY + i] * late);
    }
}

@compute @workgroup_size(64)
fn reverse(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
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
        if FROZEN == 1u {
            set_c(i, 0.0);
        }
    }
    let last = all.tokens - 1u;
    var of_period = last % args.period;
    var of_group = select(0u, last % max(args.frozen, 1u), FROZEN == 1u);
    var number = last / args.period * each() + of_period / CHUNK;
    for (var t = all.tokens; t > 0u;) {
        t--;
        // The last token of a span.
        if t == last || of_period + 1u == args.period || (of_period + 1u) % CHUNK == 0u {
            keep((all.kept + number) * args.heads + head, column);
            number = max(number, 1u) - 1u;
        }
        let at = (all.row + t) * args.heads + head;
        let dy = dout[at * args.value + column];
        let sum = gather(at, dy);
        dz[at * args.value + column] = sum;
        spread(at, dy, sum, FROZEN == 1u && of_group == 0u);
        of_period = select(of_period, args.period, of_period == 0u) - 1u;
        of_group = select(of_group, max(args.frozen, 1u), of_group == 0u) - 1u;
    }
    for (var i = 0u; i < KEY; i++) {
        first_dm[matrix + i * args.value] = m_at(i);
        if MOMENTUM == 1u {
            first_ds[matrix + i * args.value] = s_at(i);
        }
    }
}
