// Products of rows of a chunk, four by four numbers a thread: with the rows of another array (a square [64,64], only up to
// the diagonal), or with those of a matrix [K,V] of a kept state (a product [64,K]).
//
// `args.width` is the length of the rows. Squares: `args.slot` is which. Products: `args.slot` is which, `args.offset` 0 for
// M and 1 for S, `args.lagging` 1 for the first state of the period.

@group(0) @binding(2) var<storage, read> x: array<f32>;            // [rows,H,width]
@group(0) @binding(3) var<storage, read> y: array<f32>;            // [rows,H,width] or [kept,H,M and S,K,V]
@group(0) @binding(4) var<storage, read_write> space: array<f32>;

// Sums over the columns of rows `rows` of x and `others` of y, places in these arrays: one row of x a vector.
fn four_by_four(rows: vec4<u32>, others: vec4<u32>) -> mat4x4<f32> {
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var c = 0u; c < args.width; c++) {
        let other = vec4<f32>(y[others.x + c], y[others.y + c], y[others.z + c], y[others.w + c]);
        s0 += x[rows.x + c] * other;
        s1 += x[rows.y + c] * other;
        s2 += x[rows.z + c] * other;
        s3 += x[rows.w + c] * other;
    }
    return mat4x4<f32>(s0, s1, s2, s3);
}

// Places of tokens `t` to `t + 3` in an array [rows,H,width]; behind the last, those of the last.
fn token_rows(here: Span, t: u32) -> vec4<u32> {
    let last = here.tokens - 1u;
    return args.width * vec4<u32>(
        token(here, min(t, last)), token(here, min(t + 1u, last)), token(here, min(t + 2u, last)), token(here, min(t + 3u, last))
    );
}

@compute @workgroup_size(64)
fn square(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return;
    }
    let chunk = thread / (SQUARE / 16u);
    let t = thread / 16u % 16u * 4u;
    let j = thread % 16u * 4u;
    let here = span(args.first + chunk);
    if t >= here.tokens || j > t {
        return;
    }
    var sums = four_by_four(token_rows(here, t), token_rows(here, j));
    for (var i = 0u; i < 4u; i++) {
        let to = square_at(chunk, args.slot, t + i, j);
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
    let across = (args.key + 3u) / 4u;
    let chunk = thread / across / 16u;
    let t = thread / across % 16u * 4u;
    let j = thread % across * 4u;
    let here = span(args.first + chunk);
    if t >= here.tokens {
        return;
    }
    let matrix = select(here.kept, here.leader, args.lagging == 1u) * MATRICES + args.offset;
    let last = args.key - 1u;
    let rows = matrix * args.key + min(vec4<u32>(j, j + 1u, j + 2u, j + 3u), vec4<u32>(last));
    var sums = four_by_four(token_rows(here, t), args.value * rows);
    for (var i = 0u; i < 4u; i++) {
        let to = product_at(chunk, args.slot, t + i, j);
        let row = sums[i];
        for (var c = 0u; c < min(4u, args.key - j); c++) {
            space[to + c] = row[c];
        }
    }
}
