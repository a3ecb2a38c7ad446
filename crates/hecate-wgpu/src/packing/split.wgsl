// Copies runs of one array out into up to seven.
// Bindings are named one by one, because WGSL cannot index them: the loops differ by the binding alone.
// Each part has count_of(i) words; the whole has all of them.

@group(0) @binding(1) var<storage, read> whole: array<u32>;
@group(0) @binding(2) var<storage, read_write> part_0: array<u32>;
@group(0) @binding(3) var<storage, read_write> part_1: array<u32>;
@group(0) @binding(4) var<storage, read_write> part_2: array<u32>;
@group(0) @binding(5) var<storage, read_write> part_3: array<u32>;
@group(0) @binding(6) var<storage, read_write> part_4: array<u32>;
@group(0) @binding(7) var<storage, read_write> part_5: array<u32>;
@group(0) @binding(8) var<storage, read_write> part_6: array<u32>;

// An invocation copies every `apart`th word of each array, from its own number on.
@compute @workgroup_size(THREADS)
fn split(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let apart = groups.x * THREADS;
    for (var at = id.x; at < count_of(0u); at += apart) {
        part_0[at] = whole[offset_of(0u) + at];
    }
    for (var at = id.x; at < count_of(1u); at += apart) {
        part_1[at] = whole[offset_of(1u) + at];
    }
    for (var at = id.x; at < count_of(2u); at += apart) {
        part_2[at] = whole[offset_of(2u) + at];
    }
    for (var at = id.x; at < count_of(3u); at += apart) {
        part_3[at] = whole[offset_of(3u) + at];
    }
    for (var at = id.x; at < count_of(4u); at += apart) {
        part_4[at] = whole[offset_of(4u) + at];
    }
    for (var at = id.x; at < count_of(5u); at += apart) {
        part_5[at] = whole[offset_of(5u) + at];
    }
    for (var at = id.x; at < count_of(6u); at += apart) {
        part_6[at] = whole[offset_of(6u) + at];
    }
}
