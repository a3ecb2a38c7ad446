// The recurrence token by token, forward: equations (1)-(5).
//
// Registers of an invocation hold ROWS rows of one column of M, and of S and of the frozen M_c where there are such.
// Workgroup memory holds the keys, queries, values and scalars of TILE tokens, and the sums over a column.

@group(0) @binding(4) var<storage, read> v: array<One>;             // [rows,H,V]
@group(0) @binding(5) var<storage, read_write> out: array<Output>;    // [rows,H,V]
@group(0) @binding(6) var<storage, read_write> last_m: array<f32>;  // [N,H,K,V]
@group(0) @binding(7) var<storage, read_write> last_s: array<f32>;  // [N,H,K,V]
@group(0) @binding(8) var<storage, read_write> kept: array<f32>;    // [kept,H,M and S,K,V], if any are

// Element `i` of v, widened from the type it is stored in.
fn value_at(i: u32) -> f32 {
    return one(v[i / EACH], i);
}

// Takes M and S through all tokens, (1)-(5), stores out [rows,H,V], and keeps the states before segments for a backward.
@compute @workgroup_size(THREADS)
fn scan(own: Member) {
    let local = number(own);
    let block = group_index(own.group);
    if block >= args.count {
        return;
    }
    let walk = walk_of(block, local);
    let mine = walk.mine;
    let all = tokens_of(block);
    var m = read_rows(args.m + walk.matrix, mine.part);
    var s = first_momentum(walk);
    // The memory of the frozen target, equal for all tokens of a group.
    var c: Rows;
    // Tokens since the period and since the frozen group began: counters, because a division a token is slow.
    var of_period = 0u;
    var of_group = 0u;
    // Number of the next kept state among all [kept, H].
    var number = all.kept * args.heads + walk.head;
    let path = Path(all.row * args.heads + walk.head, args.heads, all.tokens);
    let column = walk.column;
    set_out(path, column, local);
    // What the rows add to the read of the token before: the sum over the column is taken with the next token's.
    var read = 0.0;
    for (var t = 0u; t < all.tokens; t++) {
        let now = arrive(path, t, mine, column, local);
        let key = now.key;
        let query = now.query;
        let gates = now.gates;
        // A backward starts from the state before each segment; without a backward nothing is kept.
        if args.keep == 1u && of_period % CHUNK == 0u {
            keep(walk, number, m, s);
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
        // Two halves of workgroup memory in turn: one barrier a token is enough.
        sums = column_sum(sums, t % 2u, local);
        if mine.first && t + args.before > 0u {
            out[(now.at - (1u - args.before) * args.heads) * args.value + mine.column] = to_output(sums.y);
        }
        // z = w v - w k M_c - r k M: what is written at key k.
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
    // The last token's read is still missing: its sum has no token to come with.
    if args.before == 0u {
        let last = column_sum(vec2<f32>(0.0, read), all.tokens % 2u, local);
        if mine.first {
            out[place_of(path, all.tokens - 1u) * args.value + mine.column] = to_output(last.y);
        }
    }
    leave(walk, m, s);
}
