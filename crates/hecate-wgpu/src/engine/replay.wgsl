// What every token wrote, once more: equations (1)-(4) from the kept states, all spans at once.

@group(0) @binding(4) var<storage, read> v: array<f32>;                // [rows,H,V]
@group(0) @binding(5) var<storage, read> kept: array<f32>;             // [kept,H,M and S,K,V]
@group(0) @binding(6) var<storage, read_write> z: array<f32>;          // [rows,H,V]: what is written
@group(0) @binding(7) var<storage, read_write> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(8) var<storage, read_write> targets: array<f32>;    // [rows,H,V]: v - k M_c, with FROZEN

// No token is read.
const QUERIES = 0u;

fn value_at(i: u32) -> f32 {
    return v[i];
}

fn state_at(i: u32) -> f32 {
    return kept[i];
}

@compute @workgroup_size(THREADS)
fn replay(own: Member) {
    let local = number(own);
    let lane = group_index(own.group);
    if lane >= args.count {
        return;
    }
    let here = span(lane / blocks());
    if here.tokens == 0u {
        return;
    }
    let mine = place(lane % blocks(), local);
    let before = here.kept * MATRICES * key_length() * args.value + mine.column;
    var m = read_rows(before, mine.part);
    var s: Rows;
    if MOMENTUM == 1u {
        s = read_rows(before + key_length() * args.value, mine.part);
    }
    var c: Rows;
    if FROZEN == 1u {
        c = read_rows(here.leader * MATRICES * key_length() * args.value + mine.column, mine.part);
    }
    let path = Path(token(here, 0u), args.heads, here.tokens);
    let column = lane % blocks() * COLUMNS;
    set_out(path, column, local);
    for (var t = 0u; t < here.tokens; t++) {
        let now = arrive(path, t, mine, column, local);
        let key = now.key;
        let gates = now.gates;
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
            sums = over_parts(sums, t % 2u, local);
        }
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
