// Products of small matrices in `workspace` by one workgroup: phases of the kind PRODUCT, of which a rule says
//
//     fn product_of(phase: u32) -> Product
//     fn depth_of(shape: vec3<u32>) -> u32    // terms of a sum

// `x[i,j]` lies at `data + i * row + j * column`.
// A matrix in `workspace` by its first element and its strides; a transpose swaps the strides.
struct Matrix {
    data: u32,
    row: u32,
    column: u32,
}

// Where element (i, j) lies in `workspace`.
fn place_of(x: Matrix, i: u32, j: u32) -> u32 {
    return x.data + i * x.row + j * x.column;
}

// No element moves.
fn transposed(x: Matrix) -> Matrix {
    return Matrix(x.data, x.column, x.row);
}

// Columns of a result that a workgroup makes at once, rows, and terms that it takes at once.
// A workgroup makes a tile of PRODUCT_HEIGHT rows and 64 columns; each invocation makes 4 x 4 of it.
const PRODUCT_WIDTH: u32 = 64u;
const PRODUCT_HEIGHT: u32 = THREADS / 4u;
const PRODUCT_DEPTH: u32 = 8u;

// PRODUCT_DEPTH columns of x for the rows of the tile, the term first: [depth, height].
var<workgroup> left: array<f32, PRODUCT_DEPTH * PRODUCT_HEIGHT>;
// PRODUCT_DEPTH rows of y for the columns of the tile: [depth, width].
// Both lie in workgroup memory, because every element is read by many invocations.
var<workgroup> right: array<f32, PRODUCT_DEPTH * PRODUCT_WIDTH>;

// `z = keep base + factor x y` for `x [rows,depth]`, `y [depth,columns]`; `base` may be `z`, `x` and `y` not.
struct Product {
    z: Matrix,
    keep: f32,
    base: Matrix,
    factor: f32,
    x: Matrix,
    y: Matrix,
}

// Where a round begins: rows, columns and terms.
struct Tile {
    top: u32,
    side: u32,
    first: u32,
}

// 4 x 4 elements of a tile: of one row each.
var<private> tile_0: vec4<f32>;
var<private> tile_1: vec4<f32>;
var<private> tile_2: vec4<f32>;
var<private> tile_3: vec4<f32>;

// How many runs of length `piece` cover `whole_length`.
fn pieces(whole_length: u32, piece: u32) -> u32 {
    return (whole_length + piece - 1u) / piece;
}

// A round is one tile of the result and one run of 8 terms.
fn product_rounds(shape: vec3<u32>) -> u32 {
    return pieces(shape.y, PRODUCT_HEIGHT) * pieces(shape.z, PRODUCT_WIDTH) * pieces(depth_of(shape), PRODUCT_DEPTH);
}

// Terms count fastest, then columns, then rows; so the sums of a tile stay in registers over its rounds.
fn tile_of(shape: vec3<u32>, round_at: u32) -> Tile {
    let depths = pieces(depth_of(shape), PRODUCT_DEPTH);
    let wide = pieces(shape.z, PRODUCT_WIDTH);
    let at = round_at / depths;
    return Tile(at / wide * PRODUCT_HEIGHT, at % wide * PRODUCT_WIDTH, round_at % depths * PRODUCT_DEPTH);
}

// Neighbouring invocations load neighbouring elements, whichever way a matrix lies.
fn load_terms(phase: u32, shape: vec3<u32>, round_at: u32) {
    let p = product_of(phase);
    let tile = tile_of(shape, round_at);
    let depth = depth_of(shape);
    // Elements outside the matrices are zero and add nothing.
    for (var n = me; n < PRODUCT_DEPTH * PRODUCT_HEIGHT; n += THREADS) {
        let i = select(n % PRODUCT_HEIGHT, n / PRODUCT_DEPTH, p.x.column == 1u);
        let d = select(n / PRODUCT_HEIGHT, n % PRODUCT_DEPTH, p.x.column == 1u);
        var own = 0.0;
        if (tile.top + i < shape.y && tile.first + d < depth) {
            own = workspace[place_of(p.x, tile.top + i, tile.first + d)];
        }
        left[d * PRODUCT_HEIGHT + i] = own;
    }
    for (var n = me; n < PRODUCT_DEPTH * PRODUCT_WIDTH; n += THREADS) {
        let j = select(n / PRODUCT_DEPTH, n % PRODUCT_WIDTH, p.y.column == 1u);
        let d = select(n % PRODUCT_DEPTH, n / PRODUCT_WIDTH, p.y.column == 1u);
        var own = 0.0;
        if (tile.side + j < shape.z && tile.first + d < depth) {
            own = workspace[place_of(p.y, tile.first + d, tile.side + j)];
        }
        right[d * PRODUCT_WIDTH + j] = own;
    }
}

// Four elements of row `i` of a result, 16 columns apart from `j`.
// An invocation's columns are 16 apart, so that neighbours write neighbouring elements.
fn store_terms(p: Product, sums: vec4<f32>, i: u32, j: u32, shape: vec3<u32>) {
    for (var n = 0u; n < 4u; n++) {
        let c = j + 16u * n;
        if (i < shape.y && c < shape.z) {
            var own = p.factor * sums[n];
            if (p.keep != 0.0) {
                own += p.keep * workspace[place_of(p.base, i, c)];
            }
            workspace[place_of(p.z, i, c)] = own;
        }
    }
}

// Terms join the sums, which are stored after the last of them.
// `work` loads the terms, `finish` adds them: the barrier of `run` lies in between.
fn add_terms(phase: u32, shape: vec3<u32>, round_at: u32) {
    let tile = tile_of(shape, round_at);
    let high = me / 16u;
    let wide = me % 16u;
    let apart = THREADS / 16u;
    // The first terms of a tile start its sums afresh.
    if (tile.first == 0u) {
        tile_0 = vec4(0.0);
        tile_1 = vec4(0.0);
        tile_2 = vec4(0.0);
        tile_3 = vec4(0.0);
    }
    for (var d = 0u; d < PRODUCT_DEPTH; d++) {
        let at = d * PRODUCT_WIDTH + wide;
        let own = vec4(right[at], right[at + 16u], right[at + 32u], right[at + 48u]);
        let row_at = d * PRODUCT_HEIGHT + high;
        tile_0 += left[row_at] * own;
        tile_1 += left[row_at + apart] * own;
        tile_2 += left[row_at + 2u * apart] * own;
        tile_3 += left[row_at + 3u * apart] * own;
    }
    if (tile.first + PRODUCT_DEPTH >= depth_of(shape)) {
        let p = product_of(phase);
        let i = tile.top + high;
        let j = tile.side + wide;
        store_terms(p, tile_0, i, j, shape);
        store_terms(p, tile_1, i + apart, j, shape);
        store_terms(p, tile_2, i + 2u * apart, j, shape);
        store_terms(p, tile_3, i + 3u * apart, j, shape);
    }
}
