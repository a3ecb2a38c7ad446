// The recurrence token by token, forward: equations (1)-(5).

@group(0) @binding(4) var<storage, read> v: array<One>;             // [rows,H,V]
@group(0) @binding(5) var<storage, read_write> out: array<Made>;    // [rows,H,V]
@group(0) @binding(6) var<storage, read_write> last_m: array<f32>;  // [N,H,K,V]
@group(0) @binding(7) var<storage, read_write> last_s: array<f32>;  // [N,H,K,V]
@group(0) @binding(8) var<storage, read_write> kept: array<f32>;    // [kept,H,M and S,K,V], if any are

const QUERIES = 1u;

const TO_M = 0u;
const TO_S = 1u;
const TO_KEPT = 2u;

fn value_at(i: u32) -> f32 {
    return one(v[i / EACH], i);
}

fn state_at(i: u32) -> f32 {
    return bitcast<f32>(work[i]);
}

fn put_state(which: u32, i: u32, x: f32) {
    if which == TO_M {
        last_m[i] = x;
    } else if which == TO_S {
        last_s[i] = x;
    } else {
        kept[i] = x;
    }
}

@compute @workgroup_size(THREADS)
fn scan(own: Member) {
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
    var m = read_rows(args.m + matrix, mine.part);
    var s: Rows;
    if MOMENTUM == 1u {
        s = read_rows(args.s + matrix, mine.part);
    }
    var c: Rows;
    var of_period = 0u;
    var of_group = 0u;
    var number = all.kept * args.heads + head;
    let path = Path(all.row * args.heads + head, args.heads, all.tokens);
    let column = lane % blocks() * COLUMNS;
    set_out(path, column, local);
    // What the rows add to the read of the token before: the sum over the column is taken with the next token's.
    var read = 0.0;
    for (var t = 0u; t < all.tokens; t++) {
        let now = arrive(path, t, mine, column, local);
        let key = now.key;
        let query = now.query;
        let gates = now.gates;
        if args.keep == 1u && of_period % CHUNK == 0u && mine.writes {
            let to = number * MATRICES * key_length() * args.value + mine.column;
            write_rows(TO_KEPT, to, mine.part, m);
            if MOMENTUM == 1u {
                write_rows(TO_KEPT, to + key_length() * args.value, mine.part, s);
            }
        }
        number += select(0u, args.heads, of_period % CHUNK == 0u);
        // What (1) and (2) take from the value; what is read.
        var sums = vec2<f32>(0.0, read);
        if args.erase != ERASE_NOTHING {
            sums.x = gates.y * product_of(key, m);
        }
        if FROZEN == 1u {
            if of_group == 0u {
                c = m;
            }
            sums.x += gates.x * product_of(key, c);
        }
        if args.before == 1u {
            sums.y = product_of(query, m);
        }
        sums = over_parts(sums, t % 2u, local);
        if mine.first && t + args.before > 0u {
            out[(now.at - (1u - args.before) * args.heads) * args.value + mine.column] = made(sums.y);
        }
        let z = gates.x * now.value - sums.x;
        // (3), (4).
        if MOMENTUM == 1u {
            s = added(scaled(key, z), gates.w, s);
            m = added(s, gates.z, m);
        } else {
            m = added(scaled(key, z), gates.z, m);
        }
        read = product_of(query, m);
        of_period = select(of_period + 1u, 0u, of_period + 1u == args.period);
        of_group = select(of_group + 1u, 0u, of_group + 1u == args.frozen);
    }
    if args.before == 0u {
        let last = over_parts(vec2<f32>(0.0, read), all.tokens % 2u, local);
        if mine.first {
            out[place_of(path, all.tokens - 1u) * args.value + mine.column] = made(last.y);
        }
    }
    if mine.writes {
        write_rows(TO_M, matrix, mine.part, m);
        if MOMENTUM == 1u {
            write_rows(TO_S, matrix, mine.part, s);
        }
    }
}
