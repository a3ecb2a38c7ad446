// What the kernels of the gradients share. A chunk is a segment between kept states of one head, of up to 64 tokens; a
// workgroup has one. `space` holds for each chunk at work, from `args.first`:
//   two squares [64,64], dN and dG of (26), mirrored at the diagonal
//   vectors [VECTORS,64], a number a token
//
// Products go through slices of 16 columns in workgroup memory. An invocation has four rows by four columns.

// Elements of a square, whose rows are tokens and whose columns are earlier writes.
const SQUARE = CHUNK * CHUNK;
const DN = 0u;
const DG = 1u;

// Vectors: sums of (31), then what (32) gives to a and η.
const READ_M = 0u;    // rows of Q times dO M₀ᵀ
const READ_S = 1u;
const AFTER_M = 2u;   // rows of K times Z dM_Cᵀ
const AFTER_S = 3u;
const ERASE_M = 4u;   // rows of K times Λ M₀ᵀ
const ERASE_S = 5u;
const DA = 6u;
const DETA = 7u;
const VECTORS = 8u;

// Invocations of a workgroup: sixteen by sixteen tiles of four by four elements.
const WIDTH = 256u;
// A slice is what all invocations bring at once: four elements each.
// Columns of a slice, and fours of elements in a slice of 64 rows.
const COLUMNS = 16u;
const SLICE = 256u;

// Up to three slices of 64 rows: 12 KiB, so that all fits into what every adapter has.
var<workgroup> slices: array<vec4<f32>, SLICES * SLICE>;
// w, r, a, η of the chunk's tokens.
var<workgroup> gates: array<vec4<f32>, CHUNK>;

// Every offset is a multiple of four, so that kernels may read squares four elements at a time.
// Where the space of chunk `i` of those at work begins.
fn base(i: u32) -> u32 {
    return i * (2u * SQUARE + VECTORS * CHUNK);
}

// Row `t`, column `j` of a square, of chunk `chunk` of those at work.
fn square_at(chunk: u32, which: u32, t: u32, j: u32) -> u32 {
    return base(chunk) + which * SQUARE + t * CHUNK + j;
}

// Entry `t` of a vector; vectors follow the squares.
// `which` is one of those above.
fn vector_at(chunk: u32, which: u32, t: u32) -> u32 {
    return base(chunk) + 2u * SQUARE + which * CHUNK + t;
}

// The first 64 invocations bring a token's gates each; a barrier has to follow.
// Tokens after the last neither write nor decay.
fn read_gates(here: Segment, t: u32) {
    if t < CHUNK {
        gates[t] = vec4<f32>(0.0, 0.0, 1.0, 1.0);
        if t < here.tokens {
            gates[t] = scalars_of(token(here, t));
        }
    }
}

// Numbers of rows and columns are those of 16 fours.
// The four by four elements of an invocation, counted in fours: 32 neighbours have sixteen rows by 32 columns, so that
// they read few elements of a slice, and are idle together above a diagonal.
struct Own {
    row: u32,
    column: u32,
}

// Returns which elements are an invocation's, by its number.
fn own_of(local: u32) -> Own {
    let block = local / 32u;
    let within = local % 32u;
    return Own(block / 2u * 4u + within / 8u, block % 2u * 8u + within % 8u);
}
