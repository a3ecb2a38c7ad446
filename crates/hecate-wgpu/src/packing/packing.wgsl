// Up to seven arrays into one, and one into seven: words, whatever they are.

// Defined in `mod.rs`.
@group(0) @binding(0) var<uniform> args: PackingArgs;

// Words of array `i`.
fn count_of(i: u32) -> u32 {
    return args.counts[i / 4u][i % 4u];
}

// First word of array `i` in the whole.
fn offset_of(i: u32) -> u32 {
    return args.offsets[i / 4u][i % 4u];
}

// Invocations of a workgroup, of both kernels.
const THREADS: u32 = 256u;
