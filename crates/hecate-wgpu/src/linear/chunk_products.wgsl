// Products of rows of a chunk, four by four elements an invocation. The other factor is the rows of another array (a
// square [64,64], only up to the diagonal). Or it is a matrix [K,V] of a kept state (a product [64,K]).
//
// `args.width` is the length of the rows, `args.slot` which square or product it is. Of states, `args.offset` is 0 for M
// and 1 for S, `args.lagging` 1 for the first state of the period.

@group(0) @binding(4) var<storage, read_write> space: array<f32>;

// Sums over the columns of rows `rows` of x and `others` of y, places in these arrays: one row of x a vector.
// `x_four` and `y_four` read four columns at once; nothing is shared, since neighbours hit the same cache lines.
fn four_by_four(rows: vec4<u32>, others: vec4<u32>) -> array<vec4<f32>, 4> {
    // Sums in registers by name: an array with an index might lie in memory.
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    // Sixteen dot products for eight reads.
    for (var c = 0u; c < args.width; c += 4u) {
        let y0 = y_four(others.x, c);
        let y1 = y_four(others.y, c);
        let y2 = y_four(others.z, c);
        let y3 = y_four(others.w, c);
        let x0 = x_four(rows.x, c);
        let x1 = x_four(rows.y, c);
        let x2 = x_four(rows.z, c);
        let x3 = x_four(rows.w, c);
        s0 += vec4<f32>(dot(x0, y0), dot(x0, y1), dot(x0, y2), dot(x0, y3));
        s1 += vec4<f32>(dot(x1, y0), dot(x1, y1), dot(x1, y2), dot(x1, y3));
        s2 += vec4<f32>(dot(x2, y0), dot(x2, y1), dot(x2, y2), dot(x2, y3));
        s3 += vec4<f32>(dot(x3, y0), dot(x3, y1), dot(x3, y2), dot(x3, y3));
    }
    return array<vec4<f32>, 4>(s0, s1, s2, s3);
}

// Places of tokens `t` to `t + 3` in an array [rows,H,width]; after the last, those of the last.
// Rows after the last token repeat it; their products are never read.
fn token_rows(here: Segment, t: u32) -> vec4<u32> {
    let all = min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(here.tokens - 1u));
    return args.width * vec4<u32>(token(here, all.x), token(here, all.y), token(here, all.z), token(here, all.w));
}

// x yᵀ for tokens of one chunk: an invocation owns a tile of 4 x 4.
@compute @workgroup_size(64)
fn square(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let mine = own_tile(group, local, CHUNK);
    // Only tiles that touch the lower triangle: a token reads earlier writes.
    if !mine.works || mine.tile.column > mine.tile.row {
        return;
    }
    let own = mine.tile;
    let here = mine.here;
    var sums = four_by_four(token_rows(here, own.row), token_rows(here, own.column));
    for (var i = 0u; i < 4u; i++) {
        let to = square_at(own.chunk, args.slot, own.row + i, own.column);
        let row = sums[i];
        space[to] = row.x;
        space[to + 1u] = row.y;
        space[to + 2u] = row.z;
        space[to + 3u] = row.w;
    }
}

// x Mᵀ for tokens of one chunk and a kept state: an invocation owns 4 tokens and 4 rows of M.
@compute @workgroup_size(64)
fn state(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let mine = own_tile(group, local, args.key);
    if !mine.works {
        return;
    }
    let own = mine.tile;
    let here = mine.here;
    // The state before the chunk, or the first of its period for a frozen target.
    let matrix = select(here.kept, here.leader, args.lagging == 1u) * args.matrices + args.offset;
    let last = args.key - 1u;
    let j = own.column;
    // Rows after the last repeat it, for the padding alone.
    let rows = matrix * args.key + min(vec4<u32>(j, j + 1u, j + 2u, j + 3u), vec4<u32>(last));
    var sums = four_by_four(token_rows(here, own.row), args.value * rows);
    for (var i = 0u; i < 4u; i++) {
        let to = product_at(own.chunk, args.slot, own.row + i, j);
        let row = sums[i];
        // Rows are padded to a multiple of four.
        space[to] = row.x;
        space[to + 1u] = row.y;
        space[to + 2u] = row.z;
        space[to + 3u] = row.w;
    }
}
