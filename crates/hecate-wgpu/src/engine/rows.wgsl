// How invocations share the matrices of a scan. A workgroup has a block of columns of one sequence and head; PARTS
// invocations share a column, 32 rows each, which stay in registers: eight times four, written out, because registers
// have no index.

struct Rows {
    a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>,
    e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32>,
}

const MATRICES = 1u + MOMENTUM;
// Columns of a workgroup of THREADS.
const COLUMNS = THREADS / PARTS;

// Workgroups of a state.
fn blocks() -> u32 {
    return (args.value + COLUMNS - 1u) / COLUMNS;
}

fn scaled(x: Rows, by: f32) -> Rows {
    return Rows(x.a * by, x.b * by, x.c * by, x.d * by, x.e * by, x.f * by, x.g * by, x.h * by);
}

fn sum_of(x: Rows, y: Rows) -> Rows {
    return Rows(x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d, x.e + y.e, x.f + y.f, x.g + y.g, x.h + y.h);
}

// x + by y.
fn added(x: Rows, by: f32, y: Rows) -> Rows {
    return sum_of(x, scaled(y, by));
}

fn product_of(x: Rows, y: Rows) -> f32 {
    let one = x.a * y.a + x.b * y.b + x.c * y.c + x.d * y.d;
    let other = x.e * y.e + x.f * y.f + x.g * y.g + x.h * y.h;
    let both = one + other;
    return (both.x + both.y) + (both.z + both.w);
}

// Where an invocation works.
struct Place {
    part: u32,     // which rows
    column: u32,   // of V; at most the last
    writes: bool,  // others only keep step
    first: bool,   // speaks for its column
}

fn place(block: u32, local: u32) -> Place {
    let part = local / COLUMNS;
    let column = block * COLUMNS + local % COLUMNS;
    let writes = part < PARTS && column < args.value;
    return Place(min(part, PARTS - 1u), min(column, args.value - 1u), writes, writes && part == 0u);
}

// Sums over the parts of a column: an exchange every token, on two sides in turn, so that one barrier is enough.
var<workgroup> shared_sums: array<vec2<f32>, 2u * THREADS>;

fn over_parts(x: vec2<f32>, side: u32, local: u32) -> vec2<f32> {
    if PARTS == 1u {
        return x;
    }
    shared_sums[side * THREADS + local] = x;
    workgroupBarrier();
    let first = side * THREADS + local % COLUMNS;
    var sum = shared_sums[first] + shared_sums[first + COLUMNS];
    // The first ones written out: in a loop each read waits for the one before.
    if PARTS > 2u {
        sum += shared_sums[first + 2u * COLUMNS];
    }
    if PARTS > 3u {
        sum += shared_sums[first + 3u * COLUMNS];
    }
    for (var i = 4u; i < PARTS; i++) {
        sum += shared_sums[first + i * COLUMNS];
    }
    return sum;
}

// An invocation's rows of a column of a matrix [K,V] that begins at `at`: zero behind K. A loop of a length that is known:
// some compilers take long over branches written out, others over an index that they cannot foresee.
fn read_rows(at: u32, part: u32) -> Rows {
    var x: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) {
        if part * ROWS + i < KEY {
            x[i] = state_at(at + (part * ROWS + i) * args.value);
        }
    }
    return Rows(
        vec4<f32>(x[0], x[1], x[2], x[3]), vec4<f32>(x[4], x[5], x[6], x[7]),
        vec4<f32>(x[8], x[9], x[10], x[11]), vec4<f32>(x[12], x[13], x[14], x[15]),
        vec4<f32>(x[16], x[17], x[18], x[19]), vec4<f32>(x[20], x[21], x[22], x[23]),
        vec4<f32>(x[24], x[25], x[26], x[27]), vec4<f32>(x[28], x[29], x[30], x[31])
    );
}

// The same of a key or query that begins at `at`.
fn query_rows(at: u32, part: u32) -> Rows {
    let r = part * ROWS;
    return Rows(
        query_four(at, r), query_four(at, r + 4u), query_four(at, r + 8u), query_four(at, r + 12u),
        query_four(at, r + 16u), query_four(at, r + 20u), query_four(at, r + 24u), query_four(at, r + 28u)
    );
}

fn key_rows(at: u32, part: u32) -> Rows {
    let r = part * ROWS;
    return Rows(
        key_four(at, r), key_four(at, r + 4u), key_four(at, r + 8u), key_four(at, r + 12u),
        key_four(at, r + 16u), key_four(at, r + 20u), key_four(at, r + 24u), key_four(at, r + 28u)
    );
}
