// Copies up to seven arrays into one, each to its offset.
// Bindings are named one by one, because WGSL cannot index them: the loops differ by the binding alone.
// Each part has count_of(i) words; the whole has all of them.

@group(0) @binding(1) var<storage, read> part_0: array<u32>;
@group(0) @binding(2) var<storage, read> part_1: array<u32>;
@group(0) @binding(3) var<storage, read> part_2: array<u32>;
@group(0) @binding(4) var<storage, read> part_3: array<u32>;
@group(0) @binding(5) var<storage, read> part_4: array<u32>;
@group(0) @binding(6) var<storage, read> part_5: array<u32>;
@group(0) @binding(7) var<storage, read> part_6: array<u32>;
@group(0) @binding(8) var<storage, read_write> whole: array<u32>;

// An invocation copies every `apart`th word of each array, from its own number on.
@compute @workgroup_size(THREADS)
fn pack(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let apart = groups.x * THREADS;
    for (var at = id.x; at < count_of(0u); at += apart) {
        whole[offset_of(0u) + at] = part_0[at];
    }
    for (var at = id.x; at < count_of(1u); at += apart) {
        whole[offset_of(1u) + at] = part_1[at];
    }
    for (var at = id.x; at < count_of(2u); at += apart) {
        whole[offset_of(2u) + at] = part_2[at];
    }
    for (var at = id.x; at < count_of(3u); at += apart) {
        whole[offset_of(3u) + at] = part_3[at];
    }
    for (var at = id.x; at < count_of(4u); at += apart) {
        whole[offset_of(4u) + at] = part_4[at];
    }
    for (var at = id.x; at < count_of(5u); at += apart) {
        whole[offset_of(5u) + at] = part_5[at];
    }
    for (var at = id.x; at < count_of(6u); at += apart) {
        whole[offset_of(6u) + at] = part_6[at];
    }
}
