// What the kernels over chunks share: where a chunk's own elements lie. A chunk is a segment between kept states of one
// head, of up to 64 tokens. `space` holds for each chunk at work, from `args.first`:
//   four squares [64,64], N, G, Λ Zᵀ, dO Zᵀ, then what tables make of them; a row is a token, a column an earlier write
//   vectors [VECTORS,65]
//   the last states' share of (31) [4,V]
//   products [4 or 7,64,K'], K' a multiple of four

// Elements of a square, whose places are those of tokens `t` and `j`.
const SQUARE = CHUNK * CHUNK;
// Squares, as products leave them.
const KEYS_KEYS = 0u;      // N
const QUERIES_KEYS = 1u;   // G
const ADJOINT_WRITES = 2u; // Λ Zᵀ
const OUT_WRITES = 3u;     // dO Zᵀ
// The same places, as tables leave them; the first two mirrored at the diagonal.
const DN = 0u;
const DG = 1u;
const OF_A = 2u;           // dc[t,j] c[t-1,j] of (32)
const OF_ETA = 3u;         // dE[t,j] E[t-1,j]

// Vectors, a number a token; those of states have one more, index 0 the state before the chunk.
const AT_A = 0u;           // A[t]
const AT_B = 1u;           // c[t,0]
const LAST_C = 2u;         // c[C,j]
const LAST_E = 3u;         // E[C,j]
const FIRST_A = 4u;        // what the first states give to da
const FIRST_ETA = 5u;      // and to dη
const READ_M = 6u;         // rows of Q times dO M₀ᵀ
const READ_S = 7u;
const ERASE_M = 8u;        // rows of K times Λ M₀ᵀ
const ERASE_S = 9u;
const AFTER_M = 10u;      // rows of K times Z dM_Cᵀ
const AFTER_S = 11u;
const DW = 12u;
const DR = 13u;
const VECTORS = 16u;  // a multiple of four
const LONG = CHUNK + 1u;

// Products [64,K] of rows of values and a matrix, transposed.
const OUT_M = 0u;          // dO M₀ᵀ
const WRITES_DM = 1u;      // Z dM_Cᵀ
const ADJOINT_M = 2u;      // Λ M₀ᵀ
const ADJOINT_GROUP = 3u;  // Λ M_cᵀ, where groups are longer than a chunk
const OUT_S = 4u;          // dO S₀ᵀ
const WRITES_DS = 5u;      // Z dS_Cᵀ
const ADJOINT_S = 6u;      // Λ S₀ᵀ
// The last three only where there is an S.
fn products() -> u32 {
    return 3u * args.matrices + 1u;
}

// Offsets in a chunk's space: squares, vectors, the shares of columns, products.
const AT_VECTORS = 4u * SQUARE;
const AT_ENDS = AT_VECTORS + VECTORS * LONG;

// Rows of products end at a multiple of four, so that kernels read fours.
fn padded_key() -> u32 {
    return (args.key + 3u) / 4u * 4u;
}

// Chunk `i` of those at work: a multiple of four.
// Where the space of chunk `i` begins.
fn base(i: u32) -> u32 {
    return i * (AT_ENDS + 4u * args.value + products() * CHUNK * padded_key());
}

// Row `t`, column `j` of a square.
fn square_at(chunk: u32, which: u32, t: u32, j: u32) -> u32 {
    return base(chunk) + which * SQUARE + t * CHUNK + j;
}

// Entry `t` of a vector; vectors of states have LONG entries, those of tokens 64.
fn vector_at(chunk: u32, which: u32, t: u32) -> u32 {
    return base(chunk) + AT_VECTORS + which * LONG + t;
}

// `which` is the pair of states of (31), `i` the column.
fn end_at(chunk: u32, which: u32, i: u32) -> u32 {
    return base(chunk) + AT_ENDS + which * args.value + i;
}

// Row `t`, element `i` of a product.
fn product_at(chunk: u32, which: u32, t: u32, i: u32) -> u32 {
    return base(chunk) + AT_ENDS + 4u * args.value + (which * CHUNK + t) * padded_key() + i;
}

// Where the product of Λ and the memory of the frozen target is.
fn of_group() -> u32 {
    return select(ADJOINT_M, ADJOINT_GROUP, args.period > CHUNK);
}

// How the four by four tiles of a chunk's [64,WIDTH] are shared out: 32 neighbours have sixteen rows and 32 columns.
struct Tile {
    chunk: u32,
    row: u32,
    column: u32,
}

// `thread` counts over all chunks at work; `width` is the length of a row.
// Sixteen rows by 32 columns belong to 32 neighbours, so that they read few cache lines.
fn tile(thread: u32, width: u32) -> Tile {
    let across = (width + 31u) / 32u;
    let block = thread / 32u;
    let within = thread % 32u;
    let row = block / across % 4u * 16u + within / 8u * 4u;
    return Tile(block / across / 4u, row, block % across * 32u + within % 8u * 4u);
}

// What an invocation has of the chunks at work: nothing where `works` is false, because there are more invocations than
// elements, or because the chunk has fewer tokens.
struct OwnTile {
    works: bool,
    tile: Tile,
    here: Segment,
}

// A tile of [64,width] of some chunk. Segments after the last are not looked at: their tables end before.
fn own_tile(group: vec3<u32>, local: u32, width: u32) -> OwnTile {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return OwnTile();
    }
    let own = tile(thread, width);
    let here = segment(args.first + own.chunk);
    return OwnTile(own.row < here.tokens && own.column < width, own, here);
}

// The same of one token.
struct OwnToken {
    works: bool,
    chunk: u32,
    t: u32,
    here: Segment,
}

// Neighbours have neighbouring tokens.
fn own_token(group: vec3<u32>, local: u32) -> OwnToken {
    let thread = thread_of(group, local);
    if thread >= args.count {
        return OwnToken();
    }
    let chunk = thread / CHUNK;
    let t = thread % CHUNK;
    let here = segment(args.first + chunk);
    return OwnToken(t < here.tokens, chunk, t, here);
}
