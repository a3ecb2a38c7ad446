// What every token wrote, once more: equations (1)-(4) from the kept states, all spans at once.

@group(0) @binding(4) var<storage, read> v: array<f32>;                // [rows,H,V]
@group(0) @binding(5) var<storage, read> kept: array<f32>;             // [kept,H,M and S,K,V]
@group(0) @binding(6) var<storage, read_write> z: array<f32>;          // [rows,H,V]: what is written
@group(0) @binding(7) var<storage, read_write> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(8) var<storage, read_write> targets: array<f32>;    // [rows,H,V]: v - k M_c, with FROZEN

fn state_at(i: u32) -> f32 {
    return kept[i];
}

@compute @workgroup_size(THREADS)
fn replay(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let lane = group_index(group);
    if lane >= args.count {
        return;
    }
    let here = span(lane / blocks());
    if here.tokens == 0u {
        return;
    }
    let own = place(lane % blocks(), local);
    let before = here.kept * MATRICES * KEY * args.value + own.column;
    var m = read_rows(before, own.part);
    var s: Rows;
    if MOMENTUM == 1u {
        s = read_rows(before + KEY * args.value, own.part);
    }
    var c: Rows;
    if FROZEN == 1u {
        c = read_rows(here.leader * MATRICES * KEY * args.value + own.column, own.part);
    }
    var next_key = key_rows(token(here, 0u) * KEY, own.part);
    for (var t = 0u; t < here.tokens; t++) {
        let at = token(here, t);
        let key = next_key;
        let value = v[at * args.value + own.column];
        let gates = scalars_of(at);
        next_key = key_rows(token(here, min(t + 1u, here.tokens - 1u)) * KEY, own.part);
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
        let to = value - sums.y;
        let written = gates.x * to - select(0.0, gates.y * sums.x, args.erase != ERASE_NOTHING);
        if own.first {
            z[at * args.value + own.column] = written;
            if args.erase != ERASE_NOTHING {
                predicted[at * args.value + own.column] = sums.x;
            }
            if FROZEN == 1u {
                targets[at * args.value + own.column] = to;
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
