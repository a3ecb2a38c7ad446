// What a workgroup does for one token, as a list of phases. Compilers would write out many functions with barriers of
// their own at each of their places; some take minutes for that.
//
// A phase is a kind and sizes, `shape_of(phase)`, and a rule's functions that say what happens inside:
//
//     fn job_at(phase: u32) -> Job                              // TIMES, TRANSPOSED, UPDATE: where arrays are
//     fn element(phase: u32, i: u32) -> vec4<f32>               // EACH: element i; what it adds to four sums
//     fn along(phase: u32, r: u32, c: u32) -> vec4<f32>         // SWEEP, ROWS: element (r, c); the same
//     fn down(phase: u32, r: u32, c: u32) -> f32                // COLUMNS: element (r, c); what it adds to its column
//     fn totalled(phase: u32, sums: vec4<f32>)                  // TOTAL: takes the sums, in one invocation
//     fn ended(phase: u32, r: u32, sums: vec4<f32>)             // ROWS: takes those of row r
//     fn landed(phase: u32, c: u32, sum: f32)                   // COLUMNS: takes that of column c
//
// What a phase writes is visible to the next. Sums go in an order that depends on the sizes and the number of invocations
// alone.

// Nothing; elements of a row; elements of a matrix; the same with sums along rows, down columns; products.
const NOTHING: u32 = 0u;
const EACH: u32 = 1u;
const SWEEP: u32 = 2u;
const ROWS: u32 = 3u;
const COLUMNS: u32 = 4u;
// y = x M, for M [rows, columns].
const TIMES: u32 = 5u;
// y = x Mᵀ; x must not be y.
const TRANSPOSED: u32 = 6u;
// M = factor M + xᵀ y.
const UPDATE: u32 = 7u;
// A tile of a product of matrices.
const PRODUCT: u32 = 8u;
// With EACH or SWEEP: sums over all; with COLUMNS: the largest instead of the sum.
const TOTAL: u32 = 16u;
const TOP: u32 = 32u;
// With TIMES, TRANSPOSED: what is in y stays, and the product joins it.
const ADD: u32 = 64u;
const KIND: u32 = 15u;

// Kind, rows, columns.
// A phase that takes no round.
fn nothing() -> vec3<u32> {
    return vec3(NOTHING, 0u, 0u);
}

// The phase, or nothing where the rule's options leave it out.
fn shape_if(condition: bool, kind: u32, rows: u32, columns: u32) -> vec3<u32> {
    return select(vec3(NOTHING, 0u, 0u), vec3(kind, rows, columns), condition);
}

// Elements of a row, with sums where they are wanted.
fn each_of(count: u32, sums: bool) -> vec3<u32> {
    return vec3(select(EACH, EACH | TOTAL, sums), 1u, count);
}

// Arrays of a phase: rows y, x, and the matrix m.
struct Job {
    y: u32,
    x: u32,
    m: u32,
    factor: f32,
}

// A product without a factor.
fn job(y: u32, x: u32, m: u32) -> Job {
    return Job(y, x, m, 1.0);
}

// A round is one pass of all invocations between two barriers.
fn rounds_of(shape: vec3<u32>) -> u32 {
    switch shape.x & KIND {
        case NOTHING: {
            return 0u;
        }
        // A total takes a second round for the last sixteen sums.
        case EACH, SWEEP: {
            return select(1u, 2u, (shape.x & TOTAL) != 0u);
        }
        // THREADS / LANES rows a round, each shared by LANES invocations.
        case ROWS: {
            return (shape.y + THREADS / LANES - 1u) / (THREADS / LANES);
        }
        // Up to THREADS columns a round.
        case COLUMNS, TIMES: {
            let width = max(width_of(shape.z), 1u);
            return (shape.z + width - 1u) / width;
        }
        // Four rows for every LANES invocations a round.
        case TRANSPOSED: {
            return (shape.y + 4u * (THREADS / LANES) - 1u) / (4u * (THREADS / LANES));
        }
        case PRODUCT: {
            return product_rounds(shape);
        }
        default: {
            return 1u;
        }
    }
}

// Elements THREADS apart, so that neighbours touch neighbouring elements.
fn work_each(phase: u32, count: u32) -> vec4<f32> {
    var sums = vec4(0.0);
    for (var i = me; i < count; i += THREADS) {
        sums += element(phase, i);
    }
    return sums;
}

// All rows in the first round; or, where rows have sums of their own, as many a round as invocations share them.
// LANES invocations share a row, and take its columns in turn.
fn work_sweep(phase: u32, shape: vec3<u32>, some: bool, round_at: u32) -> vec4<f32> {
    let apart = THREADS / LANES;
    let first = select(round_at * shape.y, round_at * apart, some);
    let last = min(shape.y, first + select(shape.y, apart, some));
    var sums = vec4(0.0);
    for (var r = first + me / LANES; r < last; r += apart) {
        for (var c = me % LANES; c < shape.z; c += LANES) {
            sums += along(phase, r, c);
        }
    }
    return sums;
}

// Invocation `me` owns column `me % width` and every `parts`th row of it.
fn work_columns(phase: u32, shape: vec3<u32>, round_at: u32) -> f32 {
    let width = width_of(shape.z);
    let parts = THREADS / width;
    let c = round_at * width + me % width;
    let top = (shape.x & TOP) != 0u;
    // The neutral element of a sum or of a maximum.
    var sum = select(0.0, -infinity(), top);
    if (me / width < parts && c < shape.z) {
        for (var r = me / width; r < shape.y; r += parts) {
            let own = down(phase, r, c);
            if (top) {
                sum = larger(sum, own);
            } else {
                sum += own;
            }
        }
    }
    return sum;
}

// As `work_columns`: y[c] = Σ x[r] M[r,c].
fn work_times(at: Job, shape: vec3<u32>, round_at: u32) -> f32 {
    let width = width_of(shape.z);
    let parts = THREADS / width;
    let c = round_at * width + me % width;
    var sums = vec4(0.0);
    if (me / width < parts && c < shape.z) {
        // Four rows at once, so that their loads overlap.
        let apart = parts * shape.z;
        var r = me / width;
        var i = at.m + r * shape.z + c;
        for (; r + 3u * parts < shape.y; r += 4u * parts) {
            let factors = vec4(
                row(at.x + r), row(at.x + r + parts), row(at.x + r + 2u * parts), row(at.x + r + 3u * parts),
            );
            sums += factors * vec4(workspace[i], workspace[i + apart], workspace[i + 2u * apart], workspace[i + 3u * apart]);
            i += 4u * apart;
        }
        for (; r < shape.y; r += parts) {
            sums.x += row(at.x + r) * workspace[i];
            i += apart;
        }
    }
    return sums.x + sums.y + sums.z + sums.w;
}

// y[r] = Σ x[c] M[r,c] for four rows at once: one read of x serves four products.
fn work_transposed(at: Job, shape: vec3<u32>, round_at: u32) -> vec4<f32> {
    let apart = THREADS / LANES;
    let r = 4u * apart * round_at + me / LANES;
    // After the last row, that one again: nobody takes its sum.
    let i = at.m + min(r + apart * vec4(0u, 1u, 2u, 3u), vec4(shape.y - 1u)) * shape.z;
    var sums = vec4(0.0);
    for (var c = me % LANES; c < shape.z; c += LANES) {
        sums += row(at.x + c) * vec4(workspace[i.x + c], workspace[i.y + c], workspace[i.z + c], workspace[i.w + c]);
    }
    return sums;
}

// Every element has one owner: no barrier inside.
fn work_update(at: Job, shape: vec3<u32>) {
    for (var r = me / LANES; r < shape.y; r += THREADS / LANES) {
        let own = row(at.x + r);
        for (var c = me % LANES; c < shape.z; c += LANES) {
            let i = at.m + r * shape.z + c;
            workspace[i] = at.factor * workspace[i] + own * row(at.y + c);
        }
    }
}

// What an invocation does by itself; what others are to add up is returned.
// Kinds are uniform over the workgroup.
fn work(phase: u32, shape: vec3<u32>, at: Job, round_at: u32) -> vec4<f32> {
    let kind = shape.x & KIND;
    switch kind {
        case EACH: {
            return work_each(phase, select(shape.z, 0u, round_at > 0u));
        }
        case SWEEP, ROWS: {
            return work_sweep(phase, shape, kind == ROWS, round_at);
        }
        case COLUMNS: {
            return vec4(work_columns(phase, shape, round_at), 0.0, 0.0, 0.0);
        }
        case TIMES: {
            return vec4(work_times(at, shape, round_at), 0.0, 0.0, 0.0);
        }
        case TRANSPOSED: {
            return work_transposed(at, shape, round_at);
        }
        case PRODUCT: {
            load_terms(phase, shape, round_at);
            return vec4(0.0);
        }
        default: {
            work_update(at, shape);
            return vec4(0.0);
        }
    }
}

// The sums of EACH and SWEEP: sixteen of them in one round, one in the next.
// The order of the additions depends on THREADS alone.
fn finish_total(phase: u32, top: bool, round_at: u32) {
    if (round_at == 0u && me < SECOND) {
        var sum = partial[me];
        for (var i = me + SECOND; i < THREADS; i += SECOND) {
            if (top) {
                sum.x = larger(sum.x, partial[i].x);
            } else {
                sum += partial[i];
            }
        }
        partial[THREADS + me] = sum;
    }
    if (round_at == 1u && me == 0u) {
        var sum = partial[THREADS];
        for (var i = 1u; i < SECOND; i++) {
            if (top) {
                sum.x = larger(sum.x, partial[THREADS + i].x);
            } else {
                sum += partial[THREADS + i];
            }
        }
        totalled(phase, sum);
    }
}

// The first invocation of a row adds up what its neighbours found.
fn finish_row(phase: u32, r: u32, rows: u32) {
    if (me % LANES == 0u && r < rows) {
        var sums = partial[me];
        for (var i = 1u; i < LANES; i++) {
            sums += partial[me + i];
        }
        ended(phase, r, sums);
    }
}

// The first `width` invocations finish one column each.
fn finish_column(phase: u32, shape: vec3<u32>, at: Job, round_at: u32) {
    let width = width_of(shape.z);
    let c = round_at * width + me;
    if (me >= width || c >= shape.z) {
        return;
    }
    let sum = join(width, (shape.x & TOP) != 0u);
    if ((shape.x & KIND) == TIMES) {
        put(at.y + c, select(0.0, row(at.y + c), (shape.x & ADD) != 0u) + sum);
    } else {
        landed(phase, c, sum);
    }
}

// Of the four rows that some invocations share, the first four of them finish one each.
// Invocation `lane` of a row group finishes the row that is `lane` apart.
fn finish_transposed(at: Job, shape: vec3<u32>, round_at: u32) {
    let lane = me % LANES;
    let apart = THREADS / LANES;
    let r = 4u * apart * round_at + me / LANES + lane * apart;
    if (lane < 4u && r < shape.y) {
        var sum = 0.0;
        for (var i = 0u; i < LANES; i++) {
            sum += partial[me - lane + i][lane];
        }
        put(at.y + r, select(0.0, row(at.y + r), (shape.x & ADD) != 0u) + sum);
    }
}

// What becomes of the sums.
// Runs after a barrier: all of `partial` is there.
fn finish(phase: u32, shape: vec3<u32>, at: Job, round_at: u32) {
    switch shape.x & KIND {
        case EACH, SWEEP: {
            if ((shape.x & TOTAL) != 0u) {
                finish_total(phase, (shape.x & TOP) != 0u, round_at);
            }
        }
        case ROWS: {
            finish_row(phase, round_at * (THREADS / LANES) + me / LANES, shape.y);
        }
        case COLUMNS, TIMES: {
            finish_column(phase, shape, at, round_at);
        }
        case TRANSPOSED: {
            finish_transposed(at, shape, round_at);
        }
        case PRODUCT: {
            add_terms(phase, shape, round_at);
        }
        default: {}
    }
}

// All rounds of all phases in one loop, which passes over phases without any. Software runs all that is in a loop, whatever
// the branches, as often as it goes through it.
fn run(first: u32, last: u32) {
    var next_phase = first;
    var shape = nothing();
    var round_at = 0u;
    var rounds = 0u;
    loop {
        while (round_at == rounds && next_phase < last) {
            shape = shape_of(next_phase);
            rounds = rounds_of(shape);
            round_at = 0u;
            next_phase++;
        }
        if (round_at == rounds) {
            break;
        }
        // `next_phase` counts on by itself over phases that take no round.
        let phase = next_phase - 1u;
        let at = job_at(phase);
        let own = work(phase, shape, at, round_at);
        // The last round's are needed until the end of `finish_total`.
        partial[me] = own;
        // Everybody's part is there before anybody finishes.
        sync();
        finish(phase, shape, at, round_at);
        // And what was finished is there before the next round reads it.
        sync();
        round_at++;
    }
}
