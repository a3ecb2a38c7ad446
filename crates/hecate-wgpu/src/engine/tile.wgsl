// Tokens on their way to a workgroup. What TILE tokens have is in workgroup memory, and what the next TILE have is read into
// registers meanwhile, so that no token waits for memory. With TILE 0 each token reads its own: rows are too long, or
// tokens too few.

// Fours of numbers in a row, in a tile's keys (as many are in its queries), and numbers in its values.
const ROW = PARTS * ROWS / 4u;
const TILE_KEYS = max(TILE * ROW, 1u);
const TILE_VALUES = max(TILE * COLUMNS, 1u);
const TILE_TOKENS = max(TILE, 1u);
// An invocation's share of them.
const OWN_KEYS = (TILE_KEYS + THREADS - 1u) / THREADS;
const OWN_VALUES = (TILE_VALUES + THREADS - 1u) / THREADS;

var<workgroup> tile_keys: array<vec4<f32>, TILE_KEYS>;      // [TILE,ROW]
var<workgroup> tile_queries: array<vec4<f32>, TILE_KEYS>;   // [TILE,ROW]
var<workgroup> tile_values: array<f32, TILE_VALUES>;        // [TILE,COLUMNS]
var<workgroup> tile_gates: array<vec4<f32>, TILE_TOKENS>;   // w, r, a, η
var<private> coming_keys: array<vec4<f32>, OWN_KEYS>;
var<private> coming_queries: array<vec4<f32>, OWN_KEYS>;
var<private> coming_values: array<f32, OWN_VALUES>;
var<private> coming_gates: vec4<f32>;

// The tokens of a pass in arrays [rows,H]: from `first` on, `stride` apart, which may be less than nothing.
struct Path {
    first: u32,
    stride: u32,
    tokens: u32,
}

fn place_of(path: Path, t: u32) -> u32 {
    return path.first + min(t, path.tokens - 1u) * path.stride;
}

// What a token has, as far as an invocation needs it.
struct Token {
    at: u32,           // in arrays [rows,H]
    key: Rows,
    query: Rows,
    value: f32,
    gates: vec4<f32>,  // w, r, a, η
}

// Reads the tile that begins at token `t`, for columns from `column` on.
fn fetch(path: Path, t: u32, column: u32, local: u32) {
    for (var i = 0u; i < OWN_KEYS; i++) {
        let number = local + i * THREADS;
        if number < TILE_KEYS {
            let at = place_of(path, t + number / ROW) * KEY;
            coming_keys[i] = key_four(at, number % ROW * 4u);
            coming_queries[i] = query_four(at, number % ROW * 4u);
        }
    }
    for (var i = 0u; i < OWN_VALUES; i++) {
        let number = local + i * THREADS;
        if number < TILE_VALUES {
            let at = place_of(path, t + number / COLUMNS) * args.value;
            coming_values[i] = value_at(at + min(column + number % COLUMNS, args.value - 1u));
        }
    }
    if local < TILE {
        coming_gates = scalars_of(place_of(path, t + local));
    }
}

// Puts what was read into workgroup memory, once nobody needs what is there.
fn put(local: u32) {
    workgroupBarrier();
    for (var i = 0u; i < OWN_KEYS; i++) {
        let number = local + i * THREADS;
        if number < TILE_KEYS {
            tile_keys[number] = coming_keys[i];
            tile_queries[number] = coming_queries[i];
        }
    }
    for (var i = 0u; i < OWN_VALUES; i++) {
        let number = local + i * THREADS;
        if number < TILE_VALUES {
            tile_values[number] = coming_values[i];
        }
    }
    if local < TILE {
        tile_gates[local] = coming_gates;
    }
    workgroupBarrier();
}

// Before the first token.
fn set_out(path: Path, column: u32, local: u32) {
    if TILE > 0u {
        fetch(path, 0u, column, local);
    }
}

// Token `t`; all invocations ask for it together, one token after another.
fn arrive(path: Path, t: u32, own: Place, column: u32, local: u32) -> Token {
    let at = place_of(path, t);
    if TILE == 0u {
        let value = value_at(at * args.value + own.column);
        return Token(at, key_rows(at * KEY, own.part), query_rows(at * KEY, own.part), value, scalars_of(at));
    }
    let within = t % TILE_TOKENS;
    if within == 0u {
        put(local);
        fetch(path, t + TILE, column, local);
    }
    let first = within * ROW + own.part * (ROWS / 4u);
    let key = Rows(
        tile_keys[first], tile_keys[first + 1u], tile_keys[first + 2u], tile_keys[first + 3u],
        tile_keys[first + 4u], tile_keys[first + 5u], tile_keys[first + 6u], tile_keys[first + 7u]
    );
    let query = Rows(
        tile_queries[first], tile_queries[first + 1u], tile_queries[first + 2u], tile_queries[first + 3u],
        tile_queries[first + 4u], tile_queries[first + 5u], tile_queries[first + 6u], tile_queries[first + 7u]
    );
    return Token(at, key, query, tile_values[within * COLUMNS + own.column - column], tile_gates[within]);
}
