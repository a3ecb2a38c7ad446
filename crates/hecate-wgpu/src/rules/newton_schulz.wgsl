// Newton-Schulz by one workgroup: equations (88) to (92), of `S [K,V]`, seen as `[p,n]` with `p ≤ n`: its transpose where
// it has more rows than columns. Everything of that size lies as `S` does.

fn short_side() -> u32 {
    return min(args.call.key, args.call.value);
}
fn long_side() -> u32 {
    return max(args.call.key, args.call.value);
}
fn count() -> u32 {
    return args.call.key * args.call.value;
}
fn square() -> u32 {
    return short_side() * short_side();
}

fn whole(x: u32) -> Matrix {
    let all = Matrix(x, args.call.value, 1u);
    if (args.call.key > args.call.value) {
        return transposed(all);
    }
    return all;
}

fn small(x: u32) -> Matrix {
    return Matrix(x, short_side(), 1u);
}

// With PRODUCT: sums have as many terms as the long side, else as the short one.
const LONG: u32 = 128u;

fn depth_of(shape: vec3<u32>) -> u32 {
    return select(short_side(), long_side(), (shape.x & LONG) != 0u);
}

// Room: `X [kept + 1, p,n]`, then `A` and `B` `[kept,p,p]` each, with `kept` the number of steps where a backward comes, or
// 1; then in a backward `D [2,p,n]`, `dB`, `dA` `[p,p]`.
fn x_at(turn: u32, kept_steps: u32) -> u32 {
    return matrices + turn % (kept_steps + 1u) * count();
}
fn a_at(turn: u32, kept_steps: u32) -> u32 {
    return matrices + (kept_steps + 1u) * count() + turn % kept_steps * square();
}
fn b_at(turn: u32, kept_steps: u32) -> u32 {
    return a_at(turn, kept_steps) + kept_steps * square();
}
fn d_at(turn: u32) -> u32 {
    return matrices + (args.cell.steps + 1u) * count() + 2u * args.cell.steps * square() + turn % 2u * count();
}
fn db_at() -> u32 {
    return d_at(0u) + 2u * count();
}
fn da_at() -> u32 {
    return db_at() + square();
}

// Three products a step: (89), (90).
const STEPPING: u32 = 3u;

fn step_shape(at: u32) -> vec3<u32> {
    let wanted = at / STEPPING < args.cell.steps;
    let p = short_side();
    let kind = select(PRODUCT, PRODUCT | LONG, at % STEPPING == 0u);
    return shape_if(wanted, kind, p, select(p, long_side(), at % STEPPING == 2u));
}

fn step_product(at: u32, kept_steps: u32) -> Product {
    let turn = at / STEPPING;
    let x = whole(x_at(turn, kept_steps));
    let a = small(a_at(turn, kept_steps));
    let b = small(b_at(turn, kept_steps));
    switch at % STEPPING {
        case 0u: {
            return Product(a, 0.0, a, 1.0, x, transposed(x));
        }
        case 1u: {
            return Product(b, args.cell.beta, a, args.cell.kappa, a, a);
        }
        default: {
            return Product(whole(x_at(turn + 1u, kept_steps)), args.cell.alpha, x, 1.0, b, x);
        }
    }
}

// Five products a step back, and before the last two of them `dA + dAᵀ`: (91).
const STEPPING_BACK: u32 = 6u;

fn step_back_shape(at: u32) -> vec3<u32> {
    let wanted = at / STEPPING_BACK < args.cell.steps;
    let p = short_side();
    switch at % STEPPING_BACK {
        case 0u: {
            return shape_if(wanted, PRODUCT | LONG, p, p);
        }
        case 1u, 2u: {
            return shape_if(wanted, PRODUCT, p, p);
        }
        case 3u: {
            return shape_if(wanted, EACH, 1u, square());
        }
        default: {
            return shape_if(wanted, PRODUCT, p, long_side());
        }
    }
}

fn step_back_product(at: u32) -> Product {
    let steps = args.cell.steps;
    let turn = steps - 1u - at / STEPPING_BACK;
    let x = whole(x_at(turn, steps));
    let a = small(a_at(turn, steps));
    let d = whole(d_at(at / STEPPING_BACK));
    let fresh = whole(d_at(at / STEPPING_BACK + 1u));
    let da = small(da_at());
    let db = small(db_at());
    switch at % STEPPING_BACK {
        case 0u: {
            return Product(db, 0.0, db, 1.0, d, transposed(x));
        }
        case 1u: {
            return Product(da, args.cell.beta, db, args.cell.kappa, db, a);
        }
        case 2u: {
            return Product(da, 1.0, da, args.cell.kappa, a, db);
        }
        case 4u: {
            return Product(fresh, args.cell.alpha, d, 1.0, small(b_at(turn, steps)), d);
        }
        default: {
            return Product(fresh, 1.0, fresh, 1.0, da, x);
        }
    }
}

// `dA + dAᵀ`, a pair of numbers by one invocation.
fn symmetrise(i: u32) {
    let p = short_side();
    let r = i / p;
    let c = i % p;
    if (r <= c) {
        let both = room[da_at() + r * p + c] + room[da_at() + c * p + r];
        room[da_at() + r * p + c] = both;
        room[da_at() + c * p + r] = both;
    }
}
