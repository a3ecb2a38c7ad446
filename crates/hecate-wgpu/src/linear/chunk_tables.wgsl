// The tables of a chunk, (15)-(17), and the way back through them, (26), (31), (32). A thread holds one column: the
// influence of one token's write, or of the states before the chunk.

// Squares and vectors of every chunk at work; products are not touched.
@group(0) @binding(2) var<storage, read_write> space: array<f32>;

// LONG is CHUNK + 1: rows count states, from the one before the chunk to the one after it.
// Columns of the tables in registers or private memory: 65 entries each.
var<private> c: array<f32, LONG>;      // c[t,j]
var<private> e: array<f32, LONG>;      // E[t,j]
var<private> dc: array<f32, LONG>;     // what (31) adds to dc[t,j]
var<private> all_a: array<f32, LONG>;  // A[t]
var<private> da: array<f32, LONG>;     // what (31) adds to dA[t]

// (16), (17) of write `j`, counted from 1.
// c[t,j] is what write `j` counts in M after token `t`, E[t,j] in S.
fn build(here: Segment, j: u32) {
    var now = 0.0;
    var pushed = 0.0;
    for (var t = 0u; t <= here.tokens; t++) {
        // Token `t` has scalars number `t - 1`: table rows count states, of which there is one more.
        if t > 0u {
            let gates = scalars_of(token(here, t - 1u));
            // Without momentum η is 0 and the write counts once.
            pushed = select(gates.w * pushed, 1.0, t == j);
            // What comes before the write is nothing, whatever the gates are.
            now = select(0.0, gates.z * now + pushed, t >= j);
        }
        c[t] = now;
        e[t] = pushed;
        dc[t] = 0.0;
    }
}

// N, G, Λ Zᵀ and dO Zᵀ of write `j` at four tokens from `t` on; after the last token, the last's.
// Rows of four squares in one go: their places differ by multiples of SQUARE.
fn four_at(here: Segment, chunk: u32, t: u32, j: u32) -> mat4x4<f32> {
    // Column `j − 1` of the first square.
    let first = square_at(chunk, 0u, 0u, j - 1u);
    // Indices stay inside the chunk; `square` drops what is after the last token.
    let at = first + CHUNK * (min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(here.tokens)) - 1u);
    let g = at + QUERIES_KEYS * SQUARE;
    let adjoint = at + ADJOINT_WRITES * SQUARE;
    let read = at + OUT_WRITES * SQUARE;
    return mat4x4<f32>(
        vec4<f32>(space[at.x], space[g.x], space[adjoint.x], space[read.x]),
        vec4<f32>(space[at.y], space[g.y], space[adjoint.y], space[read.y]),
        vec4<f32>(space[at.z], space[g.z], space[adjoint.z], space[read.z]),
        vec4<f32>(space[at.w], space[g.w], space[adjoint.w], space[read.w])
    );
}

// (26), and what squares give to (31). They are read four tokens ahead of what is written, after which no compiler may
// read.
fn squares(here: Segment, chunk: u32, j: u32) {
    for (var t = 1u; t <= here.tokens; t += 4u) {
        let four = four_at(here, chunk, t, j);
        square(here, chunk, t, j, four[0]);
        square(here, chunk, t + 1u, j, four[1]);
        square(here, chunk, t + 2u, j, four[2]);
        square(here, chunk, t + 3u, j, four[3]);
    }
}

// The same of one token, of which N, G, Λ Zᵀ and dO Zᵀ are known.
fn square(here: Segment, chunk: u32, t: u32, j: u32, known: vec4<f32>) {
    if t < j || t > here.tokens {
        return;
    }
    // dN gathers what erase and the frozen target give, dG what reads give.
    var dn = 0.0;
    var dg = 0.0;
    // A token reads its own write, or only earlier ones.
    if t >= j + args.before {
        dg = c[t - args.before] * known.w;
        dc[t - args.before] += known.y * known.w;
    }
    if t > j {
        let gates = scalars_of(token(here, t - 1u));
        if args.erase != ERASE_NOTHING {
            let dp = -gates.y * known.z;
            dn += c[t - 1u] * dp;
            dc[t - 1u] += known.x * dp;
        }
        // The frozen target was read from the state after `start` tokens of the chunk.
        let start = group_start(t - 1u);
        if start >= j {
            let dp = -gates.x * known.z;
            dn += c[start] * dp;
            dc[start] += known.x * dp;
        }
    }
    // Written twice, mirrored at the diagonal, so that `chunk_keys` reads rows only.
    space[square_at(chunk, DN, t - 1u, j - 1u)] = dn;
    space[square_at(chunk, DG, t - 1u, j - 1u)] = dg;
    space[square_at(chunk, DN, j - 1u, t - 1u)] = dn;
    space[square_at(chunk, DG, j - 1u, t - 1u)] = dg;
}

// (32) of write `j`.
// From the last token down: the gradient of c and of E, and of a and η at each step.
fn back(here: Segment, chunk: u32, j: u32) {
    // It starts from what the states after the chunk give.
    var now = space[vector_at(chunk, AFTER_M, j - 1u)];
    var pushed = space[vector_at(chunk, AFTER_S, j - 1u)];
    for (var t = here.tokens; t > 0u; t--) {
        var to_a = 0.0;
        var to_eta = 0.0;
        if t >= j {
            // c[t,j] counts in M after token `t`, and goes on to all later ones.
            now += dc[t];
            // c = a c + E: E takes all that c has.
            pushed += now;
            if t > j {
                to_a = now * c[t - 1u];
                to_eta = pushed * e[t - 1u];
                let gates = scalars_of(token(here, t - 1u));
                now *= gates.z;
                pushed *= gates.w;
            }
        }
        space[square_at(chunk, OF_A, t - 1u, j - 1u)] = to_a;
        space[square_at(chunk, OF_ETA, t - 1u, j - 1u)] = to_eta;
    }
}

// (15)-(17) of the states before the chunk.
// A[t] is what M₀ counts after token `t`; c and e are what S₀ counts in M and in S.
fn build_first(here: Segment) {
    c[0] = 0.0;
    e[0] = 1.0;
    all_a[0] = 1.0;
    for (var t = 1u; t <= here.tokens; t++) {
        let gates = scalars_of(token(here, t - 1u));
        e[t] = gates.w * e[t - 1u];
        c[t] = gates.z * c[t - 1u] + e[t];
        all_a[t] = gates.z * all_a[t - 1u];
    }
}

// (31) of the states before the chunk.
// dA and dc of the states before the chunk: what reads, erases and frozen targets give.
fn reads_of_first(here: Segment, chunk: u32) {
    for (var t = 0u; t <= here.tokens; t++) {
        dc[t] = 0.0;
        da[t] = 0.0;
    }
    for (var t = 1u; t <= here.tokens; t++) {
        let gates = scalars_of(token(here, t - 1u));
        da[t - args.before] += space[vector_at(chunk, READ_M, t - 1u)];
        dc[t - args.before] += space[vector_at(chunk, READ_S, t - 1u)];
        let m = space[vector_at(chunk, ERASE_M, t - 1u)];
        let s = space[vector_at(chunk, ERASE_S, t - 1u)];
        if args.erase != ERASE_NOTHING {
            da[t - 1u] -= gates.y * m;
            dc[t - 1u] -= gates.y * s;
        }
        da[group_start(t - 1u)] -= gates.x * m;
        dc[group_start(t - 1u)] -= gates.x * s;
    }
}

// (32) of the states before the chunk.
// `ends` holds ⟨dM, M₀⟩, ⟨dM, S₀⟩ and ⟨dS, S₀⟩, carried from the end of the chunk to its start.
fn back_to_first(here: Segment, chunk: u32) {
    var ends = vec3<f32>();
    for (var i = 0u; i < args.value; i++) {
        ends += vec3<f32>(space[end_at(chunk, 0u, i)], space[end_at(chunk, 1u, i)], space[end_at(chunk, 2u, i)]);
    }
    for (var t = here.tokens; t > 0u; t--) {
        ends.x += da[t];
        ends.y += dc[t];
        ends.z += ends.y;
        space[vector_at(chunk, FIRST_A, t - 1u)] = ends.x * all_a[t - 1u] + ends.y * c[t - 1u];
        space[vector_at(chunk, FIRST_ETA, t - 1u)] = ends.z * e[t - 1u];
        let gates = scalars_of(token(here, t - 1u));
        ends *= vec3<f32>(gates.z, gates.z, gates.w);
    }
    // A and c are what `chunk_keys` multiplies the products of states by.
    for (var t = 0u; t <= here.tokens; t++) {
        space[vector_at(chunk, AT_A, t)] = all_a[t];
        space[vector_at(chunk, AT_B, t)] = c[t];
    }
}

// An invocation owns one column of one chunk's tables: 64 of writes, one of the states before.
@compute @workgroup_size(64)
fn tables(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    // Those of the states before the chunks come first: among the others they would hold up their neighbours, and after
    // them all.
    let chunks = args.count / LONG;
    if thread < chunks {
        let here = segment(args.first + thread);
        if here.tokens > 0u {
            build_first(here);
            reads_of_first(here, thread);
            back_to_first(here, thread);
        }
        return;
    }
    let chunk = (thread - chunks) / CHUNK;
    let j = (thread - chunks) % CHUNK + 1u;
    let here = segment(args.first + chunk);
    if j > here.tokens {
        return;
    }
    build(here, j);
    squares(here, chunk, j);
    back(here, chunk, j);
    space[vector_at(chunk, LAST_C, j - 1u)] = c[here.tokens];
    space[vector_at(chunk, LAST_E, j - 1u)] = e[here.tokens];
}
