// One burst of a spiking network: what fired delivers, then neurons that something reached decide.
// All arithmetic is of integers, since adapters may round floats as they like and flush small ones.

struct Parameters {
    // Which of two counters and lists the burst reads, or writes where it decides.
    parity: u32,
    // Entries of `staged`.
    staged_count: u32,
    // 1 where this delivery is the first of its burst.
    first: u32,
    // Neurons of the part, those without a state among them.
    count: u32,
    // Neurons of the part that have a state; they come first.
    neurons: u32,
    // Index of the first neuron of the part in the network.
    start: u32,
    // The number of the burst, modulo 2^32.
    burst: u32,
    // 1 where potentials of some neurons do not outlast a burst.
    forgets: u32,
    // The first synapse of `entries` among all of the part, and the one after the last.
    low: u32,
    high: u32,
}

@group(0) @binding(0) var<uniform> parameters: Parameters;

// round(weight * potential * 2^16 / divisor), half rounds up
fn contribution(weight: u32, potential: u32, divisor: u32) -> u32 {
    // The product is below 2^32: both factors have eight bits.
    let product = (weight * potential) << 16u;
    if divisor <= 1u { return product; }
    let quotient = product / divisor;
    let rest = product - quotient * divisor;
    return quotient + select(0u, 1u, rest >= divisor - rest);
}

// round(clamp(potential, 0, 255)), half to even
fn delivered(bits: u32) -> u32 {
    let exponent = bits >> 23u;
    // Negative ones, and what is below a half.
    if exponent >= 256u || exponent < 126u { return 0u; }
    if exponent >= 135u { return 255u; }
    let shift = 150u - exponent;
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    return min(half_to_even(mantissa, shift), 255u);
}

// round(x / 2^shift), half to even; shift 1 to 31
fn half_to_even(x: u32, shift: u32) -> u32 {
    let quotient = x >> shift;
    let rest = x & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    return quotient + select(0u, 1u, rest > half || (rest == half && (quotient & 1u) == 1u));
}

// round(x / 2^shift) of the 64 bits `high, low`, half to even, where the result fits 32 bits; shift 1 to 63
fn wide_half_to_even(high: u32, low: u32, shift: u32) -> u32 {
    if shift < 32u {
        let quotient = (low >> shift) | (high << (32u - shift));
        let rest = low & ((1u << shift) - 1u);
        let half = 1u << (shift - 1u);
        return quotient + select(0u, 1u, rest > half || (rest == half && (quotient & 1u) == 1u));
    }
    // Whatever is in the low word counts as a last bit.
    let sticky = select(0u, 1u, low != 0u);
    if shift == 32u {
        let half = 0x80000000u;
        return high + select(0u, 1u, low > half || (low == half && (high & 1u) == 1u));
    }
    let more = shift - 32u;
    let quotient = high >> more;
    let rest = high & ((1u << more) - 1u);
    let half = 1u << (more - 1u);
    let up = rest > half || (rest == half && (sticky == 1u || (quotient & 1u) == 1u));
    return quotient + select(0u, 1u, up);
}

// Bits of sum.to(float32) * 2^-16, half to even
fn to_float(low_word: u32, high_word: u32) -> u32 {
    var low = low_word;
    var high = high_word;
    let sign = high & 0x80000000u;
    if sign != 0u {
        low = ~low + 1u;
        high = ~high + select(0u, 1u, low == 0u);
    }
    if (low | high) == 0u { return 0u; }
    var leading = firstLeadingBit(low);
    if high != 0u { leading = 32u + firstLeadingBit(high); }
    var mantissa = 0u;
    if leading <= 23u {
        mantissa = low << (23u - leading);
    } else {
        mantissa = wide_half_to_even(high, low, leading - 23u);
    }
    // A mantissa that rounded up to 2^24 carries into the exponent.
    return sign | (((leading + 111u) << 23u) + (mantissa - 0x800000u));
}

// Bits of a + b, half to even. Neither is below 2^-126 but zero, and the sum is not either.
fn add_floats(a: u32, b: u32) -> u32 {
    // A zero leaves the other as it is.
    if (b & 0x7fffffffu) == 0u {
        // Zeros of two signs are zero.
        if (a & 0x7fffffffu) == 0u { return a & b; }
        return a;
    }
    if (a & 0x7fffffffu) == 0u { return b; }
    var large = a;
    var small = b;
    if (b & 0x7fffffffu) > (a & 0x7fffffffu) { large = b; small = a; }
    var exponent = (large >> 23u) & 255u;
    // The smaller one moves to the places of the larger.
    let apart = exponent - ((small >> 23u) & 255u);
    // Three bits more: two that round, and one for whatever follows.
    var sum = ((large & 0x7fffffu) | 0x800000u) << 3u;
    let whole = ((small & 0x7fffffu) | 0x800000u) << 3u;
    var other = 1u;
    if apart < 27u {
        other = whole >> apart;
        if (other << apart) != whole { other |= 1u; }
    }
    // Signs that agree add up, and may carry into one place more.
    if ((a ^ b) & 0x80000000u) == 0u {
        sum += other;
        if sum >= 0x8000000u {
            sum = (sum >> 1u) | (sum & 1u);
            exponent += 1u;
        }
    } else {
        // Signs that differ leave leading zeros, which move out.
        sum -= other;
        if sum == 0u { return 0u; }
        let shift = 26u - firstLeadingBit(sum);
        sum = sum << shift;
        exponent -= shift;
    }
    let mantissa = half_to_even(sum, 3u);
    return (large & 0x80000000u) | ((exponent << 23u) + (mantissa - 0x800000u));
}

// Bits of x * keep, half to even; what comes out below 2^-126 is zero with its sign. `keep` is 0 to 1, neither below 2^-126 but zero.
fn scaled(x: u32, keep: u32) -> u32 {
    let sign = x & 0x80000000u;
    if (x & 0x7fffffffu) == 0u || keep == 0u { return sign; }
    let m = (x & 0x7fffffu) | 0x800000u;
    let n = (keep & 0x7fffffu) | 0x800000u;
    // 48 bits of the product, by halves of 12.
    let cross = (m >> 12u) * (n & 0xfffu) + (m & 0xfffu) * (n >> 12u);
    let least = (m & 0xfffu) * (n & 0xfffu);
    let low = least + (cross << 12u);
    let high = (m >> 12u) * (n >> 12u);
    let upper = (high >> 8u) + (cross >> 20u) + select(0u, 1u, low < least);
    let lower = low + (high << 24u);
    let top = upper + select(0u, 1u, lower < low);
    // The first bit is 46 or 47.
    let up = select(0u, 1u, (top & 0x8000u) != 0u);
    let exponent = i32((x >> 23u) & 255u) + i32(keep >> 23u) - 127 + i32(up);
    if exponent < 0 { return sign; }
    if exponent == 0 {
        // Between halves of the least float: it rounds up to it, or is none.
        return sign | select(0u, 0x800000u, wide_half_to_even(top, lower, 24u + up) == 0x800000u);
    }
    let mantissa = wide_half_to_even(top, lower, 23u + up);
    return sign | ((u32(exponent) << 23u) + (mantissa - 0x800000u));
}

// An integer that grows as the float does; both zeros have the same.
fn order(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The word of PCG that decides by chance: a seed of the neuron's id and the burst.
fn word(neuron: u32, burst: u32) -> u32 {
    // The two constants make a seed of both.
    let x = neuron * 2654435761u + burst * 1597334677u;
    let state = x * 747796405u + 2891336453u;
    let mixed = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (mixed >> 22u) ^ mixed;
}
