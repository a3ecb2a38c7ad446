
// Bit `i` of word `k` of `[planes,N]` says that a neuron fired `32 k + i` bursts ago.
@group(0) @binding(1) var<storage, read_write> recent: array<u32>;
// Index and bits of the potential of what fired.
@group(0) @binding(2) var<storage, read> fired: array<vec2<u32>>;
// How many entries each of the two lists has.
@group(0) @binding(3) var<storage, read> counts: array<u32>;

// recent = recent << 1
@compute @workgroup_size(256)
fn spiking_age(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let index = id.x + id.y * groups.x * 256u;
    if index >= parameters.count { return; }
    var carry = 0u;
    for (var plane = 0u; plane < parameters.planes; plane += 1u) {
        let place = plane * parameters.count + index;
        // What leaves a word enters the next one.
        let word = recent[place];
        recent[place] = (word << 1u) | carry;
        carry = word >> 31u;
    }
}

// recent[0, fired] |= 1   each neuron is in the list once
@compute @workgroup_size(256)
fn spiking_note(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let count = counts[parameters.parity];
    for (var i = id.x; i < count; i += groups.x * 256u) { recent[fired[i].x] |= 1u; }
}
