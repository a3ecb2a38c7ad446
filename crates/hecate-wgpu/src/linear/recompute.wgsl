// What every token wrote, once more: equations (1)-(4) from the kept states, all segments at once.
//
// A workgroup owns COLUMNS columns of one segment of one sequence and head; all segments run at once.
// Registers hold the same rows as in the scan forward.

@group(0) @binding(4) var<storage, read> v: array<f32>;                // [rows,H,V]
@group(0) @binding(5) var<storage, read> kept: array<f32>;             // [kept,H,M and S,K,V]
@group(0) @binding(6) var<storage, read_write> z: array<f32>;          // [rows,H,V]: what is written
@group(0) @binding(7) var<storage, read_write> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(8) var<storage, read_write> targets: array<f32>;    // [rows,H,V]: v - k M_c, with FROZEN

// No token is read.
const QUERIES = 0u;

// Element `i` of v, in 32 bits by now.
fn value_at(i: u32) -> f32 {
    return v[i];
}

// Element `i` of the kept states.
fn state_at(i: u32) -> f32 {
    return kept[i];
}

// Computes z [rows,H,V] and the predictions again from the kept states, (1)-(4), one segment of one head a workgroup.
@compute @workgroup_size(THREADS)
fn recompute(own: Member) {
    let local = number(own);
    let block = group_index(own.group);
    if block >= args.count {
        return;
    }
    let here = segment(block / blocks());
    // Shorter sequences have fewer segments than the longest.
    if here.tokens == 0u {
        return;
    }
    let mine = place(block % blocks(), local);
    // M, then S, of the state before the segment.
    let before = here.kept * MATRICES * key_length() * args.value + mine.column;
    var m = read_rows(before, mine.part);
    var s: Rows;
    if MOMENTUM == 1u {
        s = read_rows(before + key_length() * args.value, mine.part);
    }
    var c: Rows;
    // In a period longer than a chunk the target is read from the period's first state.
    if FROZEN == 1u {
        c = read_rows(here.leader * MATRICES * key_length() * args.value + mine.column, mine.part);
    }
    // Tokens of one head stand `H` rows apart in arrays [rows,H].
    let path = Path(token(here, 0u), args.heads, here.tokens);
    let column = block % blocks() * COLUMNS;
    set_out(path, column, local);
    for (var t = 0u; t < here.tokens; t++) {
        let now = arrive(path, t, mine, column, local);
        let key = now.key;
        let gates = now.gates;
        // k M and k M_c: the prediction p, and what the frozen target loses.
        var sums = vec2<f32>();
        if args.erase != ERASE_NOTHING {
            sums.x = product_of(key, m);
        }
        if FROZEN == 1u {
            if args.period <= CHUNK && group_start(t) == t {
                c = m;
            }
            sums.y = product_of(key, c);
        }
        if args.erase != ERASE_NOTHING || FROZEN == 1u {
            sums = column_sum(sums, t % 2u, local);
        }
        // v - k M_c, and from it z = w (v - k M_c) - r p.
        let to = now.value - sums.y;
        let written = gates.x * to - select(0.0, gates.y * sums.x, args.erase != ERASE_NOTHING);
        if mine.first {
            z[now.at * args.value + mine.column] = written;
            if args.erase != ERASE_NOTHING {
                predicted[now.at * args.value + mine.column] = sums.x;
            }
            if FROZEN == 1u {
                targets[now.at * args.value + mine.column] = to;
            }
        }
        if MOMENTUM == 1u {
            s = added(scaled(key, written), gates.w, s);
            m = added(s, gates.z, m);
        } else {
            m = added(scaled(key, written), gates.z, m);
        }
    }
}
