// Products of small matrices in `room` by one workgroup: phases of the kind PRODUCT, of which a rule says
//
//     fn product_of(phase: u32) -> Product
//     fn depth_of(shape: vec3<u32>) -> u32    // terms of a sum

// `x[i,j]` lies at `data + i * row + j * column`.
struct Matrix {
    data: u32,
    row: u32,
    column: u32,
}

fn place_of(x: Matrix, i: u32, j: u32) -> u32 {
    return x.data + i * x.row + j * x.column;
}

fn transposed(x: Matrix) -> Matrix {
    return Matrix(x.data, x.column, x.row);
}

// Columns of a result that a workgroup makes at once, rows, and terms that it takes at once.
const PRODUCT_WIDTH: u32 = 64u;
const PRODUCT_HEIGHT: u32 = THREADS / 4u;
const PRODUCT_DEPTH: u32 = 8u;

var<workgroup> left: array<f32, PRODUCT_DEPTH * PRODUCT_HEIGHT>;
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

// 4 x 4 numbers of a tile: of one row each.
var<private> tile_0: vec4<f32>;
var<private> tile_1: vec4<f32>;
var<private> tile_2: vec4<f32>;
var<private> tile_3: vec4<f32>;

fn pieces(whole_length: u32, piece: u32) -> u32 {
    return (whole_length + piece - 1u) / piece;
}

fn product_rounds(shape: vec3<u32>) -> u32 {
    return pieces(shape.y, PRODUCT_HEIGHT) * pieces(shape.z, PRODUCT_WIDTH) * pieces(depth_of(shape), PRODUCT_DEPTH);
}

fn tile_of(shape: vec3<u32>, round_at: u32) -> Tile {
    let depths = pieces(depth_of(shape), PRODUCT_DEPTH);
    let wide = pieces(shape.z, PRODUCT_WIDTH);
    let at = round_at / depths;
    return Tile(at / wide * PRODUCT_HEIGHT, at % wide * PRODUCT_WIDTH, round_at % depths * PRODUCT_DEPTH);
}

// Neighbouring invocations load neighbouring numbers, whichever way a matrix lies.
fn load_terms(phase: u32, shape: vec3<u32>, round_at: u32) {
    let p = product_of(phase);
    let tile = tile_of(shape, round_at);
    let depth = depth_of(shape);
    for (var n = me; n < PRODUCT_DEPTH * PRODUCT_HEIGHT; n += THREADS) {
        let i = select(n % PRODUCT_HEIGHT, n / PRODUCT_DEPTH, p.x.column == 1u);
        let d = select(n / PRODUCT_HEIGHT, n % PRODUCT_DEPTH, p.x.column == 1u);
        var own = 0.0;
        if (tile.top + i < shape.y && tile.first + d < depth) {
            own = room[place_of(p.x, tile.top + i, tile.first + d)];
        }
        left[d * PRODUCT_HEIGHT + i] = own;
    }
    for (var n = me; n < PRODUCT_DEPTH * PRODUCT_WIDTH; n += THREADS) {
        let j = select(n / PRODUCT_DEPTH, n % PRODUCT_WIDTH, p.y.column == 1u);
        let d = select(n % PRODUCT_DEPTH, n / PRODUCT_WIDTH, p.y.column == 1u);
        var own = 0.0;
        if (tile.side + j < shape.z && tile.first + d < depth) {
            own = room[place_of(p.y, tile.first + d, tile.side + j)];
        }
        right[d * PRODUCT_WIDTH + j] = own;
    }
}

// Four numbers of row `i` of a result, 16 columns apart from `j`.
fn store_terms(p: Product, sums: vec4<f32>, i: u32, j: u32, shape: vec3<u32>) {
    for (var n = 0u; n < 4u; n++) {
        let c = j + 16u * n;
        if (i < shape.y && c < shape.z) {
            var own = p.factor * sums[n];
            if (p.keep != 0.0) {
                own += p.keep * room[place_of(p.base, i, c)];
            }
            room[place_of(p.z, i, c)] = own;
        }
    }
}

// Terms join the sums, which are stored behind the last of them.
fn add_terms(phase: u32, shape: vec3<u32>, round_at: u32) {
    let tile = tile_of(shape, round_at);
    let high = me / 16u;
    let wide = me % 16u;
    let apart = THREADS / 16u;
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
