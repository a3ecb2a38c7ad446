// Up to seven arrays into one, and one into seven: words, whatever they are.

struct Args {
    // By array: words, and where they stand in the one; the last number of each is not used.
    counts: array<vec4<u32>, 2>,
    offsets: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> args: Args;

fn count_of(i: u32) -> u32 {
    return args.counts[i / 4u][i % 4u];
}

fn offset_of(i: u32) -> u32 {
    return args.offsets[i / 4u][i % 4u];
}

const THREADS: u32 = 256u;
