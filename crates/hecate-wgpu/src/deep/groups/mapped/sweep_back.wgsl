// The way back of `sweep.wgsl`: states of a chunk are made again and wait in memory, their gradient stays in registers.

// Gradients of the state and of the anchor; the state before a token.
var<private> d: array<vec4<f32>, ROWS>;
var<private> befores: array<vec4<f32>, ROWS>;
var<private> danchor: array<vec4<f32>, ROWS>;
// By token, what invocations leave for values. And for a token's queries and keys by row, where columns are added up here.
var<workgroup> values: array<vec4<f32>, CHUNK * THREADS>;
const SUMMED: u32 = select(2u * ROWS * THREADS, 1u, ACROSS == 1u);
var<workgroup> rows: array<f32, SUMMED>;

// Numbers of a token on the way back.
struct TokenBack {
    // Gradients of what was read, as queries' meet it and as the state does; what a column takes off.
    given: vec4<f32>,
    own: vec4<f32>,
    taken: vec4<f32>,
    // (54): 1 / σ, and what y |y|^{q-2} is multiplied by.
    per: f32,
    along: f32,
    // (55): logarithms of columns' sums where the token reads, behind its write, and before it. A column of gradients sums to 0: what
    // its states have in common would leave its rounding in that of a.
    logs: vec4<f32>,
    after: vec4<f32>,
    before: vec4<f32>,
}

// `last` are the sums of columns of the gradient that came in, which is of the state behind the last token.
fn token_back(t: u32, last: vec4<f32>) -> TokenBack {
    var b: TokenBack;
    // By columns: the same for all rows of an invocation.
    let dout = four(layer.dout, t);
    if (RETENTION == LQ) {
        b.given = of_layer(FACTOR, t) * dout;
        b.own = of_layer(SLOPE, t) * dout;
        b.per = 1.0 / of_layer(UNIT, t);
        b.along = of_layer(SHARED, t);
        return b;
    }
    // Exponentials of logarithms count from equal shares.
    let share = 1.0 / f32(layer.rows);
    b.given = args.cell.scale * dout;
    b.own = share * b.given;
    b.logs = four(layer.logs, t);
    // The gradient of a distribution's logarithm sums to what was read times its gradient.
    if (AFTER == 1u) {
        b.after = b.logs;
        b.taken = four(layer.out, t) * dout;
        if (t > 0u) {
            b.before = four(layer.logs, t - 1u);
        }
    } else {
        b.after = four(layer.logs, t + 1u);
        b.before = b.logs;
        if (t + 1u < tokens) {
            b.taken = four(layer.out, t + 1u) * four(layer.dout, t + 1u);
        }
    }
    if (t + 1u == tokens) {
        b.taken += last;
    }
    b.taken *= share;
    return b;
}

// What a read leaves for the state that it saw, and what the query has of it.
struct ReadBack {
    d: vec4<f32>,
    query: f32,
}

// Takes what was read back to the gradients of four elements of the state that was seen, and of the query.
fn read_back(b: TokenBack, query: f32, seen: vec4<f32>) -> ReadBack {
    if (RETENTION == LQ) {
        // As `look` found it.
        let y = b.per * seen;
        let steep = raise_four(y);
        let image = steep * y;
        let pulled = query * b.own * select(steep, vec4(1.0), LITERAL == 1u) + b.along * image;
        return ReadBack(pulled, dot(select(image, y, LITERAL == 1u), b.given));
    }
    // A weight times the gradient of what was read.
    let w = state_exponentials(seen - b.logs) * b.own;
    return ReadBack(query * w, w.x + w.y + w.z + w.w);
}

// Exponentials of logarithms of probabilities; zero beyond the last column, where a state is none.
fn state_exponentials(x: vec4<f32>) -> vec4<f32> {
    let left = max(layer.wide, column) - column;
    return select(vec4(0.0), lower_exponentials(x), vec4(0u, 1u, 2u, 3u) < vec4(left));
}

// Sums over an invocation's columns into its rows' places, where several invocations have a row.
fn put_rows(n: u32, of_query: f32, of_key: f32, t: u32, block: u32) {
    if (SUMMED > 1u) {
        rows[n * THREADS + me] = of_query;
        rows[(ROWS + n) * THREADS + me] = of_key;
    } else if (row_at(n) < layer.rows) {
        let to = base + layer.parts + (block * plan.call.frozen + t) * 2u * layer.rows + row_at(n);
        workspace[to] = of_query;
        workspace[to + layer.rows] = of_key;
    }
}

// And over the workgroup's.
fn add_rows(t: u32, block: u32) {
    if (SUMMED == 1u) {
        return;
    }
    workgroupBarrier();
    for (var i = me; i < 2u * ROWS * DOWN; i += THREADS) {
        let r = i % (ROWS * DOWN);
        // Row r belongs to the invocations `r % DOWN` down, as their number r / DOWN.
        let from_row = (i / (ROWS * DOWN) * ROWS + r / DOWN) * THREADS + r % DOWN * ACROSS;
        var sum = 0.0;
        for (var c = 0u; c < ACROSS; c++) {
            sum += rows[from_row + c];
        }
        if (r < layer.rows) {
            let which = i / (ROWS * DOWN);
            workspace[base + layer.parts + ((block * plan.call.frozen + t) * 2u + which) * layer.rows + r] = sum;
        }
    }
    workgroupBarrier();
}

// Token t, place s of its chunk.
fn go_back(t: u32, s: u32, last: vec4<f32>, block: u32) {
    let b = token_back(t, last);
    fetch(t);
    take();
    var of_a = 0.0;
    var of_value = vec4(0.0);
    for (var n = 0u; n < ROWS; n++) {
        befores[n] = found(own_place(layer.trail, s, block, n));
    }
    for (var n = 0u; n < ROWS; n++) {
        let query = queries[n];
        let key = keys[n];
        let before = befores[n];
        let inside = row_at(n) < layer.rows;
        // The gradient of the state behind the token.
        var own = d[n];
        var read: ReadBack;
        if (AFTER == 1u) {
            read = read_back(b, query, state[n]);
            own += read.d;
        }
        if (RETENTION == KL) {
            own -= state_exponentials(state[n] - b.after) * b.taken;
        }
        // Rows that are not there have nothing.
        own = select(vec4(0.0), own, inside);
        // What a is multiplied with.
        let lag = before - anchor[n] - b.before;
        of_a += dot(own, lag);
        of_value += key * own;
        if (ANCHORED == 1u) {
            danchor[n] += lost * own;
        }
        d[n] = a * own;
        if (AFTER == 0u) {
            read = read_back(b, query, before);
            d[n] += select(vec4(0.0), read.d, inside);
        }
        put_rows(n, read.query, dot(own, z), t, block);
        // The token before finds the state behind it here.
        state[n] = before;
    }
    values[s * THREADS + me] = of_value;
    numbers[s * THREADS + me] = of_a;
    add_rows(t, block);
}

// Sums over rows of what every invocation left in place s.
fn column_sums(s: u32, number: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var i = 0u; i < DOWN; i++) {
        sum += values[s * THREADS + number + i * ACROSS];
    }
    return sum;
}

// Gradients of values and of a, of a whole chunk.
fn add_values(first: u32, count: u32, block: u32) {
    workgroupBarrier();
    for (var i = me; i < count * ACROSS; i += THREADS) {
        column = (block * ACROSS + i % ACROSS) * 4u;
        put_four(layer.dvalue, first + i / ACROSS, column_sums(i / ACROSS, i % ACROSS));
    }
    column = (block * ACROSS + across) * 4u;
    add_numbers(layer.da, first, count, block);
    workgroupBarrier();
}

// All tokens back. The state is that before the group, its gradient that behind it, which becomes that before.
@compute @workgroup_size(THREADS)
fn sweep_back(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_sweep(group.x);
    load_state();
    var sums = vec4(0.0);
    for (var n = 0u; n < ROWS; n++) {
        d[n] = matrix_four(layer.dstate, n);
        if (ANCHORED == 1u) {
            danchor[n] = matrix_four(layer.danchor, n);
        }
        sums += d[n];
    }
    values[me] = sums;
    workgroupBarrier();
    // Of distributions: what their normalisation takes off the gradient that came in.
    let last = column_sums(0u, across);
    workgroupBarrier();
    // From the last chunk, which may be short.
    for (var chunk = (tokens + CHUNK - 1u) / CHUNK; chunk > 0u;) {
        chunk--;
        let first = chunk * CHUNK;
        let count = min(tokens - first, CHUNK);
        for (var n = 0u; n < ROWS; n++) {
            state[n] = found(own_place(layer.starts, chunk, group.x, n));
        }
        // States of the chunk once more, from the one that was kept.
        fetch(first);
        for (var s = 0u; s < count; s++) {
            for (var n = 0u; n < ROWS; n++) {
                leave(own_place(layer.trail, s, group.x, n), state[n]);
            }
            take();
            fetch(first + s + 1u);
            write();
        }
        for (var s = count; s > 0u;) {
            s--;
            go_back(first + s, s, last, group.x);
        }
        add_values(first, count, group.x);
    }
    for (var n = 0u; n < ROWS; n++) {
        if (row_at(n) < layer.rows) {
            put_four(layer.dstate, row_at(n), d[n]);
            if (ANCHORED == 1u) {
                put_four(layer.danchor, row_at(n), danchor[n]);
            }
        }
    }
}
