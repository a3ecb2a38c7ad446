// Filling, copying and converting, on words of 32 bits. Two 16-bit floats share a word, the first in the low half.

// Defined in `memory.rs`.
@group(0) @binding(0) var<uniform> args: MemoryArgs;
// [count] words that are written; for `widen` [count] floats, for `narrow` [count / 2] words of two halves.
@group(0) @binding(1) var<storage, read_write> to: array<u32>;
// [count] words that are read; for `widen` [count / 2] words of two halves, for `narrow` [count] floats.
@group(0) @binding(2) var<storage, read> origin: array<u32>;

// to [count] = value
@compute @workgroup_size(256)
// to[i] = value. An invocation writes one word.
fn fill(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        to[i] = args.value;
    }
}

// to [count] = origin
@compute @workgroup_size(256)
// to[i] = origin[i]. An invocation copies one word.
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 256u * group_index(group) + local;
    if i < args.count {
        to[i] = origin[i];
    }
}

// to [count] = origin.float(), from halves
@compute @workgroup_size(256)
// An invocation widens both halves of one word; the last word may have one alone.
fn widen(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 2u * (256u * group_index(group) + local);
    if i < args.count {
        let word = origin[i / 2u];
        to[i] = float_of(word & 0xffffu);
        if i + 1u < args.count {
            to[i + 1u] = float_of(word >> 16u);
        }
    }
}

// to [count] = origin.half(), from floats
@compute @workgroup_size(256)
// An invocation rounds two floats into one word, so that no two invocations write the same word.
fn narrow(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = 2u * (256u * group_index(group) + local);
    if i < args.count {
        var word = half_of(origin[i]);
        if i + 1u < args.count {
            word |= half_of(origin[i + 1u]) << 16u;
        }
        to[i / 2u] = word;
    }
}
