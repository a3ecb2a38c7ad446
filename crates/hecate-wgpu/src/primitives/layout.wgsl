// Copies of runs of words.

// Defined in `layout.rs`.
@group(0) @binding(0) var<uniform> args: LayoutArgs;
// Words of the result.
@group(0) @binding(1) var<storage, read_write> to: array<u32>;
// Words of the source; types do not matter here.
@group(0) @binding(2) var<storage, read> origin: array<u32>;

// to[start + n * stride : + run] = origin[start + n * stride : + run], for each run n
@compute @workgroup_size(256)
// An invocation copies one word.
fn copy_runs(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        let run = i / args.run;
        let place = i % args.run;
        to[args.to_start + run * args.to_stride + place] = origin[args.origin_start + run * args.origin_stride + place];
    }
}
