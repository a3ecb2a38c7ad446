// The gradient of the memory, token by token in reverse: (6)-(9), (11)-(13) as far as they concern it. It needs no
// states.

@group(0) @binding(4) var<storage, read> dout: array<f32>;              // [rows,H,V]
@group(0) @binding(5) var<storage, read_write> first_dm: array<f32>;    // [N,H,K,V]
@group(0) @binding(6) var<storage, read_write> first_ds: array<f32>;    // [N,H,K,V]
@group(0) @binding(7) var<storage, read_write> kept_grads: array<f32>;  // [kept,H,dM and dS,K,V]: behind each span
@group(0) @binding(8) var<storage, read_write> dz: array<f32>;          // [rows,H,V]

const QUERIES = 1u;

const TO_DM = 0u;
const TO_DS = 1u;
const TO_KEPT = 2u;

fn value_at(i: u32) -> f32 {
    return dout[i];
}

fn state_at(i: u32) -> f32 {
    return bitcast<f32>(work[i]);
}

fn put_state(which: u32, i: u32, x: f32) {
    if which == TO_DM {
        first_dm[i] = x;
    } else if which == TO_DS {
        first_ds[i] = x;
    } else {
        kept_grads[i] = x;
    }
}

@compute @workgroup_size(THREADS)
fn reverse(own: Member) {
    let local = number(own);
    let lane = group_index(own.group);
    if lane >= args.count {
        return;
    }
    let state = lane / blocks();
    let head = state % args.heads;
    let mine = place(lane % blocks(), local);
    let all = sequence(state / args.heads);
    let matrix = state * key_length() * args.value + mine.column;
    var dm = read_rows(args.m + matrix, mine.part);
    var ds: Rows;
    if MOMENTUM == 1u {
        ds = read_rows(args.s + matrix, mine.part);
    }
    var dc: Rows;
    let last = all.tokens - 1u;
    var of_period = last % args.period;
    var of_group = last % max(args.frozen, 1u);
    var number = (all.kept + last / args.period * each() + of_period / CHUNK) * args.heads + head;
    // Against their order.
    let path = Path((all.row + last) * args.heads + head, 0u - args.heads, all.tokens);
    let column = lane % blocks() * COLUMNS;
    set_out(path, column, local);
    for (var t = 0u; t < all.tokens; t++) {
        let now = arrive(path, t, mine, column, local);
        let key = now.key;
        let query = now.query;
        let dy = now.value;
        let gates = now.gates;
        // The last token of a span.
        if t == 0u || of_period + 1u == args.period || (of_period + 1u) % CHUNK == 0u {
            if mine.writes {
                let to = number * MATRICES * key_length() * args.value + mine.column;
                write_rows(TO_KEPT, to, mine.part, dm);
                if MOMENTUM == 1u {
                    write_rows(TO_KEPT, to + key_length() * args.value, mine.part, ds);
                }
            }
            number -= args.heads;
        }
        // (6)-(8).
        if args.before == 0u {
            dm = added(dm, dy, query);
        }
        var sum = 0.0;
        if MOMENTUM == 1u {
            ds = sum_of(ds, dm);
            sum = product_of(key, ds);
        } else {
            sum = product_of(key, dm);
        }
        sum = over_parts(vec2<f32>(sum, 0.0), t % 2u, local).x;
        if mine.first {
            dz[now.at * args.value + mine.column] = sum;
        }
        // (11)-(13).
        let dp = select(0.0, -gates.y * sum, args.erase != ERASE_NOTHING);
        dm = added(scaled(key, dp), gates.z, dm);
        if MOMENTUM == 1u {
            ds = scaled(ds, gates.w);
        }
        if FROZEN == 1u {
            dc = added(dc, -gates.x * sum, key);
            if of_group == 0u {
                dm = sum_of(dm, dc);
                dc = Rows();
            }
        }
        if args.before == 1u {
            dm = added(dm, dy, query);
        }
        of_period = select(of_period, args.period, of_period == 0u) - 1u;
        of_group = select(of_group, max(args.frozen, 1u), of_group == 0u) - 1u;
    }
    if mine.writes {
        write_rows(TO_DM, matrix, mine.part, dm);
        if MOMENTUM == 1u {
            write_rows(TO_DS, matrix, mine.part, ds);
        }
    }
}
