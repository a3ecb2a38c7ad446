// The squares of a chunk and the tables (15)-(17), and the way back through them: (26), (31), (32).
//
// x is dO, y is Λ. An invocation has four tokens by four writes of every square, and what is above the diagonal is nobody's.
// Tables are walked in blocks of four tokens: each by one invocation, from what all blocks before it make of the start.

@group(0) @binding(7) var<storage, read_write> space: array<vec4<f32>>;

const SLICES = 3u;

// The four tokens of a block as a map, for what a write counts in M and in S: x to M from M, y to M from S, z to S from
// S. Gradients take it transposed.
var<workgroup> maps: array<vec3<f32>, 16>;
// What each write counts in M and in S at the end of its own block.
var<workgroup> ends: array<vec2<f32>, CHUNK>;

// A step of (16), (17) with the gates of token `t`: what it counts in M, then in S. Without momentum η is 0, and nothing is
// pushed.
fn step_of(counts: vec2<f32>, t: u32) -> vec2<f32> {
    let pushed = gates[t].w * counts.y;
    return vec2<f32>(gates[t].z * counts.x + pushed, pushed);
}

// `maps` and `ends`, from the gates. Tokens after the last are steps that change nothing.
fn prepare(tokens: u32, local: u32) {
    if local < CHUNK {
        // A write counts once in both after its own token.
        var counts = vec2<f32>(1.0, 1.0);
        for (var t = local + 1u; t < min(local / 4u * 4u + 4u, tokens); t++) {
            counts = step_of(counts, t);
        }
        ends[local] = counts;
    }
    // A block's map is what becomes of M alone and of S alone.
    if local < 16u {
        var of_m = vec2<f32>(1.0, 0.0);
        var of_s = vec2<f32>(0.0, 1.0);
        for (var t = 4u * local; t < min(4u * local + 4u, tokens); t++) {
            of_m = step_of(of_m, t);
            of_s = step_of(of_s, t);
        }
        maps[local] = vec3<f32>(of_m.x, of_s.x, of_s.y);
    }
}

// N, G, Λ Zᵀ and dO Zᵀ: four by four elements of each, a token's row a vector.
struct Squares {
    n: mat4x4<f32>,
    g: mat4x4<f32>,
    adjoint: mat4x4<f32>,
    read: mat4x4<f32>,
}

// First over the elements of keys, then over those of values. Only predictions need N and Λ Zᵀ.
fn squares_of(here: Segment, own: Own, local: u32) -> Squares {
    // In registers: no square of products is ever written.
    var all: Squares;
    let t = local / 4u;
    let four = local % 4u;
    let at = token(here, min(t, here.tokens - 1u));
    let inside = t < here.tokens;
    let zero = vec4<f32>();
    let works = own.column <= own.row;
    let erases = args.erase != ERASE_NOTHING;
    // Above the diagonal nobody reads: a token finds no later write.
    // Rows of tokens after the last are zeros, and so is all that is made of them.
    for (var c = 0u; c < args.key; c += COLUMNS) {
        workgroupBarrier();
        slices[place_of(0u, t, four)] = select(zero, q_four(at * args.key, c + 4u * four), inside);
        slices[place_of(1u, t, four)] = select(zero, k_four(at * args.key, c + 4u * four), inside);
        workgroupBarrier();
        if works {
            for (var i = 0u; i < 4u; i++) {
                let keys = four_rows(1u, own.column, i);
                all.g = with_products(all.g, four_rows(0u, own.row, i), keys);
                if erases {
                    all.n = with_products(all.n, four_rows(1u, own.row, i), keys);
                }
            }
        }
    }
    for (var c = 0u; c < args.width; c += COLUMNS) {
        workgroupBarrier();
        slices[place_of(0u, t, four)] = select(zero, x_four(at * args.width, c + 4u * four), inside);
        slices[place_of(1u, t, four)] = select(zero, z_four(at * args.width, c + 4u * four), inside);
        if erases {
            slices[place_of(2u, t, four)] = select(zero, y_four(at * args.width, c + 4u * four), inside);
        }
        workgroupBarrier();
        if works {
            for (var i = 0u; i < 4u; i++) {
                let writes = four_rows(1u, own.column, i);
                all.read = with_products(all.read, four_rows(0u, own.row, i), writes);
                if erases {
                    all.adjoint = with_products(all.adjoint, four_rows(2u, own.row, i), writes);
                }
            }
        }
    }
    return all;
}

// What four writes count in M and in S: entries of c and E of one row.
struct Counts {
    m: vec4<f32>,
    s: vec4<f32>,
}

// Before the first of the invocation's tokens; zeros on the diagonal, where no write has been yet.
// From the end of the writes' own block it goes through the maps of the blocks between.
fn counts_before(own: Own) -> Counts {
    var counts: Counts;
    if own.column < own.row {
        let j = 4u * own.column;
        counts.m = vec4<f32>(ends[j].x, ends[j + 1u].x, ends[j + 2u].x, ends[j + 3u].x);
        counts.s = vec4<f32>(ends[j].y, ends[j + 1u].y, ends[j + 2u].y, ends[j + 3u].y);
        for (var block = own.column + 1u; block < own.row; block++) {
            let map = maps[block];
            counts = Counts(map.x * counts.m + map.y * counts.s, map.z * counts.s);
        }
    }
    return counts;
}

// The writes of a column of fours, which are tokens of the chunk too.
fn writes_of(own: Own) -> vec4<u32> {
    return 4u * own.column + vec4<u32>(0u, 1u, 2u, 3u);
}

// After token `t`, which may be a write's own. Before its own token a write counts nothing, whatever the gates are.
fn counts_after(counts: Counts, own: Own, t: u32) -> Counts {
    let writes = writes_of(own);
    let pushed = select(gates[t].w * counts.s, vec4<f32>(1.0), writes == vec4<u32>(t));
    return Counts(select(vec4<f32>(), gates[t].z * counts.m + pushed, writes <= vec4<u32>(t)), pushed);
}

// What is needed of a token on the way back.
// A row of a tile: what its writes count before the token; dN and dG; what the row gives to dc of its own token and of
// the one before.
struct Row {
    before: Counts,
    dn: vec4<f32>,
    dg: vec4<f32>,
    to_own: vec4<f32>,
    to_last: vec4<f32>,
}

// (26), (31) of token `t`, for four writes: squares come with the row of each.
fn row_of(t: u32, before: Counts, after: Counts, n: vec4<f32>, g: vec4<f32>, adjoint: vec4<f32>, read: vec4<f32>) -> Row {
    // dP Zᵀ; N and Λ Zᵀ are zeros where nothing is erased.
    // (25).
    let dp = -gates[t].y * adjoint;
    let reads = g * read;
    // A token that reads before its write reads what the one before left.
    if args.before == 1u {
        return Row(before, before.m * dp, before.m * read, vec4<f32>(), n * dp + reads);
    }
    return Row(before, before.m * dp, after.m * read, reads, n * dp);
}

// Gradients of what four writes count in M and in S, on their way from the last token to the first.
struct Gradient {
    m: vec4<f32>,
    s: vec4<f32>,
}

// Takes in what the row gives to its own token: (32). c takes all that E has, so E gets what c gets. Tokens after the last
// have no such step.
fn taken_in(now: Gradient, row: Row, t: u32, tokens: u32) -> Gradient {
    let m = now.m + row.to_own;
    return Gradient(m, now.s + select(vec4<f32>(), m, t < tokens));
}

// (32).
// From a token to the one before it: through its gates, and with what it read of the state before.
fn stepped_back(now: Gradient, row: Row, t: u32) -> Gradient {
    return Gradient(gates[t].z * now.m + row.to_last, gates[t].w * now.s);
}

// Both, of the four rows of a tile, where only what comes out is wanted: what the tile alone gives to the block before.
fn through_rows(rows: array<Row, 4>, t: u32, tokens: u32) -> Gradient {
    // From the last row to the first; the rows are named, because what has an index might lie in memory.
    var now: Gradient;
    now = stepped_back(taken_in(now, rows[3], t + 3u, tokens), rows[3], t + 3u);
    now = stepped_back(taken_in(now, rows[2], t + 2u, tokens), rows[2], t + 2u);
    now = stepped_back(taken_in(now, rows[1], t + 1u, tokens), rows[1], t + 1u);
    return stepped_back(taken_in(now, rows[0], t, tokens), rows[0], t);
}

// What comes to a tile from the states after the chunk, through all blocks after it. Each of these has its own share in the
// slices, and passes on what it gets: the map of its tokens, transposed.
fn gradient_after(chunk: u32, own: Own) -> Gradient {
    let j = 4u * own.column;
    var now = Gradient(space[vector_at(chunk, AFTER_M, j) / 4u], space[vector_at(chunk, AFTER_S, j) / 4u]);
    for (var block = 15u; block > own.row; block--) {
        let map = maps[block];
        let at = block * 16u + own.column;
        let m = map.x * now.m + slices[at];
        now = Gradient(m, map.y * now.m + map.z * now.s + slices[SLICE + at]);
    }
    return now;
}

// What a row gives to the gradients of a and η of its token: (32), summed over four writes.
fn to_gates(now: Gradient, row: Row, own: Own, t: u32) -> vec2<f32> {
    // A write's own token does not decay it.
    let earlier = writes_of(own) < vec4<u32>(t);
    let a = select(vec4<f32>(), now.m * row.before.m, earlier);
    if MOMENTUM == 0u {
        return vec2<f32>(dot(a, vec4<f32>(1.0)), 0.0);
    }
    let eta = select(vec4<f32>(), now.s * row.before.s, earlier);
    return vec2<f32>(dot(a, vec4<f32>(1.0)), dot(eta, vec4<f32>(1.0)));
}

// `keys.wgsl` reads rows alone, so each tile is written twice.
// A tile and its mirror image; on the diagonal both are one.
// Tiles above the diagonal belong to nobody else, so no two invocations write one.
fn put_square(chunk: u32, which: u32, own: Own, x: mat4x4<f32>) {
    let across = transpose(x);
    let diagonal = own.row == own.column;
    for (var i = 0u; i < 4u; i++) {
        let last = select(3u, i, diagonal);
        let lower = select(across[i], x[i], vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(last));
        space[square_at(chunk, which, 4u * own.row + i, 4u * own.column) / 4u] = lower;
        if !diagonal {
            space[square_at(chunk, which, 4u * own.column + i, 4u * own.row) / 4u] = across[i];
        }
    }
}

// The rows of a tile, from its squares: four steps of the tables, one after another.
fn rows_of(own: Own, all: Squares) -> array<Row, 4> {
    // `start` is before the first row, and each of the others after one.
    let t = 4u * own.row;
    let start = counts_before(own);
    let a = counts_after(start, own, t);
    let b = counts_after(a, own, t + 1u);
    let c = counts_after(b, own, t + 2u);
    let d = counts_after(c, own, t + 3u);
    return array<Row, 4>(
        row_of(t, start, a, all.n[0], all.g[0], all.adjoint[0], all.read[0]),
        row_of(t + 1u, a, b, all.n[1], all.g[1], all.adjoint[1], all.read[1]),
        row_of(t + 2u, b, c, all.n[2], all.g[2], all.adjoint[2], all.read[2]),
        row_of(t + 3u, c, d, all.n[3], all.g[3], all.adjoint[3], all.read[3])
    );
}

// The way back through a tile's rows, now with what comes from later blocks: for each the gradients of a, then of η.
fn gates_of(after: Gradient, rows: array<Row, 4>, own: Own, tokens: u32) -> mat2x4<f32> {
    let t = 4u * own.row;
    var now = taken_in(after, rows[3], t + 3u, tokens);
    let d = to_gates(now, rows[3], own, t + 3u);
    now = taken_in(stepped_back(now, rows[3], t + 3u), rows[2], t + 2u, tokens);
    let c = to_gates(now, rows[2], own, t + 2u);
    now = taken_in(stepped_back(now, rows[2], t + 2u), rows[1], t + 1u, tokens);
    let b = to_gates(now, rows[1], own, t + 1u);
    now = taken_in(stepped_back(now, rows[1], t + 1u), rows[0], t, tokens);
    let a = to_gates(now, rows[0], own, t);
    return mat2x4<f32>(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}

// A workgroup has a chunk: squares, then the tables forward, then back. dN and dG and what each token's gates get are left in
// `space`.
@compute @workgroup_size(256)
fn tables(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let chunk = group_index(group);
    if chunk >= args.count {
        return;
    }
    let here = segment(args.first + chunk);
    if here.tokens == 0u {
        return;
    }
    let own = own_of(local);
    // All take part in barriers and in bringing slices; those above the diagonal have nothing else to do.
    let works = own.column <= own.row;
    read_gates(here, local);
    workgroupBarrier();
    prepare(here.tokens, local);
    let all = squares_of(here, own, local);
    // `prepare` is through since the first barrier of the squares.
    // First every tile by itself, as if nothing came from later tokens.
    var rows: array<Row, 4>;
    var through: Gradient;
    if works {
        rows = rows_of(own, all);
        through = through_rows(rows, 4u * own.row, here.tokens);
    }
    // What each tile gives goes where slices were.
    workgroupBarrier();
    slices[own.row * 16u + own.column] = through.m;
    slices[SLICE + own.row * 16u + own.column] = through.s;
    workgroupBarrier();
    // Then with what comes: gradients of gates, a share of each token's.
    var sums: mat2x4<f32>;
    if works {
        sums = gates_of(gradient_after(chunk, own), rows, own, here.tokens);
        put_square(chunk, DG, own, mat4x4<f32>(rows[0].dg, rows[1].dg, rows[2].dg, rows[3].dg));
        if args.erase != ERASE_NOTHING {
            put_square(chunk, DN, own, mat4x4<f32>(rows[0].dn, rows[1].dn, rows[2].dn, rows[3].dn));
        }
    }
    // Shares of a token's gates meet in the slices, once everybody has read what came through them.
    workgroupBarrier();
    slices[own.row * 16u + own.column] = sums[0];
    slices[SLICE + own.row * 16u + own.column] = sums[1];
    workgroupBarrier();
    if local < here.tokens {
        let a = vector_at(chunk, DA, local);
        let eta = vector_at(chunk, DETA, local);
        space[a / 4u][a % 4u] = row_sum(0u, local);
        space[eta / 4u][eta % 4u] = row_sum(1u, local);
    }
}
