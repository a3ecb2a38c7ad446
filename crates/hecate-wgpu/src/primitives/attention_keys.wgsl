// Gradients of keys and values: dk = scale sum of ds q with ds = p (dy.v - D), and dv = sum of p dy, over the units that
// see a key.
//
// A workgroup owns 32 keys and one slab of 64 columns of dk and dv; units pass in tiles.
// Each gradient has one owner: nothing is added by two workgroups.

// (lse, D) [rows, Hq, 2]
@group(0) @binding(6) var<storage, read> query_terms: array<f32>;
// [N P + rows, Hkv, ..]; for the prefix, a part of the sums for each job [.., Np, Hkv, ..]
@group(0) @binding(7) var<storage, read_write> dk: array<f32>;
@group(0) @binding(8) var<storage, read_write> dv: array<f32>;

// Gradients of four keys of the tile.
struct Grads {
    k: Wide,
    v: Wide,
}

// Adds what units `begin .. end` tell the keys of the tile.
// Registers hold 4 keys by 8 columns of dk and of dv.
fn key_grads(job: Job, lane: u32, begin: i32, end: i32) -> Grads {
    let none = Wide(mat4x4<f32>(), mat4x4<f32>());
    var grads = Grads(none, none);
    let start = job.slab * SLAB;
    let key = 4u * (lane / 8u);
    let unit = 4u * (lane % 8u);
    for (var at = begin; at < end; at += TILE) {
        workgroupBarrier();
        if lane < 32u {
            set_unit(job, lane, at + i32(lane), end);
            let row = unit_rows[lane];
            var sum = 0.0;
            var along = 0.0;
            if row != NONE {
                sum = query_terms[2u * row];
                along = query_terms[2u * row + 1u];
            }
            // What the queries' kernel left of each unit.
            unit_lse[lane] = sum;
            unit_along[lane] = along;
        }
        // Rows are keys here, columns units.
        var p = scores(lane, K, Q);
        var g = scores(lane, V, DY);
        let tokens = four_tokens(unit);
        let units = four_units(unit);
        for (var i = 0u; i < 4u; i += 1u) {
            let seen = seers_of(key + i, tokens);
            p[i] = weights_of(p[i], units[0], seen);
            g[i] = select(vec4<f32>(), p[i] * (g[i] - units[1]), seen);
        }
        keep(lane, 0u, g);
        keep(lane, 1u, p);
        let count = min(end - at, TILE);
        // A slab may be wider than one of the two widths.
        if start < args.key { grads.k = weigh(lane, grads.k, 0u, count, Q, start); }
        if start < args.value { grads.v = weigh(lane, grads.v, 1u, count, DY, start); }
    }
    return grads;
}

// Columns after the last are left out.
fn store_k(row: u32, column: u32, x: vec4<f32>) {
    let at = row * args.key + column;
    if column < args.key { dk[at] = args.scale * x.x; }
    if column + 1u < args.key { dk[at + 1u] = args.scale * x.y; }
    if column + 2u < args.key { dk[at + 2u] = args.scale * x.z; }
    if column + 3u < args.key { dk[at + 3u] = args.scale * x.w; }
}

// The same of values.
fn store_v(row: u32, column: u32, x: vec4<f32>) {
    let at = row * args.value + column;
    if column < args.value { dv[at] = x.x; }
    if column + 1u < args.value { dv[at + 1u] = x.y; }
    if column + 2u < args.value { dv[at + 2u] = x.z; }
    if column + 3u < args.value { dv[at + 3u] = x.w; }
}

// The gradients of key `4 ty + i`, to row `row`.
// Keys of the prefix and of the window go to different arrays: the caller says which row.
fn put(job: Job, lane: u32, i: u32, row: u32, grads: Grads) {
    let column = job.slab * SLAB + 4u * (lane % 8u);
    store_k(row, column, grads.k.near[i]);
    store_k(row, column + 32u, grads.k.far[i]);
    store_v(row, column, grads.v.near[i]);
    store_v(row, column + 32u, grads.v.far[i]);
}

// Keys first .. first + 31 of a sequence.
@compute @workgroup_size(64)
fn attention_dkv(own: Member) {
    let lane = number(own);
    let group = group_index(own.group);
    if group >= args.groups { return; }
    let job = job_of(group);
    if lane < 32u {
        let at = job.first + i32(lane);
        if at < job.length { window_key(job, lane, at); } else { no_key(lane); }
    }
    // The tokens that see the first key or a later one, and those that see the last or an earlier one.
    let begin = max(job.first, 0);
    let end = min(min(job.first + TILE - 1, job.length - 1) + args.kept, job.length - 1) + 1;
    let grads = key_grads(job, lane, begin * shared_by(), end * shared_by());
    // Rows of the prefix, which `window_row` counts first and this result does not have.
    let in_front = u32(args.prefix) * args.heads;
    for (var i = 0u; i < 4u; i += 1u) {
        let at = job.first + i32(4u * (lane / 8u) + i);
        if at < job.length { put(job, lane, i, window_row(job, at) - in_front, grads); }
    }
}

// All keys of the prefix, for a run of the units of all rows, which count as one sequence: everyone sees the prefix.
@compute @workgroup_size(64)
fn attention_dprefix(own: Member) {
    let lane = number(own);
    let group = group_index(own.group);
    if group >= args.groups { return; }
    let job = job_of(group);
    let end = min(job.first + args.part_units, job.length * shared_by());
    // Which part of the sums: a job writes its own.
    let part = u32(job.first / args.part_units);
    for (var first = 0; first < args.prefix; first += TILE) {
        workgroupBarrier();
        if lane < 32u {
            let place = first + i32(lane);
            if place < args.prefix { prefix_key(job, lane, place); } else { no_key(lane); }
        }
        let grads = key_grads(job, lane, job.first, end);
        for (var i = 0u; i < 4u; i += 1u) {
            let place = first + i32(4u * (lane / 8u) + i);
            if place < args.prefix {
                put(job, lane, i, (part * u32(args.prefix) + u32(place)) * args.heads + job.head, grads);
            }
        }
    }
}
