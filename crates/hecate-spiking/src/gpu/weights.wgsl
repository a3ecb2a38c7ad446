
// Where the row of each neuron begins, and one more.
@group(0) @binding(1) var<storage, read> rows: array<u32>;
// The synapses from `low` to `high` of all: target, then weight, potential and kind by bytes from the lowest on.
@group(0) @binding(2) var<storage, read_write> entries: array<vec2<u32>>;
// Bit `i` of word `k` of `[planes,N]` says that a neuron fired `32 k + i` bursts ago.
@group(0) @binding(3) var<storage, read> recent: array<u32>;
// Which area each neuron has.
@group(0) @binding(4) var<storage, read> places: array<u32>;
// The sources.
@group(0) @binding(5) var<storage, read> members: array<u32>;
// By bursts between two spikes: what a pair adds in the low half, what it takes away in the high one.
@group(0) @binding(6) var<storage, read> table: array<u32>;

// recent[:window, index].sum()
fn often(index: u32) -> u32 {
    var sum = 0u;
    let whole = parameters.window >> 5u;
    for (var plane = 0u; plane < whole; plane += 1u) { sum += countOneBits(recent[plane * parameters.count + index]); }
    // What is left of the window is in the low bits of one more word.
    let rest = parameters.window & 31u;
    if rest > 0u { sum += countOneBits(recent[whole * parameters.count + index] & ((1u << rest) - 1u)); }
    return sum;
}

// w = where(s == t == window, w + rise, where(s + t > 0, w - fall, w)).clamp(0, 255)
fn by_window(weight: u32, s: u32, target_index: u32) -> u32 {
    let t = often(target_index);
    if s + t == 0u { return weight; }
    if s == parameters.window && t == parameters.window { return min(weight + parameters.rise, 255u); }
    return weight - min(parameters.fall, weight);
}

// The last bursts of a neuron, low and high word, without those outside of the window, which has up to 37.
fn last(index: u32) -> vec2<u32> {
    let window = parameters.window;
    var low = recent[index];
    if window < 32u { return vec2<u32>(low & ((1u << window) - 1u), 0u); }
    if window == 32u || parameters.planes < 2u { return vec2<u32>(low, 0u); }
    return vec2<u32>(low, recent[parameters.count + index] & ((1u << (window - 32u)) - 1u));
}

// for d in 36..1: w += rise[d] where source fired d before target; w -= fall[d] where d after; clamped at every step
fn by_pairs(before: u32, s: vec2<u32>, target_index: u32) -> u32 {
    let t = last(target_index);
    var weight = before;
    // Of pairs whose later spike is of this burst: the highest bits are those furthest apart.
    for (var half = 0u; half < 2u; half += 1u) {
        let own = select(s.y, s.x & 0xfffffffeu, half == 1u);
        let other = select(t.y, t.x & 0xfffffffeu, half == 1u);
        let adds = select(0u, own, (t.x & 1u) == 1u);
        let takes = select(0u, other, (s.x & 1u) == 1u);
        for (var pairs = adds | takes; pairs != 0u;) {
            let bit = firstLeadingBit(pairs);
            let change = table[select(32u, 0u, half == 1u) + bit];
            if ((adds >> bit) & 1u) == 1u { weight = min(weight + (change & 0xffffu), 255u); }
            if ((takes >> bit) & 1u) == 1u { weight -= min(change >> 16u, weight); }
            pairs ^= 1u << bit;
        }
    }
    return weight;
}

// Weights from `members [M]` into an area, by windows as a whole. 32 invocations have one source at a time.
@compute @workgroup_size(256)
fn spiking_learn_windows(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let threads = groups.x * 256u;
    for (var i = id.x >> 5u; i < parameters.member_count; i += threads >> 5u) {
        let source = members[i];
        let s = often(source);
        let end = min(rows[source + 1u], parameters.high);
        for (var at = max(rows[source], parameters.low) + (id.x & 31u); at < end; at += 32u) {
            let entry = entries[at - parameters.low];
            let index = parameters.start + entry.x;
            // Rows lead into other areas too.
            if places[index] == parameters.area {
                let weight = by_window(entry.y & 255u, s, index);
                entries[at - parameters.low].y = (entry.y & 0xffffff00u) | weight;
            }
        }
    }
}

// Weights from `members [M]` into an area, by pairs of spikes. 32 invocations have one source at a time.
@compute @workgroup_size(256)
fn spiking_learn_pairs(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let threads = groups.x * 256u;
    for (var i = id.x >> 5u; i < parameters.member_count; i += threads >> 5u) {
        let source = members[i];
        let s = last(source);
        let end = min(rows[source + 1u], parameters.high);
        for (var at = max(rows[source], parameters.low) + (id.x & 31u); at < end; at += 32u) {
            let entry = entries[at - parameters.low];
            let index = parameters.start + entry.x;
            if places[index] == parameters.area {
                let weight = by_pairs(entry.y & 255u, s, index);
                entries[at - parameters.low].y = (entry.y & 0xffffff00u) | weight;
            }
        }
    }
}
