// The gradient of the memory, token by token in reverse: (6)-(9), (11)-(13) as far as they concern it. It needs no
// states.
//
// A workgroup walks from the last token to the first.
// Registers hold ROWS rows of a column of dM, and of dS and of the frozen target's dM_c where there are such.

@group(0) @binding(4) var<storage, read> dout: array<f32>;              // [rows,H,V]
@group(0) @binding(5) var<storage, read_write> last_m: array<f32>;      // [N,H,K,V]: dM of the initial state
@group(0) @binding(6) var<storage, read_write> last_s: array<f32>;      // [N,H,K,V]: dS of it
@group(0) @binding(7) var<storage, read_write> kept: array<f32>;        // [kept,H,dM and dS,K,V]: after each segment
@group(0) @binding(8) var<storage, read_write> dz: array<f32>;          // [rows,H,V]

// Element `i` of dO, which takes the place of the values.
fn value_at(i: u32) -> f32 {
    return dout[i];
}

// Takes dM and dS from the last token to the first, (6)-(9) and (11)-(13); keeps them after each segment and stores dz.
@compute @workgroup_size(THREADS)
fn reverse(own: Member) {
    let local = number(own);
    let block = group_index(own.group);
    if block >= args.count {
        return;
    }
    let walk = walk_of(block, local);
    let mine = walk.mine;
    let all = tokens_of(block);
    var dm = read_rows(args.m + walk.matrix, mine.part);
    var ds = first_momentum(walk);
    var dc: Rows;
    // Counters start at the last token's place in its period and group.
    let last = all.tokens - 1u;
    var of_period = last % args.period;
    var of_group = last % max(args.frozen, 1u);
    var number = (all.kept + last / args.period * each() + of_period / CHUNK) * args.heads + walk.head;
    // Against their order.
    let path = Path((all.row + last) * args.heads + walk.head, 0u - args.heads, all.tokens);
    let column = walk.column;
    set_out(path, column, local);
    for (var t = 0u; t < all.tokens; t++) {
        let now = arrive(path, t, mine, column, local);
        let key = now.key;
        let query = now.query;
        let dy = now.value;
        let gates = now.gates;
        // The last token of a segment.
        if t == 0u || of_period + 1u == args.period || (of_period + 1u) % CHUNK == 0u {
            keep(walk, number, dm, ds);
            // The segment before this one has the number before.
            number -= args.heads;
        }
        // The read of the token itself comes first where it saw its own write.
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
        sum = column_sum(vec2<f32>(sum, 0.0), t % 2u, local).x;
        // dz = k dM (with momentum k dS): the gradient of what the token wrote, Λ.
        if mine.first {
            dz[now.at * args.value + mine.column] = sum;
        }
        // Erase and decay: dM = a dM - r kᵀ Λ, and the gradient of the frozen target gathers in dM_c.
        // (11)-(13).
        let dp = select(0.0, -gates.y * sum, args.erase != ERASE_NOTHING);
        dm = added(scaled(key, dp), gates.z, dm);
        if MOMENTUM == 1u {
            ds = scaled(ds, gates.w);
        }
        // (12).
        if FROZEN == 1u {
            dc = added(dc, -gates.x * sum, key);
            // At the first token of its group the target's memory is the memory itself.
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
    leave(walk, dm, ds);
}
