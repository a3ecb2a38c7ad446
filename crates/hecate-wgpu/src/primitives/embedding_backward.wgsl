// The gradient of a table: every row is added up by one workgroup, in the order of positions.

// Defined in `embedding.rs`.
@group(0) @binding(0) var<uniform> args: GatherBackwardArgs;
// [count], ascending, and the positions they had
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
// [count, width]
@group(0) @binding(3) var<storage, read> dy: array<f32>;
// [vocabulary, width]
@group(0) @binding(4) var<storage, read_write> dtable: array<f32>;

// The first key that is not under `id`.
fn start_of(id: u32) -> u32 {
    var low = 0u;
    var high = args.count;
    while low < high {
        let middle = (low + high) / 2u;
        if keys[middle] < id { low = middle + 1u; } else { high = middle; }
    }
    return low;
}

// Columns of a workgroup, and positions that it adds up at once.
const COLUMNS = 16u;
const STEPS = 16u;

// Partial sums: 16 columns of 16 positions.
var<workgroup> sums: array<f32, 256>;

// A workgroup for each id and 16 columns.
@compute @workgroup_size(256)
// 16 invocations share a column and take its positions in turn.
fn gather_backward(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(id);
    let row = group / args.across;
    if row >= args.vocabulary { return; }
    let column = group % args.across * COLUMNS + lane % COLUMNS;
    let end = start_of(row + 1u);
    var own = 0.0;
    if column < args.width {
        for (var i = start_of(row) + lane / COLUMNS; i < end; i += STEPS) { own += dy[order[i] * args.width + column]; }
    }
    sums[lane] = own;
    for (var step = STEPS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if lane / COLUMNS < step { sums[lane] += sums[lane + step * COLUMNS]; }
    }
    if lane < COLUMNS && column < args.width { dtable[row * args.width + column] = sums[lane]; }
}
