// Products of matrices: out = a' b', a tile of the result by each workgroup, a part of the sums where they are long.
//
// Constants: SIDE x SIDE invocations, each of which makes (4 REACH) x (4 REACH) elements. A_DEEP and B_DEEP are 1 where
// the terms of a sum lie one after another in the operand: [length, inner], not [inner, length].
//
// Of each operand 16 terms of every sum are in workgroup memory at a time: `tile[side][term][4 rows or columns]`. The
// next ones are on their way meanwhile. Invocations of a row of the tile read and write other banks: see `place`.
//
// A workgroup owns a tile of (4 SIDE REACH) rows and as many columns; an invocation 4 x 4 of it, REACH times each way.

// Defined in `matmul.rs`.
@group(0) @binding(0) var<uniform> args: MatmulArgs;
// [parts, batch, rows, columns]
@group(0) @binding(3) var<storage, read_write> out: array<Output>;

const DEPTH = 16u;
// Fours of rows, and of columns, in a tile.
// As many fours of columns: tiles are square.
const FOURS = SIDE * REACH;

// Each element is read by SIDE invocations; workgroup memory saves the other reads.
var<workgroup> tile: array<vec4<f32>, 2u * DEPTH * FOURS>;

// Where the four elements `four` of term `term` stand.
// An XOR with the term spreads fours over the banks, for those who write and those who read.
fn place(side: u32, term: u32, four: u32) -> u32 {
    return (side * DEPTH + term) * FOURS + (four ^ (((term / 4u) & 3u) * 2u));
}

// What an invocation brings along: 4 terms of 4 rows of `a` (side 0) or 4 columns of `b` (side 1).
struct Share {
    side: u32,
    // First term, counted in fours from the tile's; four in the tile; its first number in the operand's axis.
    terms: u32,
    four: u32,
    first: u32,
    // Of the operand: length of the axis, and where the product begins.
    length: u32,
    base: u32,
}

// `lane / shares` is the side; where a workgroup has more invocations than shares, the rest bring nothing.
fn share(lane: u32, top: u32, left: u32, product: u32) -> Share {
    let shares = 4u * FOURS;
    let side = lane / shares;
    let n = lane % shares;
    let deep = select(A_DEEP, B_DEEP, side == 1u) == 1u;
    // Neighbours read neighbouring elements.
    let terms = select(n / FOURS, n % 4u, deep);
    let four = select(n % FOURS, n / 4u, deep);
    let length = select(args.rows, args.columns, side == 1u);
    let first = select(top, left, side == 1u) + 4u * four;
    return Share(side, terms, four, first, length, product * length * args.inner);
}

// How many of the four elements from `at` on are in front of `end`.
// 0 to 4.
fn there(at: u32, end: u32) -> u32 {
    return select(0u, min(end - at, 4u), at < end);
}

// The four elements `line` of a share: a term of four rows or columns, or, where terms lie together, the other way round.
fn line_of_a(s: Share, term: u32, end: u32, line: u32) -> vec4<f32> {
    if A_DEEP == 1u {
        let row = s.first + line;
        return four_of_a(s.base + row * args.inner + term, select(0u, there(term, end), row < s.length));
    }
    let at = s.base + (term + line) * s.length + s.first;
    return four_of_a(at, select(0u, there(s.first, s.length), term + line < end));
}

// A share of `a`: of four terms from `term` on, a term in each column of the matrix.
// The transpose turns lines along the terms into fours of rows.
fn bring_a(s: Share, term: u32, end: u32) -> mat4x4<f32> {
    let x = mat4x4<f32>(line_of_a(s, term, end, 0u), line_of_a(s, term, end, 1u), line_of_a(s, term, end, 2u),
        line_of_a(s, term, end, 3u));
    if A_DEEP == 1u { return transpose(x); }
    return x;
}

// Rows from `x`, columns from `y`.
// A rank-1 update of a 4 x 4 register tile.
fn outer(x: vec4<f32>, y: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(x.x * y, x.y * y, x.z * y, x.w * y);
}

// Sums of one invocation: 4 rows and 4 columns here, and as many further down and further right.
// Register tiles; with REACH 1 only the first is used.
struct Sums {
    here: mat4x4<f32>,
    right: mat4x4<f32>,
    down: mat4x4<f32>,
    both: mat4x4<f32>,
}

// Adds a term: `row` is the place of the first four of `a`, `y` and `far_y` are the fours of `b`.
// Two reads from workgroup memory for 16 products, or four for 64.
fn add_term(sums: Sums, row: u32, y: vec4<f32>, far_y: vec4<f32>) -> Sums {
    let x = tile[row];
    if REACH == 1u { return Sums(sums.here + outer(x, y), sums.right, sums.down, sums.both); }
    let far_x = tile[row + SIDE];
    return Sums(sums.here + outer(x, y), sums.right + outer(x, far_y), sums.down + outer(far_x, y),
        sums.both + outer(far_x, far_y));
}

// Columns after the last are left out.
fn put_four(at: u32, left: u32, x: vec4<f32>) {
    let n = there(left, args.columns);
    if n > 0u { out[at] = to_output(x.x); }
    if n > 1u { out[at + 1u] = to_output(x.y); }
    if n > 2u { out[at + 2u] = to_output(x.z); }
    if n > 3u { out[at + 3u] = to_output(x.w); }
}

// Rows after the last are left out.
fn put(base: u32, top: u32, left: u32, x: mat4x4<f32>) {
    let n = there(top, args.rows);
    let at = base + top * args.columns + left;
    if n > 0u { put_four(at, left, x[0]); }
    if n > 1u { put_four(at + args.columns, left, x[1]); }
    if n > 2u { put_four(at + 2u * args.columns, left, x[2]); }
    if n > 3u { put_four(at + 3u * args.columns, left, x[3]); }
}

// out [rows,columns] = a @ b of each product, or a part of the sums over the inner dimension.
@compute @workgroup_size(SIDE * SIDE)
// The loop over the terms is the same for all invocations, and so are its barriers.
fn matmul(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = group_index(id);
    if group >= args.groups { return; }
    // Tiles count fastest, then parts, then products.
    let at = group % args.tiles;
    let product = group / args.tiles / args.parts;
    let part = group / args.tiles % args.parts;
    let top = at / args.across * (4u * FOURS);
    let left = at % args.across * (4u * FOURS);
    let begin = part * args.split_depth;
    let end = min(begin + args.split_depth, args.inner);

    let mine = share(lane, top, left, product);
    let row = lane / SIDE;
    let column = lane % SIDE;
    var sums = Sums(mat4x4<f32>(), mat4x4<f32>(), mat4x4<f32>(), mat4x4<f32>());
    var next = mat4x4<f32>();
    if mine.side < 2u { next = bring(mine, begin, end); }
    for (var depth = begin; depth < end; depth += DEPTH) {
        if mine.side < 2u {
            let to = place(mine.side, 4u * mine.terms, mine.four);
            tile[to] = next[0];
            tile[to + FOURS] = next[1];
            tile[to + 2u * FOURS] = next[2];
            tile[to + 3u * FOURS] = next[3];
        }
        // The tile is written; the reads of the next one start before it is used.
        workgroupBarrier();
        if mine.side < 2u && depth + DEPTH < end { next = bring(mine, depth + DEPTH, end); }
        // Written out, because loops come with bounds that keep compilers from doing so.
        sums = add_four(sums, 0u, row, column);
        sums = add_four(sums, 4u, row, column);
        sums = add_four(sums, 8u, row, column);
        sums = add_four(sums, 12u, row, column);
        // Nobody reads the tile any more when the next one is written.
        workgroupBarrier();
    }
    let base = (part * (args.groups / args.tiles / args.parts) + product) * args.rows * args.columns;
    let y = top + 4u * row;
    let x = left + 4u * column;
    put(base, y, x, sums.here);
    if REACH == 2u {
        put(base, y, x + 4u * SIDE, sums.right);
        put(base, y + 4u * SIDE, x, sums.down);
        put(base, y + 4u * SIDE, x + 4u * SIDE, sums.both);
    }
}
