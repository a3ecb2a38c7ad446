// Copies of runs of words.

struct Args {
    count: u32,
    // Words of a run.
    run: u32,
    origin_start: u32,
    origin_stride: u32,
    to_start: u32,
    to_stride: u32,
    unused0: u32,
    unused1: u32,
}

@group(0) @binding(0) var<uniform> args: Args;
@group(0) @binding(1) var<storage, read_write> to: array<u32>;
@group(0) @binding(2) var<storage, read> origin: array<u32>;

@compute @workgroup_size(256)
fn copy_runs(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        let run = i / args.run;
        let place = i % args.run;
        to[args.to_start + run * args.to_stride + place] = origin[args.origin_start + run * args.origin_stride + place];
    }
}
