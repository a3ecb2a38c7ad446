// All tokens of a group, one after another, for some columns of a layer's state: DOWN invocations a column, each with ROWS of its
// rows, ACROSS of them side by side, each with four columns. So the state stays in registers.
//
// Invocations go through CHUNK tokens by themselves. What they read is then added up column by column.
// Columns of (55) are distributions but for a number that each has in common, the logarithm of its sum. Writes carry it along.
// In registers they count from equal shares, as X + ln rows: columns that are near equal keep the digits in which they differ.

// No element is so far below; multiplied by log₂ e it stays finite.
const BIG: f32 = 1e38;

// Elements of the state and of what it goes back to: rows DOWN apart, four columns.
var<private> state: array<vec4<f32>, ROWS>;
var<private> anchor: array<vec4<f32>, ROWS>;
// A token's key and query in these rows, a and what it writes in these columns; and those of the next token, which are loaded
// while this one is in work.
var<private> keys: array<f32, ROWS>;
var<private> queries: array<f32, ROWS>;
var<private> a: f32;
// 1 - a.
var<private> lost: f32;
var<private> z: vec4<f32>;
var<private> next_keys: array<f32, ROWS>;
var<private> next_queries: array<f32, ROWS>;
var<private> next_a: f32;
var<private> next_lost: f32;
var<private> next_z: vec4<f32>;
// The first row and column of this invocation, and its number across.
var<private> down: u32;
var<private> column: u32;
var<private> across: u32;
// σ of (54) where tokens read, the largest element of what states go back to, and the least σ.
var<private> unit: f32;
var<private> farthest: f32;
var<private> least: f32;

// What invocations leave of a chunk: four columns' parts of (54), or for (55) largest elements, sums, and what was read.
const LOOKS: u32 = select(3u, 1u, RETENTION == LQ);
var<workgroup> parts: array<vec4<f32>, CHUNK * LOOKS * THREADS>;
// Units of a chunk's tokens: nothing is stored while tokens go by, since loads would wait for it.
var<workgroup> units: array<f32, CHUNK>;
// Sums of powers.
var<workgroup> numbers: array<f32, CHUNK * THREADS>;

// A workgroup takes ACROSS times four columns.
fn begin_sweep(block: u32) {
    begin_layer(args.origin);
    down = me / ACROSS;
    across = me % ACROSS;
    column = (block * ACROSS + across) * 4u;
}

// Of `workspace`, or zero. No branch: loads wait together. Where tiles are whole, all elements are inside.
fn element(i: u32, inside: bool) -> f32 {
    if (WHOLE == 1u) {
        return workspace[i];
    }
    return select(0.0, workspace[select(base, i, inside)], inside);
}

// Four columns of a row of a matrix or panel as wide as the layer, zeros beyond the last.
fn four(place: u32, row: u32) -> vec4<f32> {
    let i = base + place + row * layer.wide + column;
    let left = max(layer.wide, column) - column;
    return vec4(element(i, left > 0u), element(i + 1u, left > 1u), element(i + 2u, left > 2u), element(i + 3u, left > 3u));
}
// Elements beyond the last column stay as they are.
fn put_four(place: u32, row: u32, own: vec4<f32>) {
    let i = base + place + row * layer.wide + column;
    for (var c = 0u; c < 4u; c++) {
        if (column + c < layer.wide) {
            workspace[i + c] = own[c];
        }
    }
}

// This invocation's row n, and a token's key or query there.
fn row_at(n: u32) -> u32 {
    return down + DOWN * n;
}
// Returns the element of token t's key or query, at `place`, in this invocation's row n; zero past the end.
fn of_row(place: u32, t: u32, n: u32) -> f32 {
    let r = row_at(n);
    return element(base + place + t * layer.rows + r, r < layer.rows);
}

// Four columns of a matrix in this invocation's rows.
fn matrix_four(place: u32, n: u32) -> vec4<f32> {
    let r = row_at(n);
    if (r < layer.rows) {
        return four(place, r);
    }
    return vec4(0.0);
}

// The logarithm of an equal share, with a minus; 0 but for distributions.
fn equal() -> f32 {
    if (RETENTION == KL) {
        return logarithm(f32(layer.rows));
    }
    return 0.0;
}

// The state before the group.
fn load_state() {
    let more = equal();
    for (var n = 0u; n < ROWS; n++) {
        state[n] = matrix_four(layer.state, n) + more;
        if (ANCHORED == 1u) {
            anchor[n] = matrix_four(layer.anchor, n) + more;
        }
    }
}

// A place that this invocation alone reads and writes, of state `number` of a list: neighbours lie side by side.
fn own_place(list: u32, number: u32, block: u32, n: u32) -> u32 {
    return base + list + ((number * layer.blocks + block) * ROWS + n) * 4u * THREADS + me;
}
// Four columns lie a workgroup apart, so that a store of all invocations is one line of memory.
fn leave(place: u32, own: vec4<f32>) {
    workspace[place] = own.x;
    workspace[place + THREADS] = own.y;
    workspace[place + 2u * THREADS] = own.z;
    workspace[place + 3u * THREADS] = own.w;
}
// Reads back the four that `leave` stored.
fn found(place: u32) -> vec4<f32> {
    return vec4(
        workspace[place], workspace[place + THREADS], workspace[place + 2u * THREADS], workspace[place + 3u * THREADS],
    );
}

// Loads token t, whatever it is beyond the last one; and makes it the one in work.
fn fetch(t: u32) {
    let own = min(t, tokens - 1u);
    var mean = 0.0;
    if (centres(own)) {
        mean = of_layer(MEAN, own);
    }
    for (var n = 0u; n < ROWS; n++) {
        next_keys[n] = of_row(layer.key, own, n);
        next_queries[n] = of_row(layer.query, own, n) - mean;
    }
    next_a = number(GATE_A, own);
    next_lost = number(READ_REST, own);
    next_z = four(layer.value, own);
}
// Makes the fetched token the one in work.
fn take() {
    for (var n = 0u; n < ROWS; n++) {
        keys[n] = next_keys[n];
        queries[n] = next_queries[n];
    }
    a = next_a;
    lost = next_lost;
    z = next_z;
}

// X ← B + a (X − B) + kᵀ z.
fn write() {
    for (var n = 0u; n < ROWS; n++) {
        let k = keys[n];
        if (ANCHORED == 1u) {
            state[n] = anchor[n] + a * (state[n] - anchor[n]) + k * z;
        } else {
            state[n] = a * state[n] + k * z;
        }
    }
}

// σ before the group, and of the state behind token t: no element is larger.
fn begin_unit() {
    if (RETENTION == LQ) {
        unit = lq_size(largest_by_slab(TOP));
        farthest = largest_by_slab(FAR);
        least = least_unit();
    }
}
// A bound is enough: powers up to the eighth of what is some hundred times smaller are still inside the range of 32 bits.
fn move_unit(t: u32) {
    if (RETENTION == LQ) {
        unit = larger(a * unit + lost * farthest + of_layer(REACH, t), least);
    }
}

// eˣ for x up to 0, or hardly above: what a driver's power of two errs with its exponent is little there.
fn lower_exponentials(e: vec4<f32>) -> vec4<f32> {
    return exp2(1.4426950408889634 * e);
}
// By element.
fn raise_four(y: vec4<f32>) -> vec4<f32> {
    return vec4(raise(y.x), raise(y.y), raise(y.z), raise(y.w));
}

// What the query reads of the state, into place s of the chunk.
fn look(s: u32) {
    var read = vec4(0.0);
    if (RETENTION == LQ) {
        let per = 1.0 / unit;
        var norm = 0.0;
        for (var n = 0u; n < ROWS; n++) {
            let y = per * state[n];
            // y |y|^{q-2}, whose product with y is |y|^q.
            let image = raise_four(y) * y;
            read += queries[n] * select(image, y, LITERAL == 1u);
            norm += dot(image, y);
        }
        parts[s * THREADS + me] = read;
        numbers[s * THREADS + me] = norm;
        return;
    }
    // Exponentials are relative to the largest that this invocation has.
    var top = vec4(-BIG);
    for (var n = 0u; n < ROWS; n++) {
        top = max(top, select(vec4(-BIG), state[n], row_at(n) < layer.rows));
    }
    var sum = vec4(0.0);
    for (var n = 0u; n < ROWS; n++) {
        let inside = row_at(n) < layer.rows;
        // Rows that are not there have no say, and no exponential that overflows.
        let e = select(vec4(0.0), lower_exponentials(select(vec4(0.0), state[n] - top, inside)), inside);
        sum += e;
        read += queries[n] * e;
    }
    parts[s * LOOKS * THREADS + me] = read;
    parts[(s * LOOKS + 1u) * THREADS + me] = top;
    parts[(s * LOOKS + 2u) * THREADS + me] = sum;
}

// Adds up what invocations left of `count` tokens from `first` on.
fn add_looks(first: u32, count: u32, block: u32) {
    workgroupBarrier();
    for (var i = me; i < count * ACROSS; i += THREADS) {
        // The token, and which four columns.
        let s = i / ACROSS;
        let own = s * LOOKS * THREADS + i % ACROSS;
        // As this invocation's own columns, for `put_four`.
        column = (block * ACROSS + i % ACROSS) * 4u;
        if (RETENTION == LQ) {
            var read = vec4(0.0);
            for (var d = 0u; d < DOWN; d++) {
                read += parts[own + d * ACROSS];
            }
            put_four(layer.out, first + s, read);
        } else {
            add_distributions(first + s, own);
        }
    }
    column = (block * ACROSS + across) * 4u;
    if (RETENTION == LQ) {
        if (block == 0u && me < count) {
            put(UNIT + own_layer, first + me, units[me]);
        }
        add_numbers(layer.norms, first, count, block);
    }
    workgroupBarrier();
}

// The same of distributions, whose sums have exponents of their own.
fn add_distributions(t: u32, own: u32) {
    var top = vec4(-BIG);
    for (var d = 0u; d < DOWN; d++) {
        top = max(top, parts[own + THREADS + d * ACROSS]);
    }
    var read = vec4(0.0);
    var sum = vec4(0.0);
    for (var d = 0u; d < DOWN; d++) {
        let by = lower_exponentials(parts[own + THREADS + d * ACROSS] - top);
        read += by * parts[own + d * ACROSS];
        sum += by * parts[own + 2u * THREADS + d * ACROSS];
    }
    let share = 1.0 / f32(layer.rows);
    // A group's first state is read as it is: its columns count as if their sums were 1.
    if (AFTER == 0u && t == 0u) {
        read *= share * vec4(exponential(top.x), exponential(top.y), exponential(top.z), exponential(top.w));
        put_four(layer.logs, t, vec4(0.0));
    } else {
        read /= sum;
        sum *= share;
        put_four(layer.logs, t, top + vec4(logarithm(sum.x), logarithm(sum.y), logarithm(sum.z), logarithm(sum.w)));
    }
    if (t < tokens) {
        put_four(layer.out, t, args.cell.scale * read);
    }
}

// Sums of `numbers` over an eighth of the workgroup each.
fn add_numbers(place: u32, first: u32, count: u32, block: u32) {
    // A token and an eighth of its numbers.
    let s = me / PARTS;
    let part = me % PARTS;
    if (s < count) {
        var sum = 0.0;
        for (var i = 0u; i < THREADS / PARTS; i++) {
            sum += numbers[s * THREADS + part * (THREADS / PARTS) + i];
        }
        workspace[base + place + (block * PARTS + part) * plan.call.frozen + first + s] = sum;
    }
}

// All tokens forward. `plus` has two bits: whether the state behind them takes the place of the one before, and whether states
// before chunks are kept.
@compute @workgroup_size(THREADS)
fn sweep(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    begin(group, index);
    begin_sweep(group.x);
    begin_unit();
    load_state();
    if (tokens == 0u) {
        return;
    }
    fetch(0u);
    for (var first = 0u; first < tokens; first += CHUNK) {
        // The last chunk may be short.
        let count = min(tokens - first, CHUNK);
        if ((args.plus & 2u) != 0u) {
            for (var n = 0u; n < ROWS; n++) {
                leave(own_place(layer.starts, first / CHUNK, group.x, n), state[n]);
            }
        }
        for (var s = 0u; s < count; s++) {
            let t = first + s;
            // While this token is in work the next one is on its way.
            take();
            fetch(t + 1u);
            if (AFTER == 1u) {
                write();
                move_unit(t);
            }
            look(s);
            if (RETENTION == LQ && me == 0u) {
                units[s] = unit;
            }
            if (AFTER == 0u) {
                write();
                move_unit(t);
            }
        }
        add_looks(first, count, group.x);
    }
    // Columns of the last state are added up where no token reads it.
    if (RETENTION == KL && AFTER == 0u) {
        look(0u);
        add_looks(tokens, 1u, group.x);
    }
    if ((args.plus & 1u) != 0u) {
        storageBarrier();
        store_state();
    }
}

// Distributions again, behind the group.
fn store_state() {
    let less = equal();
    var logs = vec4(0.0);
    if (RETENTION == KL) {
        logs = four(layer.logs, tokens - AFTER);
    }
    for (var n = 0u; n < ROWS; n++) {
        if (row_at(n) < layer.rows) {
            put_four(layer.state, row_at(n), (state[n] - logs) - less);
        }
    }
}
