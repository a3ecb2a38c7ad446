// Tokens on their way to a workgroup. What TILE tokens have is in workgroup memory, and what the next TILE have is read into
// registers meanwhile, so that no token waits for memory. With TILE 0 each token reads its own: rows are too long, or
// tokens too few.

// Fours of elements in a row, in a tile's keys (as many are in its queries), and values in its tile.
// Fours of a row go over the invocations of a column in turn, as in `rows.wgsl`.
const ROW = PARTS * FOURS;
// At least one element each, because an array cannot be empty.
const TILE_KEYS = max(TILE * ROW, 1u);
const TILE_VALUES = max(TILE * COLUMNS, 1u);
const TILE_TOKENS = max(TILE, 1u);
// An invocation's share of them: four fours at most, and eight elements. They have names, because what has an index may
// lie in memory. Loops come with bounds that keep compilers from going without. In memory a read that is under way is
// waited for.
const OWN_KEYS = (TILE_KEYS + THREADS - 1u) / THREADS;
const OWN_VALUES = (TILE_VALUES + THREADS - 1u) / THREADS;

// All columns of a workgroup read the same keys and queries: they are brought once.
var<workgroup> tile_keys: array<vec4<f32>, TILE_KEYS>;      // [TILE,ROW]
var<workgroup> tile_queries: array<vec4<f32>, TILE_KEYS>;   // [TILE,ROW]
var<workgroup> tile_values: array<f32, TILE_VALUES>;        // [TILE,COLUMNS]
var<workgroup> tile_gates: array<vec4<f32>, TILE_TOKENS>;   // w, r, a, η
// The next tile, while this one is worked on.
var<private> coming_keys: mat4x4<f32>;
var<private> coming_queries: mat4x4<f32>;
var<private> coming_values: mat2x4<f32>;
var<private> coming_gates: vec4<f32>;

// The tokens of a pass in arrays [rows,H]: from `first` on, `stride` apart, which may be less than nothing.
struct Path {
    first: u32,
    stride: u32,
    tokens: u32,
}

// Tokens after the last repeat it, so that every read is inside.
fn place_of(path: Path, t: u32) -> u32 {
    return path.first + min(t, path.tokens - 1u) * path.stride;
}

// What a token has, as far as an invocation needs it.
// `arrive` fills it, from workgroup memory or straight from the arrays.
struct Token {
    at: u32,           // in arrays [rows,H]
    key: Rows,
    query: Rows,
    value: f32,
    gates: vec4<f32>,  // w, r, a, η
}

// A four of the keys or queries, or a number of the values, of the tile that begins at token `t`; another one where there
// are fewer.
// `number` counts fours over the tile, a row after another.
fn tile_key(path: Path, t: u32, number: u32) -> vec4<f32> {
    return key_four(place_of(path, t + number / ROW) * key_length(), number % ROW * 4u);
}

// Passes that read no token skip the queries.
fn tile_query(path: Path, t: u32, number: u32) -> vec4<f32> {
    if QUERIES == 0u {
        return vec4<f32>();
    }
    return query_four(place_of(path, t + number / ROW) * key_length(), number % ROW * 4u);
}

// `number` counts values over the tile; columns after the last repeat it.
fn tile_value(path: Path, t: u32, column: u32, number: u32) -> f32 {
    let at = place_of(path, t + number / COLUMNS) * args.value;
    return value_at(at + min(column + number % COLUMNS, args.value - 1u));
}

// Elements of the values, THREADS apart.
fn tile_values_from(path: Path, t: u32, column: u32, number: u32) -> vec4<f32> {
    var values = vec4<f32>();
    values.x = tile_value(path, t, column, number);
    if OWN_VALUES > 1u {
        values.y = tile_value(path, t, column, number + THREADS);
    }
    if OWN_VALUES > 2u {
        values.z = tile_value(path, t, column, number + 2u * THREADS);
        values.w = tile_value(path, t, column, number + 3u * THREADS);
    }
    return values;
}

// Reads that tile, for columns from `column` on.
// Reads only: nothing waits for them until `put`.
fn fetch(path: Path, t: u32, column: u32, local: u32) {
    coming_keys[0] = tile_key(path, t, local);
    coming_queries[0] = tile_query(path, t, local);
    if OWN_KEYS > 1u {
        coming_keys[1] = tile_key(path, t, local + THREADS);
        coming_queries[1] = tile_query(path, t, local + THREADS);
    }
    if OWN_KEYS > 2u {
        coming_keys[2] = tile_key(path, t, local + 2u * THREADS);
        coming_queries[2] = tile_query(path, t, local + 2u * THREADS);
        coming_keys[3] = tile_key(path, t, local + 3u * THREADS);
        coming_queries[3] = tile_query(path, t, local + 3u * THREADS);
    }
    coming_values[0] = tile_values_from(path, t, column, local);
    if OWN_VALUES > 4u {
        coming_values[1] = tile_values_from(path, t, column, local + 4u * THREADS);
    }
    if local < TILE {
        coming_gates = scalars_of(place_of(path, t + local));
    }
}

// Puts what was read into workgroup memory, once nobody needs what is there.
// Two barriers: nobody reads the old tile any more, and everybody sees the new one.
fn put(local: u32) {
    workgroupBarrier();
    put_fours(local, coming_keys[0], coming_queries[0]);
    if OWN_KEYS > 1u {
        put_fours(local + THREADS, coming_keys[1], coming_queries[1]);
    }
    if OWN_KEYS > 2u {
        put_fours(local + 2u * THREADS, coming_keys[2], coming_queries[2]);
        put_fours(local + 3u * THREADS, coming_keys[3], coming_queries[3]);
    }
    put_values(local, coming_values[0]);
    if OWN_VALUES > 4u {
        put_values(local + 4u * THREADS, coming_values[1]);
    }
    if local < TILE {
        tile_gates[local] = coming_gates;
    }
    workgroupBarrier();
}

// The last invocations may have no share.
fn put_fours(number: u32, key: vec4<f32>, query: vec4<f32>) {
    if number < TILE_KEYS {
        tile_keys[number] = key;
        if QUERIES == 1u {
            tile_queries[number] = query;
        }
    }
}

// Up to four values, THREADS apart, as they were read.
fn put_values(number: u32, values: vec4<f32>) {
    put_value(number, values.x);
    if OWN_VALUES > 1u {
        put_value(number + THREADS, values.y);
    }
    if OWN_VALUES > 2u {
        put_value(number + 2u * THREADS, values.z);
        put_value(number + 3u * THREADS, values.w);
    }
}

// Stores value `number` of the tile, if the tile has that many.
fn put_value(number: u32, value: f32) {
    if number < TILE_VALUES {
        tile_values[number] = value;
    }
}

// Sixteen rows of a part, of a key or query whose first four of them has this number.
fn tile_key_sixteen(i: u32) -> mat4x4<f32> {
    return mat4x4<f32>(tile_keys[i], tile_keys[i + PARTS], tile_keys[i + 2u * PARTS], tile_keys[i + 3u * PARTS]);
}

// The same of a query.
fn tile_query_sixteen(i: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        tile_queries[i], tile_queries[i + PARTS], tile_queries[i + 2u * PARTS], tile_queries[i + 3u * PARTS]
    );
}

// Before the first token.
// Starts the first reads.
fn set_out(path: Path, column: u32, local: u32) {
    if TILE > 0u {
        fetch(path, 0u, column, local);
    }
}

// Token `t`; all invocations ask for it together, one token after another.
fn arrive(path: Path, t: u32, own: Place, column: u32, local: u32) -> Token {
    let at = place_of(path, t);
    // Every invocation reads its own rows and its own value.
    if TILE == 0u {
        let value = value_at(at * args.value + own.column);
        var query: Rows;
        if QUERIES == 1u {
            query = query_rows(at * key_length(), own.part);
        }
        return Token(at, key_rows(at * key_length(), own.part), query, value, scalars_of(at));
    }
    // `t` is uniform over the workgroup, so that all reach the barriers of `put`.
    let within = t % TILE_TOKENS;
    if within == 0u {
        put(local);
        fetch(path, t + TILE, column, local);
    }
    let first = within * ROW + own.part;
    var query: Rows;
    if QUERIES == 1u {
        query = tile_query_rows(first);
    }
    let value = tile_values[within * COLUMNS + own.column - column];
    return Token(at, tile_key_rows(first), query, value, tile_gates[within]);
}
