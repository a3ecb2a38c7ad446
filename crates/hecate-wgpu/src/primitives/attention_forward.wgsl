// Forward: keys pass in tiles, and with them the maximum of the scores, the sum of their exponentials and the outputs,
// all relative to the maximum so far.
//
// A workgroup owns 32 units and one slab of 64 output columns; an invocation 4 units by 8 columns.

// [rows, Hq, dv], [rows, Hq]
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> lse: array<f32>;

// The arrays that a forward reads.
fn number_of(array: u32, at: u32) -> f32 {
    if array == Q { return q[at]; }
    if array == K { return k[at]; }
    return v[at];
}

// Over four keys of one unit.
fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

// A fixed order of additions.
fn total(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

// What a column of a matrix is multiplied by.
// Outputs so far are relative to an old maximum: they are scaled to the new one.
fn scaled(x: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x[0] * by.x, x[1] * by.y, x[2] * by.z, x[3] * by.w);
}

// Columns after the last are left out.
fn store(at: u32, column: u32, x: vec4<f32>) {
    if column < args.value { y[at] = x.x; }
    if column + 1u < args.value { y[at + 1u] = x.y; }
    if column + 2u < args.value { y[at + 2u] = x.z; }
    if column + 3u < args.value { y[at + 3u] = x.w; }
}

// The results of one unit.
// The first slab's first invocation of a unit also writes lse.
fn finish(job: Job, part: u32, slot: u32, lane: u32, near: vec4<f32>, far: vec4<f32>, top: f32, all: f32) {
    if unit_rows[slot] == NONE { return; }
    let row = part * args.part_rows + unit_rows[slot];
    // A unit may see none of a part's keys: its result is 0, which counts for nothing.
    let sum = select(all, 1.0, all == 0.0 && !is_nan(all));
    let column = job.slab * SLAB + 4u * (lane % 8u);
    store(row * args.value + column, column, near / sum);
    store(row * args.value + column + 32u, column + 32u, far / sum);
    // `log` may swallow a NaN.
    if job.slab == 0u && lane % 8u == 0u { lse[row] = select(top + log(sum), sum, is_nan(sum)); }
}

// out = softmax(scale * q @ k.T) @ v for 32 units of a job and a slab of columns, with lse a unit.
@compute @workgroup_size(64)
// Every barrier is reached by all 64 invocations: loops depend on the job alone.
fn attention_forward(own: Member) {
    let lane = number(own);
    let group = group_index(own.group);
    if group >= args.groups { return; }
    // Where keys are shared out, parts have workgroups and rows of results of their own, one part after another.
    let part = group / args.part_groups;
    let job = job_of(group % args.part_groups);
    let all = seen(job);
    let begin = i32(part) * args.part_keys;
    let end = min(all.count, begin + args.part_keys);
    if lane < 32u { set_unit(job, lane, job.first + i32(lane), job.length * shared_by()); }
    let unit = 4u * (lane / 8u);
    let key = 4u * (lane % 8u);
    var out = Wide(mat4x4<f32>(), mat4x4<f32>());
    var top = vec4<f32>(NOTHING);
    var sums = vec4<f32>();
    // One pass over the keys: online softmax.
    for (var at = begin; at < end; at += TILE) {
        workgroupBarrier();
        if lane < 32u { seen_key(job, all, lane, at + i32(lane)); }
        // Scores of 4 units x 4 keys in registers.
        var p = scores(lane, Q, K);
        let sees0 = seen_by(unit_tokens[unit], key);
        let sees1 = seen_by(unit_tokens[unit + 1u], key);
        let sees2 = seen_by(unit_tokens[unit + 2u], key);
        let sees3 = seen_by(unit_tokens[unit + 3u], key);
        let nothing = vec4<f32>(NOTHING);
        p[0] = select(nothing, args.scale * p[0], sees0);
        p[1] = select(nothing, args.scale * p[1], sees1);
        p[2] = select(nothing, args.scale * p[2], sees2);
        p[3] = select(nothing, args.scale * p[3], sees3);
        let most = max(top, row_tops(lane, vec4<f32>(largest(p[0]), largest(p[1]), largest(p[2]), largest(p[3]))));
        // Where nothing was seen yet, any number will do.
        let base = select(most, vec4<f32>(), most <= vec4<f32>(NOTHING));
        // What was summed before counts this much less.
        let factor = exp(top - base);
        top = most;
        p[0] = powers(p[0] - base.x, sees0);
        p[1] = powers(p[1] - base.y, sees1);
        p[2] = powers(p[2] - base.z, sees2);
        p[3] = powers(p[3] - base.w, sees3);
        sums = sums * factor + vec4<f32>(total(p[0]), total(p[1]), total(p[2]), total(p[3]));
        out = Wide(scaled(out.near, factor), scaled(out.far, factor));
        keep(lane, 0u, p);
        out = weigh(lane, out, 0u, min(end - at, TILE), V, job.slab * SLAB);
    }
    workgroupBarrier();
    let sum = row_sums(lane, sums);
    finish(job, part, unit, lane, out.near[0], out.far[0], top.x, sum.x);
    finish(job, part, unit + 1u, lane, out.near[1], out.far[1], top.y, sum.y);
    finish(job, part, unit + 2u, lane, out.near[2], out.far[2], top.z, sum.z);
    finish(job, part, unit + 3u, lane, out.near[3], out.far[3], top.w, sum.w);
}
