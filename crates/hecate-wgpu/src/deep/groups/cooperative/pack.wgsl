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

// One side's rows or columns, and how they lie.
struct Block {
    origin: u32,
    by_side: u32,
    by_term: u32,
    depth: u32,
    // First row or column.
    first: u32,
    // NOTHING, or numbers of sides or of terms.
    by: u32,
    by_depth: bool,
}

// Row or column of element n in the order of memory, and its term.
fn place(block: Block, n: u32) -> vec2<u32> {
    let lies = block.by_term == 1u;
    let inside = select(vec2(n % SIDE, n / SIDE), vec2(n / block.depth, n % block.depth), lies);
    return vec2(block.first + inside.x, inside.y);
}

// The element there, times its number.
fn element(block: Block, at: vec2<u32>) -> f32 {
    let x = workspace[block.origin + at.x * block.by_side + at.y * block.by_term];
    if (block.by == NOTHING) {
        return x;
    }
    return x * workspace[block.by + select(at.x, at.y, block.by_depth)];
}

// The power of two that brings a number with these bits to 2^TOP; both it and its inverse are normal numbers.
fn exponent(bits: u32) -> i32 {
    return clamp(TOP + 127 - i32(bits >> 23u), -113, 126);
}

@compute @workgroup_size(256)
fn pack(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) me: u32) {
    base = group.y * args.each;
    let lefts = args.rows / SIDE;
    let blocks = lefts + args.columns / SIDE;
    let n = group.x / blocks;
    let number = group.x % blocks;
    let term = args.terms[n];
    let right = number >= lefts;
    var block = Block(base + term.a, term.a_row, term.a_column, term.depth, number * SIDE, NOTHING, false);
    if (right) {
        block = Block(base + term.b, term.b_column, term.b_row, term.depth, (number - lefts) * SIDE, NOTHING, false);
    } else if (term.by != NOTHING) {
        block.by = base + term.by;
        block.by_depth = (args.by_depth >> n & 1u) != 0u;
    }
    if (me == 0u) {
        atomicStore(&largest, 0u);
    }
    workgroupBarrier();
    let count = SIDE * term.depth;
    var own = 0u;
    for (var i = me; i < count; i += 256u) {
        own = max(own, bitcast<u32>(element(block, place(block, i))) & 0x7fffffffu);
    }
    atomicMax(&largest, own);
    workgroupBarrier();

    let bits = atomicLoad(&largest);
    let power = exponent(bits);
    if (me == 0u) {
        scales[(group.y * args.count + n) * blocks + number] = select(power_of_two(-power), not_a_number(), bits >= INFINITE);
    }
    let scale = select(power_of_two(power), 0.0, bits >= INFINITE);
    let sides = select(args.rows, args.columns, right);
    var to = group.y * args.halves;
    for (var i = 0u; i < n; i++) {
        to += 2u * args.terms[i].depth * (args.rows + args.columns);
    }
    to += select(0u, 2u * args.rows * term.depth, right);
    let deep = select(A_DEEP, B_DEEP, right) == 1u;
    for (var i = me; i < count; i += 256u) {
        let at = place(block, i);
        let x = select(scale * element(block, at), 0.0, bits >= INFINITE);
        // A half's digits by the bits: compilers take a number that became a half and back for the number itself.
        let high = bitcast<f32>(bitcast<u32>(x) & 0xffffe000u);
        let own = to + select(at.y * sides + at.x, at.x * term.depth + at.y, deep);
        halves[own] = f16(high);
        halves[own + sides * term.depth] = f16(x - high);
    }
}
