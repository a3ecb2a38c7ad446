// Products of matrices of all memories at once: a workgroup a tile [32,32] of one memory, an invocation 4 x 4 of it.
//
// Element (i, j) of the sum of all terms, then what `finish` makes of it, goes to `out`. Places are counted from the start of a
// memory's part of `workspace`.

// by ∘ (a b), `by` a number for each row of a, or for each of the terms of a sum.
struct Term {
    a: u32,
    b: u32,
    // NOTHING: without.
    by: u32,
    // 0: no term.
    depth: u32,
    a_row: u32,
    a_column: u32,
    b_row: u32,
    b_column: u32,
}

// The launch hands this over; `product.rs` has its twin.
struct ProductArgs {
    cell: Cell,
    terms: array<Term, 4>,
    rows: u32,
    columns: u32,
    // Elements of a memory's part of `workspace`.
    each: u32,
    // Where the numbers of its tokens are, and tokens of a group.
    numbers: u32,
    group: u32,
    // One bit a term: whether `by` belongs to the terms of its sums.
    by_depth: u32,
    // What becomes of the sums.
    kind: u32,
    out: u32,
    // How much of what was in `out` stays.
    own_by: u32,
    // Panels that join, and how much of each.
    first: u32,
    first_by: u32,
    second: u32,
    second_by: u32,
    third: u32,
    third_by: u32,
    // Pre-activations whose slopes the result is multiplied with, or NOTHING.
    slope: u32,
    // A second result.
    also: u32,
    // Whether tokens read after their own write.
    read_after: u32,
    unused_0: u32,
    unused_1: u32,
}

@group(0) @binding(0) var<uniform> args: ProductArgs;
@group(0) @binding(1) var<storage, read_write> workspace: array<f32>;

// Kinds beside the plain one, 0: the activation beside the result; what the first layer is written with.
// Then products of queries and keys as they are read; the gradients of those and of their masks.
const ACTIVATE: u32 = 1u;
const WRITE: u32 = 2u;
const MASK: u32 = 3u;
const MASK_BACK: u32 = 4u;

// No place; and how much: all, A, B and E after the group, 1 - A. Any other is where numbers by row are.
const NOTHING: u32 = 0u;
const WHOLE: u32 = 1u;
const KEPT: u32 = 2u;
const PUSHED: u32 = 3u;
const LEFT: u32 = 4u;
const REST: u32 = 5u;

const SIDE: u32 = 32u;
const DEPTH: u32 = 16u;
// Four more than a side, so that neighbours along either lie in different banks and fours lie together.
const APART: u32 = 36u;

// Terms first: [depth, rows of the tile], [depth, columns].
var<workgroup> left: array<f32, DEPTH * APART>;
var<workgroup> right: array<f32, DEPTH * APART>;

// Where the memory's part of `workspace` begins.
var<private> base: u32;

// Number `which` of the group's token t; `masks.wgsl` names them.
fn number(which: u32, t: u32) -> f32 {
    return workspace[base + args.numbers + which * args.group + t];
}

// How much of a panel joins row i.
fn share(by: u32, i: u32) -> f32 {
    // Beyond the last token nothing changes, so the last row has what is left after the group.
    let last = args.group - 1u;
    switch by {
        case WHOLE: {
            return 1.0;
        }
        case KEPT: {
            return number(ALL_A, last);
        }
        case PUSHED: {
            return number(ALL_B, last);
        }
        case LEFT: {
            return number(ALL_E, last);
        }
        case REST: {
            return 1.0 - number(ALL_A, last);
        }
        default: {
            return workspace[base + by + i];
        }
    }
}

// `sum` and what joins it of a panel.
fn joined(sum: f32, panel: u32, by: u32, i: u32, at: u32) -> f32 {
    if (by == NOTHING) {
        return sum;
    }
    return sum + share(by, i) * workspace[base + panel + at];
}

// What token t reads of the write of token j.
fn mask(t: u32, j: u32) -> f32 {
    if (args.read_after != 0u) {
        return workspace[base + args.first + t * args.columns + j];
    }
    // Before its own write a token finds what the one before left.
    return select(0.0, workspace[base + args.first + (max(t, 1u) - 1u) * args.columns + j], t > 0u);
}

// Element (i, j) of the sums.
fn finish(sum: f32, i: u32, j: u32) {
    let at = i * args.columns + j;
    let to = base + args.out + at;
    switch args.kind {
        case ACTIVATE: {
            workspace[to] = sum;
            workspace[base + args.also + at] = activation(sum).value;
        }
        case WRITE: {
            workspace[base + args.also + at] = sum;
            workspace[to] = -number(THETA, i) * sum * activation(workspace[base + args.slope + at]).slope;
        }
        case MASK: {
            workspace[to] = mask(i, j) * sum;
        }
        case MASK_BACK: {
            // `also` has the square: its product with this one is the mask's gradient.
            let own = mask(i, j);
            let square = workspace[base + args.also + at];
            workspace[base + args.second + at] += square * sum;
            workspace[to] = own * sum;
            workspace[base + args.also + at] = own * square;
        }
        default: {
            var y = joined(sum, args.first, args.first_by, i, at);
            y = joined(y, args.second, args.second_by, i, at);
            y = joined(y, args.third, args.third_by, i, at);
            if (args.slope != NOTHING) {
                y *= activation(workspace[base + args.slope + at]).slope;
            }
            workspace[to] = joined(y, args.out, args.own_by, i, at);
        }
    }
}

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
fn factors(r: Reader, n: u32, term: Term, by_depth: bool, done: u32) -> vec4<f32> {
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
