// Products of matrices of all memories at once: a workgroup a tile [32,32] of one memory, an invocation 4 x 4 of it.
//
// Element (i, j) of the sum of all terms, then what `finish` makes of it, goes to `out`.

const SIDE: u32 = 32u;
const DEPTH: u32 = 16u;
// Four more than a side, so that neighbours along either lie in different banks and fours lie together.
const APART: u32 = 36u;

// Terms first: [depth, rows of the tile], [depth, columns].
var<workgroup> left: array<f32, DEPTH * APART>;
var<workgroup> right: array<f32, DEPTH * APART>;

// Where an invocation reads a factor: eight elements of every DEPTH terms of a tile, a step apart.
struct Reader {
    // The first element, how far the next is, and that of the next terms.
    place: u32,
    step: u32,
    stripe: u32,
    // Its row or column and its term; the next one's are so much further.
    side: u32,
    term: u32,
    side_step: u32,
    term_step: u32,
}

// Of a factor whose sides and terms lie so far apart, from a row or column on.
fn reader(origin: u32, first: u32, by_side: u32, by_term: u32, me: u32) -> Reader {
    // Neighbouring invocations read neighbouring elements, whichever way a matrix lies.
    let lies = by_term == 1u;
    let side = select(me % SIDE, me / DEPTH, lies);
    let term = select(me / SIDE, me % DEPTH, lies);
    let side_step = select(0u, 4u, lies);
    let term_step = select(2u, 0u, lies);
    let place = base + origin + (first + side) * by_side + term * by_term;
    let step = side_step * by_side + term_step * by_term;
    return Reader(place, step, DEPTH * by_term, first + side, term, side_step, term_step);
}

// Element n of eight, zero outside of the matrix.
fn element(r: Reader, n: u32, sides: u32, depth: u32, done: u32) -> f32 {
    // A load without a branch around it waits for no other.
    let inside = r.side + n * r.side_step < sides && done + r.term + n * r.term_step < depth;
    return select(0.0, workspace[select(base, r.place + done / DEPTH * r.stripe + n * r.step, inside)], inside);
}

// Four of them, from n on.
fn elements(r: Reader, n: u32, sides: u32, depth: u32, done: u32) -> vec4<f32> {
    return vec4(
        element(r, n, sides, depth, done), element(r, n + 1u, sides, depth, done),
        element(r, n + 2u, sides, depth, done), element(r, n + 3u, sides, depth, done),
    );
}

// What four of them are multiplied with.
fn factors(r: Reader, n: u32, term: Factors, by_depth: bool, done: u32) -> vec4<f32> {
    if (term.by == NOTHING) {
        return vec4(1.0);
    }
    let last = select(args.rows, term.depth, by_depth) - 1u;
    let at = select(r.side, done + r.term, by_depth);
    let step = select(r.side_step, r.term_step, by_depth);
    let i = min(vec4(at) + (vec4(n) + vec4(0u, 1u, 2u, 3u)) * step, vec4(last));
    let by = base + term.by;
    return vec4(workspace[by + i.x], workspace[by + i.y], workspace[by + i.z], workspace[by + i.w]);
}

// Where an invocation's elements go in workgroup memory, and how far the next one does.
fn slot(me: u32, lies: bool) -> vec2<u32> {
    return select(vec2(me / SIDE * APART + me % SIDE, 2u * APART), vec2(me % DEPTH * APART + me / DEPTH, 4u), lies);
}

// out [rows,columns] = finish(Σ over terms of (by ∘ a) @ b), one tile [32,32] a workgroup.
@compute @workgroup_size(64)
fn product(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) me: u32) {
    base = group.y * args.each;
    let across = (args.columns + SIDE - 1u) / SIDE;
    let top = group.x / across * SIDE;
    let side = group.x % across * SIDE;
    // An invocation has four neighbouring rows and columns, which it reads four at a time.
    let high = me / 8u;
    let wide = me % 8u;
    var sum_0 = vec4(0.0);
    var sum_1 = vec4(0.0);
    var sum_2 = vec4(0.0);
    var sum_3 = vec4(0.0);
    for (var n = 0u; n < 4u; n++) {
        let term = args.terms[n];
        let by_depth = (args.by_depth >> n & 1u) != 0u;
        let a = reader(term.a, top, term.a_row, term.a_column, me);
        let b = reader(term.b, side, term.b_column, term.b_row, me);
        let to_left = slot(me, term.a_column == 1u);
        let to_right = slot(me, term.b_row == 1u);
        for (var first = 0u; first < term.depth; first += DEPTH) {
            // All loads wait together.
            let a_0 = elements(a, 0u, args.rows, term.depth, first);
            let a_1 = elements(a, 4u, args.rows, term.depth, first);
            let b_0 = elements(b, 0u, args.columns, term.depth, first);
            let b_1 = elements(b, 4u, args.columns, term.depth, first);
            let by_0 = factors(a, 0u, term, by_depth, first);
            let by_1 = factors(a, 4u, term, by_depth, first);
            // Everybody is done with the terms before.
            workgroupBarrier();
            for (var i = 0u; i < 4u; i++) {
                left[to_left.x + i * to_left.y] = by_0[i] * a_0[i];
                left[to_left.x + (i + 4u) * to_left.y] = by_1[i] * a_1[i];
                right[to_right.x + i * to_right.y] = b_0[i];
                right[to_right.x + (i + 4u) * to_right.y] = b_1[i];
            }
            workgroupBarrier();
            for (var d = 0u; d < DEPTH; d++) {
                let x = d * APART + 4u * high;
                let y = d * APART + 4u * wide;
                let own = vec4(right[y], right[y + 1u], right[y + 2u], right[y + 3u]);
                sum_0 += left[x] * own;
                sum_1 += left[x + 1u] * own;
                sum_2 += left[x + 2u] * own;
                sum_3 += left[x + 3u] * own;
            }
        }
    }
    store(sum_0, top + 4u * high, side + 4u * wide);
    store(sum_1, top + 4u * high + 1u, side + 4u * wide);
    store(sum_2, top + 4u * high + 2u, side + 4u * wide);
    store(sum_3, top + 4u * high + 3u, side + 4u * wide);
}

// Four elements of row i.
fn store(sums: vec4<f32>, i: u32, j: u32) {
    for (var n = 0u; n < 4u; n++) {
        if (i < args.rows && j + n < args.columns) {
            finish(sums[n], i, j + n);
        }
    }
}
