
// Where the row of each neuron begins, and one more.
@group(0) @binding(1) var<storage, read> rows: array<u32>;
// The synapses from `low` to `high` of all: target, then weight, potential and kind by bytes from the lowest on.
@group(0) @binding(2) var<storage, read> entries: array<vec2<u32>>;
// By how many synapses a potential is shared; the highest bit: the neuron delivers its own potential.
@group(0) @binding(3) var<storage, read> sources: array<u32>;
// Index and bits of the potential of what fired.
@group(0) @binding(4) var<storage, read> fired: array<vec2<u32>>;
// How many entries each of the two lists has.
@group(0) @binding(5) var<storage, read_write> counts: array<u32>;
// Index, low and high word of what comes from outside.
@group(0) @binding(6) var<storage, read> staged: array<u32>;
// What reached each neuron, two words each.
@group(0) @binding(7) var<storage, read_write> sums: array<atomic<u32>>;
// A bit for each neuron that something reached.
@group(0) @binding(8) var<storage, read_write> candidates: array<atomic<u32>>;

// sums[target] += amount, 64 bits in two words; candidates[target] = true
fn add(target_index: u32, low: u32, high: u32) {
    let before = atomicAdd(&sums[2u * target_index], low);
    // The low words' carry: whoever wraps them around has it, in any order.
    let carry = select(0u, 1u, before + low < before);
    if (high | carry) != 0u { atomicAdd(&sums[2u * target_index + 1u], high + carry); }
    atomicOr(&candidates[target_index >> 5u], 1u << (target_index & 31u));
}

// sums.index_add_(0, targets[rows[fired]], contributions); then the same of `staged [S,3]`: index, low and high word.
// 32 invocations have one fired neuron at a time. `fired [*,2]` are indices and bits of potentials, `counts[parity]` of them.
@compute @workgroup_size(256)
fn spiking_deliver(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let threads = groups.x * 256u;
    let count = counts[parameters.parity];
    // The other counter is that of the burst that begins.
    if parameters.first == 1u && id.x == 0u { counts[1u - parameters.parity] = 0u; }
    for (var i = id.x >> 5u; i < count; i += threads >> 5u) {
        let spike = fired[i];
        let source = sources[spike.x];
        let driven = delivered(spike.y);
        let end = min(rows[spike.x + 1u], parameters.high);
        for (var at = max(rows[spike.x], parameters.low) + (id.x & 31u); at < end; at += 32u) {
            let entry = entries[at - parameters.low];
            let potential = select((entry.y >> 8u) & 255u, driven, (source >> 31u) == 1u);
            let amount = contribution(entry.y & 255u, potential, source & 0x7fffffffu);
            // An inhibitory synapse takes away: two words of a negative number.
            if (entry.y >> 16u) == 0u || amount == 0u {
                add(entry.x, amount, 0u);
            } else {
                add(entry.x, ~amount + 1u, 0xffffffffu);
            }
        }
    }
    for (var i = id.x; i < parameters.staged_count; i += threads) {
        add(staged[3u * i], staged[3u * i + 1u], staged[3u * i + 2u]);
    }
}
