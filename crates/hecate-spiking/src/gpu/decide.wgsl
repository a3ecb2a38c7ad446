
// What decides whether a neuron fires; 32 bytes.
struct Dynamics {
    // Bits of the least potential that fires.
    threshold: u32,
    // Bits of the largest potential that fires.
    limit: u32,
    // Bits of the factor by which a potential leaks.
    keep: u32,
    // Refractory bursts in the low half, the fire limit in the high one.
    refractory_fire_limit: u32,
    // Snooze in the low half, 1 in the high one where potentials outlast a burst.
    snooze_accumulate: u32,
    // Words below this one fire.
    chance: u32,
    // 1 where no chance decides.
    certain: u32,
    // Fills 32 bytes.
    unused: u32,
}

// What reached each neuron, low and high word with 16 bits behind the point.
@group(0) @binding(1) var<storage, read_write> sums: array<vec2<u32>>;
// A bit for each neuron that something reached.
@group(0) @binding(2) var<storage, read_write> candidates: array<u32>;
// Bits of potentials.
@group(0) @binding(3) var<storage, read_write> potentials: array<u32>;
// Refractory bursts that are left in the low half, times fired in a row in the high one.
@group(0) @binding(4) var<storage, read_write> states: array<u32>;
// The row of `table` of each neuron.
@group(0) @binding(5) var<storage, read> sorts: array<u32>;
// Neurons of one sort share a row.
@group(0) @binding(6) var<storage, read> table: array<Dynamics>;
// Index and bits of the potential of what fires.
@group(0) @binding(7) var<storage, read_write> fired: array<vec2<u32>>;
// How many entries each of the two lists has.
@group(0) @binding(8) var<storage, read_write> counts: array<atomic<u32>>;

// Notes that the neuron at an index fired; invocations take places in any order, and who reads them sorts.
fn tell(place: u32, potential: u32) {
    fired[atomicAdd(&counts[parameters.parity], 1u)] = vec2<u32>(parameters.start + place, potential);
}

// One neuron that `input` reached: it fires, or its potential leaks.
fn step(place: u32, input: u32) {
    let of_sort = table[sorts[place]];
    let fire_limit = of_sort.refractory_fire_limit >> 16u;
    var refractory = states[place] & 0xffffu;
    var in_a_row = states[place] >> 16u;
    // A potential that does not outlast a burst starts at zero.
    var potential = select(0u, potentials[place], (of_sort.snooze_accumulate >> 16u) == 1u);
    // A refractory neuron loses its input and does not leak.
    if refractory > 0u {
        refractory -= 1u;
        if refractory == 0u && fire_limit > 0u && in_a_row >= fire_limit { in_a_row = 0u; }
        states[place] = refractory | (in_a_row << 16u);
        potentials[place] = potential;
        return;
    }
    // What reached the neuron adds to its potential.
    potential = add_floats(potential, input);
    let at = order(potential);
    if at >= order(of_sort.threshold) && at <= order(of_sort.limit) {
        // A neuron at its limit stays silent once, without a leak.
        if fire_limit > 0u && in_a_row >= fire_limit {
            states[place] = 0u;
            potentials[place] = potential;
            return;
        }
        // Chance decides by the neuron and the burst alone.
        if of_sort.certain == 1u || word(parameters.start + place, parameters.burst) < of_sort.chance {
            in_a_row = min(in_a_row + 1u, 65535u);
            let snoozes = fire_limit > 0u && in_a_row >= fire_limit;
            let snooze = select(0u, of_sort.snooze_accumulate & 0xffffu, snoozes);
            let passes = min((of_sort.refractory_fire_limit & 0xffffu) + snooze, 65535u);
            states[place] = passes | (in_a_row << 16u);
            potentials[place] = 0u;
            tell(place, potential);
            return;
        }
    }
    // Whoever is silent begins to count again, and leaks.
    if fire_limit > 0u { states[place] = 0u; }
    potentials[place] = scaled(potential, of_sort.keep);
}

// fired = candidates.nonzero() where `step` says so; sums are zero afterwards, and so are candidates.
// An invocation has one word of candidates, which are 32 neurons of the part.
@compute @workgroup_size(256)
fn spiking_decide(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let own = id.x + id.y * groups.x * 256u;
    if 32u * own >= parameters.count { return; }
    let bits = candidates[own];
    candidates[own] = 0u;
    for (var i = 0u; i < 32u; i += 1u) {
        let place = 32u * own + i;
        if ((bits >> i) & 1u) == 1u {
            let input = to_float(sums[place].x, sums[place].y);
            sums[place] = vec2<u32>(0u, 0u);
            if place >= parameters.neurons { tell(place, input); } else { step(place, input); }
        } else if parameters.forgets == 1u && place < parameters.neurons {
            // Potentials that do not outlast a burst.
            if potentials[place] != 0u && (table[sorts[place]].snooze_accumulate >> 16u) == 0u { potentials[place] = 0u; }
        }
    }
}
