// dq, and D = sum of p (dy.v), which is dy.y but for the rounding of a y kept in 16 bits. D is known only after the last
// key, so dq = scale (sum of p (dy.v) k - D sum of p k).
//
// A workgroup owns 32 units and one slab of 64 columns of dq; keys pass in tiles.

// [rows, Hq]
@group(0) @binding(6) var<storage, read> lse: array<f32>;
// [rows, Hq, d]
@group(0) @binding(7) var<storage, read_write> dq: array<f32>;
// (lse, D) [rows, Hq, 2]
@group(0) @binding(8) var<storage, read_write> query_terms: array<f32>;

// A fixed order of additions.
fn total(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

// Columns after the last are left out.
fn store(at: u32, column: u32, x: vec4<f32>) {
    if column < args.key { dq[at] = x.x; }
    if column + 1u < args.key { dq[at + 1u] = x.y; }
    if column + 2u < args.key { dq[at + 2u] = x.z; }
    if column + 3u < args.key { dq[at + 3u] = x.w; }
}

// The gradient of unit `4 ty + i`.
// The first slab also tells the keys' kernel lse and D of the unit.
fn finish(job: Job, lane: u32, i: u32, sloped: array<vec4<f32>, 2>, seen: array<vec4<f32>, 2>, along: f32) {
    let slot = 4u * (lane / 8u) + i;
    let row = unit_rows[slot];
    if row == NONE { return; }
    let column = job.slab * SLAB + 4u * (lane % 8u);
    store(row * args.key + column, column, args.scale * (sloped[0] - along * seen[0]));
    store(row * args.key + column + 32u, column + 32u, args.scale * (sloped[1] - along * seen[1]));
    if job.slab == 0u && lane % 8u == 0u {
        query_terms[2u * row] = unit_lse[slot];
        query_terms[2u * row + 1u] = along;
    }
}

// dq = scale * (p ∘ (dy @ v.T - D)) @ k for 32 units of a job and a slab of columns, and D a unit.
@compute @workgroup_size(64)
// The same loop as the forward, with the maximum and the sum known.
fn attention_dq(own: Member) {
    let lane = number(own);
    let group = group_index(own.group);
    if group >= args.groups { return; }
    let job = job_of(group);
    let all = seen(job);
    if lane < 32u {
        set_unit(job, lane, job.first + i32(lane), job.length * shared_by());
        let row = unit_rows[lane];
        var sum = 0.0;
        if row != NONE { sum = lse[row]; }
        unit_lse[lane] = sum;
    }
    let unit = 4u * (lane / 8u);
    let key = 4u * (lane % 8u);
    // Sums of p (dy.v) k, and of p k.
    var sloped = Wide(mat4x4<f32>(), mat4x4<f32>());
    var plain = Wide(mat4x4<f32>(), mat4x4<f32>());
    var along = vec4<f32>();
    for (var at = 0; at < all.count; at += TILE) {
        workgroupBarrier();
        if lane < 32u { seen_key(job, all, lane, at + i32(lane)); }
        // Scores for the weights, and dy·v for their gradients.
        var p = scores(lane, Q, K);
        var g = scores(lane, DY, V);
        for (var i = 0u; i < 4u; i += 1u) {
            let sees = seen_by(unit_tokens[unit + i], key);
            p[i] = weights_of(p[i], vec4<f32>(unit_lse[unit + i]), sees);
            g[i] = select(vec4<f32>(), p[i] * g[i], sees);
        }
        along += vec4<f32>(total(g[0]), total(g[1]), total(g[2]), total(g[3]));
        // Kind 0 holds p (dy·v), kind 1 holds p.
        keep(lane, 0u, g);
        keep(lane, 1u, p);
        let count = min(all.count - at, TILE);
        sloped = weigh(lane, sloped, 0u, count, K, job.slab * SLAB);
        plain = weigh(lane, plain, 1u, count, K, job.slab * SLAB);
    }
    workgroupBarrier();
    let sum = row_sums(lane, along);
    for (var i = 0u; i < 4u; i += 1u) {
        let slopes = array<vec4<f32>, 2>(sloped.near[i], sloped.far[i]);
        finish(job, lane, i, slopes, array<vec4<f32>, 2>(plain.near[i], plain.far[i]), sum[i]);
    }
}
