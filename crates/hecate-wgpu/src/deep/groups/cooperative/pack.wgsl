// Factors of a product as cooperative matrices take them: a workgroup SIDE rows of a left factor, or SIDE columns of a right one.
//
// A number x becomes two halves, x ≈ (high + low) / scale: together they have about 21 bits. The scale is a power of two that
// brings the largest of the block near the largest half, so that the smallest of them keep their digits too. A block with a
// number that is not finite gets NaN for a scale, which makes every sum NaN that it has a part in.
//
// Constants: SIDE of a matrix. A_DEEP and B_DEEP say whether neighbouring halves of a factor are neighbours in depth; so all
// left factors lie one way, and all right ones.

// By memory, then term: high halves of the left factor, its low ones, both of the right factor. Each [sides, depth], or turned.
@group(0) @binding(2) var<storage, read_write> halves: array<f16>;
// What sums are multiplied with: [memories, terms, blocks], those of the left factor first.
@group(0) @binding(3) var<storage, read_write> scales: array<f32>;

// The largest of the block, by its bits: their order is that of sizes, and NaN comes last.
var<workgroup> largest: atomic<u32>;

// The exponent that the largest number gets, and the bits of infinity.
const TOP: i32 = 14;
const INFINITE: u32 = 0x7f800000u;

// Invocations that share a row or column.
const ALONG: u32 = 256u / SIDE;

// What an invocation reads: one row of a left factor, or one column of a right one, every ALONG terms.
struct Line {
    // Its element of no term, and how far the next one's is.
    origin: u32,
    by_term: u32,
    side: u32,
    first: u32,
    depth: u32,
    // Its number, or NOTHING; how far the next term's is.
    by: u32,
    by_next: u32,
}

// Of a factor from `origin` on, whose rows or columns begin at `first`.
fn line(origin: u32, first: u32, by_side: u32, by_term: u32, depth: u32, me: u32) -> Line {
    // Neighbouring invocations read neighbouring elements, whichever way a matrix lies.
    let lies = by_term == 1u;
    let side = first + select(me % SIDE, me / ALONG, lies);
    return Line(origin + side * by_side, by_term, side, select(me / SIDE, me % ALONG, lies), depth, NOTHING, 0u);
}

// The element of a term, times its number.
fn element(own: Line, term: u32) -> f32 {
    let x = workspace[own.origin + term * own.by_term];
    if (own.by == NOTHING) {
        return x;
    }
    return x * workspace[own.by + term * own.by_next];
}

// The power of two that brings a number with these bits to 2^TOP; both it and its inverse are normal numbers.
fn exponent(bits: u32) -> i32 {
    return clamp(TOP + 127 - i32(bits >> 23u), -113, 126);
}

// Where the high halves of a factor of term n begin.
fn part(memory: u32, n: u32, right: bool) -> u32 {
    var at = memory * args.halves;
    for (var i = 0u; i < n; i++) {
        at += 2u * args.terms[i].depth * (args.rows + args.columns);
    }
    return at + select(0u, 2u * args.rows * args.terms[n].depth, right);
}

@compute @workgroup_size(256)
fn pack(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) me: u32) {
    base = group.y * args.each;
    let lefts = args.rows / SIDE;
    let blocks = lefts + args.columns / SIDE;
    let n = group.x / blocks;
    let block = group.x % blocks;
    let term = args.terms[n];
    let right = block >= lefts;
    var own = line(base + term.a, block * SIDE, term.a_row, term.a_column, term.depth, me);
    if (right) {
        own = line(base + term.b, (block - lefts) * SIDE, term.b_column, term.b_row, term.depth, me);
    } else if (term.by != NOTHING) {
        let by_depth = (args.by_depth >> n & 1u) != 0u;
        own.by = base + term.by + select(own.side, 0u, by_depth);
        own.by_next = select(0u, 1u, by_depth);
    }
    if (me == 0u) {
        atomicStore(&largest, 0u);
    }
    workgroupBarrier();
    var most = 0u;
    for (var t = own.first; t < own.depth; t += ALONG) {
        most = max(most, bitcast<u32>(element(own, t)) & 0x7fffffffu);
    }
    atomicMax(&largest, most);
    workgroupBarrier();

    let bits = atomicLoad(&largest);
    let lost = bits >= INFINITE;
    let power = exponent(bits);
    if (me == 0u) {
        scales[(group.y * args.count + n) * blocks + block] = select(power_of_two(-power), not_a_number(), lost);
    }
    let scale = power_of_two(power);
    let sides = select(args.rows, args.columns, right);
    let deep = select(A_DEEP, B_DEEP, right) == 1u;
    let to = part(group.y, n, right) + own.side * select(1u, own.depth, deep);
    let to_next = select(sides, 1u, deep);
    for (var t = own.first; t < own.depth; t += ALONG) {
        let x = select(scale * element(own, t), 0.0, lost);
        // A half's digits by the bits: compilers take a number that became a half and back for the number itself.
        let high = bitcast<f32>(bitcast<u32>(x) & 0xffffe000u);
        halves[to + t * to_next] = f16(high);
        halves[to + t * to_next + sides * own.depth] = f16(x - high);
    }
}
