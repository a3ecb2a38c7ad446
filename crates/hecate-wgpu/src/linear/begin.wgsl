// A pass begins: gates become the scalars of the recurrence, and all that the scans start from is put in one place.

// [work]: the scalars, the table and the states, at the places that `args` names.
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
@group(0) @binding(2) var<storage, read> log_a: array<f32>;   // [rows,H]
@group(0) @binding(3) var<storage, read> theta: array<f32>;   // [rows,H]
@group(0) @binding(4) var<storage, read> gate2: array<f32>;   // [rows,H]: log η with an S, else β, if there is one
@group(0) @binding(5) var<storage, read> table: array<u32>;   // first rows, first kept states
@group(0) @binding(6) var<storage, read> m: array<u32>;       // [N,H,K,V]
@group(0) @binding(7) var<storage, read> s: array<u32>;       // [N,H,K,V]

// Bits of the factor whose logarithm has these bits; what is outside [-∞, 0] becomes NaN, which the outputs show.
// A log gate is a number in [-∞, 0]; the factor is its exponential, in [0, 1].
fn factor(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) == 0u {
        return bitcast<u32>(1.0);
    }
    if bits < 0x80000000u || bits > 0xff800000u {
        return bits | 0x7fc00000u;
    }
    if bits == 0xff800000u {
        return 0u;
    }
    return bitcast<u32>(exponential(bitcast<f32>(bits)));
}

// Bits of a strength: any finite number.
fn strength(bits: u32) -> u32 {
    return select(bits, bits | 0x7fc00000u, (bits & 0x7fffffffu) >= 0x7f800000u);
}

// Arithmetic on bits, because `work` holds words.
fn sum(x: u32, y: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(x) + bitcast<f32>(y));
}

// x * y of floats as words.
fn product(x: u32, y: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(x) * bitcast<f32>(y));
}

// The scalars w, r, a, η of token and head `i` from the gates of the rule.
fn lower(i: u32) {
    let a = factor(bitcast<u32>(log_a[i]));
    let w = strength(bitcast<u32>(theta[i]));
    // How r follows is the rule's: `args.erase` says which of five ways.
    var r = 0u;
    if args.erase == ERASE_THETA {
        r = w;
    } else if args.erase == ERASE_DECAYED {
        r = product(w, a);
    } else if args.erase >= ERASE_BETA {
        r = strength(bitcast<u32>(gate2[i]));
        if args.erase > ERASE_BETA {
            r = sum(w, r);
        }
    }
    work[4u * i] = w;
    work[4u * i + 1u] = r;
    work[4u * i + 2u] = a;
    work[4u * i + 3u] = 0u;
    // Only a rule with momentum has η; its third gate is log η.
    if args.matrices == 2u {
        work[4u * i + 3u] = factor(bitcast<u32>(gate2[i]));
    }
}

// An invocation lowers one token and head, and copies one element of each state and of the table.
@compute @workgroup_size(64)
fn begin(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = thread_of(group, local);
    if i < args.scalars {
        lower(i);
    }
    // States move into `work`, so that the scans read one array fewer.
    if i < args.states {
        work[args.m + i] = m[i];
        if args.matrices == 2u {
            work[args.s + i] = s[i];
        }
    }
    if args.differ == 1u && i < 2u * args.sequences + 2u {
        work[args.starts + i] = table[i];
    }
}
