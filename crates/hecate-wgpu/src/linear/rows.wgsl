// How invocations share the matrices of a scan. A workgroup has a block of columns of one sequence and head; PARTS
// neighbours share a column and hold ROWS rows each, in registers. They take fours of rows in turn, so that what they read
// at once lies side by side.

// M alone, or M and S.
const MATRICES = 1u + MOMENTUM;
// Columns of a workgroup of THREADS.
// Invocations beyond COLUMNS PARTS only take part in barriers.
const COLUMNS = THREADS / PARTS;
// Fours of rows that an invocation has.
const FOURS = ROWS / 4u;

// K: known where keys fill their invocations' rows; keys of other lengths share a kernel.
fn key_length() -> u32 {
    if WHOLE == 1u {
        return PARTS * ROWS;
    }
    return args.key;
}

// Workgroups of a state.
fn blocks() -> u32 {
    return (args.value + COLUMNS - 1u) / COLUMNS;
}

// x + by y.
// Used for the updates of (3) and (4), four rows at a time.
fn added(x: Rows, by: f32, y: Rows) -> Rows {
    return sum_of(x, scaled(y, by));
}

// Where an invocation works.
struct Place {
    part: u32,     // which rows
    column: u32,   // of V; at most the last
    writes: bool,  // others only keep step
    first: bool,   // the first of its column, whose sums are stored
}

// Invocations without a column of their own work on the last one, and write nothing.
fn place(block: u32, local: u32) -> Place {
    let part = local % PARTS;
    let column = block * COLUMNS + min(local / PARTS, COLUMNS - 1u);
    let writes = local < COLUMNS * PARTS && column < args.value;
    return Place(part, min(column, args.value - 1u), writes, writes && part == 0u);
}

// The first of a part's fours of rows, of this number.
// Fours of rows go round over the parts: part 0 has rows 0-3, part 1 rows 4-7, and so on.
fn row_of(part: u32, four: u32) -> u32 {
    return 4u * (four * PARTS + part);
}

// An invocation's rows of a column of a matrix [K,V] that begins at `at`: zero after K. A loop of a length that is known:
// some compilers take long over reads written out, others over an index that they cannot foresee.
fn read_rows(at: u32, part: u32) -> Rows {
    var x: array<vec4<f32>, FOURS>;
    for (var i = 0u; i < FOURS; i++) {
        let rows = row_of(part, i) + vec4<u32>(0u, 1u, 2u, 3u);
        let places = at + min(rows, vec4<u32>(key_length() - 1u)) * args.value;
        let four = vec4<f32>(state_at(places.x), state_at(places.y), state_at(places.z), state_at(places.w));
        x[i] = select(vec4<f32>(), four, rows < vec4<u32>(key_length()));
    }
    return rows_of(x);
}

// Sixteen rows of a key or a query that begins at `at`.
// Rows of four fours of a part, from four `i` on.
fn key_sixteen(at: u32, part: u32, i: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        key_four(at, row_of(part, i)), key_four(at, row_of(part, i + 1u)),
        key_four(at, row_of(part, i + 2u)), key_four(at, row_of(part, i + 3u))
    );
}

// The same of a query.
fn query_sixteen(at: u32, part: u32, i: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        query_four(at, row_of(part, i)), query_four(at, row_of(part, i + 1u)),
        query_four(at, row_of(part, i + 2u)), query_four(at, row_of(part, i + 3u))
    );
}

// Products of sixteen rows and sixteen others, to be summed.
// Four partial sums side by side: short chains of additions.
fn products(x: mat4x4<f32>, y: mat4x4<f32>) -> vec4<f32> {
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
}

// A fixed order, so that results do not depend on the compiler.
fn sum_of_four(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}
