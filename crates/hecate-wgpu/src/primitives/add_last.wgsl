// The way back of the last rows of each sequence. Their gradients go on top of those of the rows. These are the cache's
// before those of the tokens [N kept + rows, width].

// Defined in `sequences.rs`.
@group(0) @binding(0) var<uniform> args: LastRowsArgs;
// First row of every sequence, and the end.
@group(0) @binding(1) var<storage, read> starts: array<u32>;
// [N, kept, width]
@group(0) @binding(2) var<storage, read> last: array<f32>;
// [N kept + rows, width], or [rows, width] without a cache
@group(0) @binding(3) var<storage, read_write> rows: array<f32>;

// rows[last `kept` rows of each sequence] += last [N,kept,width]
@compute @workgroup_size(64)
// An invocation adds one element; rows of different sequences never meet.
fn add_last(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = group_index(id) * 64u + lane;
    if i >= args.count { return; }
    let n = i / args.width / args.kept;
    let start = starts[n];
    // Rows of the cache and tokens of a sequence, one after another: the last `kept` of them.
    let at = starts[n + 1u] - start + i / args.width % args.kept;
    if at < args.kept && args.tokens_at == 0u { return; }
    let row = select(args.tokens_at + start + at - args.kept, n * args.kept + at, at < args.kept);
    rows[row * args.width + i % args.width] += last[i];
}
