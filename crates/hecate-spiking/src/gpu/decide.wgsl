
// What decides whether a neuron fires; 32 bytes.
struct Dynamics {
    threshold: u32,
    limit: u32,
    keep: u32,
    refractory_fire_limit: u32,
    snooze_accumulate: u32,
    chance: u32,
    certain: u32,
    unused: u32,
}

@group(0) @binding(1) var<storage, read_write> sums: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> candidates: array<u32>;
@group(0) @binding(3) var<storage, read_write> potentials: array<u32>;
@group(0) @binding(4) var<storage, read_write> states: array<u32>;
@group(0) @binding(5) var<storage, read> sorts: array<u32>;
@group(0) @binding(6) var<storage, read> table: array<Dynamics>;
@group(0) @binding(7) var<storage, read_write> fired: array<vec2<u32>>;
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
    var potential = select(0u, potentials[place], (of_sort.snooze_accumulate >> 16u) == 1u);
    if refractory > 0u {
        refractory -= 1u;
        if refractory == 0u && fire_limit > 0u && in_a_row >= fire_limit { in_a_row = 0u; }
        states[place] = refractory | (in_a_row << 16u);
        potentials[place] = potential;
        return;
    }
    potential = add_floats(potential, input);
    let at = order(potential);
    if at >= order(of_sort.threshold) && at <= order(of_sort.limit) {
        if fire_limit > 0u && in_a_row >= fire_limit {
            states[place] = 0u;
            potentials[place] = potential;
            return;
        }
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
