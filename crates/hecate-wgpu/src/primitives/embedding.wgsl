// Rows of a table by number.

// Defined in `embedding.rs`.
@group(0) @binding(0) var<uniform> args: GatherArgs;
// [count]
@group(0) @binding(1) var<storage, read> ids: array<u32>;
// [vocabulary, width]
@group(0) @binding(2) var<storage, read> table: array<f32>;
// [count, width]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// y [count,width] = table[ids]; an id past the vocabulary gives `missing`.
@compute @workgroup_size(64)
// An invocation copies one element.
fn gather(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count * args.width { return; }
    let row = ids[i / args.width];
    var value = args.missing;
    if row < args.vocabulary { value = table[row * args.width + i % args.width]; }
    y[i] = value;
}
