// Products of rows of a chunk, four by four numbers an invocation: with the rows of another array (a square [64,64],
// only up to the diagonal), or with those of a matrix [K,V] of a kept state (a product [64,K]).
//
// `args.width` is the length of the rows, `args.slot` which square or product it is. Of states, `args.offset` is 0 for M
// and 1 for S, `args.lagging` 1 for the first state of the period.

@group(0) @binding(4) var<storage, read_write> space: array<f32>;

// Sums over the columns of rows `rows` of x and `others` of y, places in these arrays: one row of x a vector.
fn four_by_four(rows: vec4<u32>, others: vec4<u32>) -> array<vec4<f32>, 4> {
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
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

// Places of tokens `t` to `t + 3` in an array [rows,H,width]; behind the last, those of the last.
fn token_rows(here: Span, t: u32) -> vec4<u32> {
    let all = min(vec4<u32>(t, t + 1u, t + 2u, t + 3u), vec4<u32>(here.tokens - 1u));
    return args.width * vec4<u32>(token(here, all.x), token(here, all.y), token(here, all.z), token(here, all.w));
}

@compute @workgroup_size(64)
fn square(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let own = tile(thread, CHUNK);
    let here = span(args.first + own.chunk);
    if own.row >= here.tokens || own.column > own.row {
        return;
    }
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

@compute @workgroup_size(64)
fn state(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let own = tile(thread, args.key);
    let here = span(args.first + own.chunk);
    if own.row >= here.tokens || own.column >= args.key {
        return;
    }
    let matrix = select(here.kept, here.leader, args.lagging == 1u) * args.matrices + args.offset;
    let last = args.key - 1u;
    let j = own.column;
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
