// Plasticity after a burst: who fired is noted in words of bits, then weights between two areas change.

struct Parameters {
    // Neurons of the network, and words of bits that each has.
    count: u32,
    planes: u32,
    // Which counter is that of the list that is noted.
    parity: u32,
    // Sources of the mapping.
    member_count: u32,
    // The first synapse of `entries` among all of the part, and the one after the last.
    low: u32,
    high: u32,
    // Index of the first neuron of the part.
    start: u32,
    // Which area targets have.
    area: u32,
    // Bursts that are looked at.
    window: u32,
    // What windows as a whole add and take away.
    rise: u32,
    fall: u32,
}

@group(0) @binding(0) var<uniform> parameters: Parameters;
