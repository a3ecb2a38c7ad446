// Newton-Schulz by one workgroup: equations (88) to (92), of `S [K,V]`, seen as `[p,n]` with `p ≤ n`: its transpose where
// it has more rows than columns. Everything of that size lies as `S` does.

// p of `[p,n]`.
fn short_side() -> u32 {
    return min(args.call.key, args.call.value);
}
// n of `[p,n]`.
fn long_side() -> u32 {
    return max(args.call.key, args.call.value);
}
// Elements of S, of X and of their gradients.
fn count() -> u32 {
    return args.call.key * args.call.value;
}
// Elements of A and B.
fn square() -> u32 {
    return short_side() * short_side();
}

// A matrix of the size of S, transposed where S has more rows than columns.
fn whole(x: u32) -> Matrix {
    let all = Matrix(x, args.call.value, 1u);
    if (args.call.key > args.call.value) {
        return transposed(all);
    }
    return all;
}

// A square [p,p].
fn small(x: u32) -> Matrix {
    return Matrix(x, short_side(), 1u);
}

// With PRODUCT: sums have as many terms as the long side, else as the short one.
const LONG: u32 = 128u;

// A kind's own bits leave room for LONG.
fn depth_of(shape: vec3<u32>) -> u32 {
    return select(short_side(), long_side(), (shape.x & LONG) != 0u);
}

// Workspace: `X [kept + 1, p,n]`, then `A` and `B` `[kept,p,p]` each, with `kept` the number of steps where a backward
// comes, or 1. In a backward follow `D [2,p,n]`, `dB`, `dA` `[p,p]`.
// X of step `turn`; without a backward two places take turns.
fn x_at(turn: u32, kept_steps: u32) -> u32 {
    return matrices + turn % (kept_steps + 1u) * count();
}
// A = X Xᵀ of step `turn`.
fn a_at(turn: u32, kept_steps: u32) -> u32 {
    return matrices + (kept_steps + 1u) * count() + turn % kept_steps * square();
}
// B = β A + κ A A of step `turn`.
fn b_at(turn: u32, kept_steps: u32) -> u32 {
    return a_at(turn, kept_steps) + kept_steps * square();
}
// The gradient of X: two places take turns.
fn d_at(turn: u32) -> u32 {
    return matrices + (args.cell.steps + 1u) * count() + 2u * args.cell.steps * square() + turn % 2u * count();
}
// The gradient of B.
fn db_at() -> u32 {
    return d_at(0u) + 2u * count();
}
// The gradient of A.
fn da_at() -> u32 {
    return db_at() + square();
}

// Three products a step: (89), (90).
const STEP_PHASES: u32 = 3u;
// A = X Xᵀ [p,p].
const STEP_A: u32 = 0u;
// B = β A + κ A A [p,p].
const STEP_B: u32 = 1u;
// X = α X + B X [p,n].
const STEP_X: u32 = 2u;

// A is [p,p] with sums over n; B is [p,p] and the next X is [p,n], both with sums over p.
fn step_shape(at: u32) -> vec3<u32> {
    let wanted = at / STEP_PHASES < args.cell.steps;
    let p = short_side();
    let kind = select(PRODUCT, PRODUCT | LONG, at % STEP_PHASES == STEP_A);
    return shape_if(wanted, kind, p, select(p, long_side(), at % STEP_PHASES == STEP_X));
}

// A = X Xᵀ, B = β A + κ A A, X = α X + B X.
fn step_product(at: u32, kept_steps: u32) -> Product {
    let turn = at / STEP_PHASES;
    let x = whole(x_at(turn, kept_steps));
    let a = small(a_at(turn, kept_steps));
    let b = small(b_at(turn, kept_steps));
    switch at % STEP_PHASES {
        case STEP_A: {
            return Product(a, 0.0, a, 1.0, x, transposed(x));
        }
        case STEP_B: {
            return Product(b, args.cell.beta, a, args.cell.kappa, a, a);
        }
        default: {
            return Product(whole(x_at(turn + 1u, kept_steps)), args.cell.alpha, x, 1.0, b, x);
        }
    }
}

// Five products a step back, and before the last two of them `dA + dAᵀ`: (91).
const STEP_VJP_PHASES: u32 = 6u;
// dB = D Xᵀ [p,p].
const VJP_DB: u32 = 0u;
// dA = β dB + κ dB A [p,p].
const VJP_DA: u32 = 1u;
// dA += κ A dB [p,p].
const VJP_DA_MORE: u32 = 2u;
// dA + dAᵀ [p,p].
const VJP_SYMMETRISE: u32 = 3u;
// α D + B D [p,n].
const VJP_DX: u32 = 4u;
// D += (dA + dAᵀ) X [p,n].
const VJP_DX_MORE: u32 = 5u;

// Steps are walked from the last.
fn step_vjp_shape(at: u32) -> vec3<u32> {
    let wanted = at / STEP_VJP_PHASES < args.cell.steps;
    let p = short_side();
    switch at % STEP_VJP_PHASES {
        case VJP_DB: {
            return shape_if(wanted, PRODUCT | LONG, p, p);
        }
        case VJP_DA, VJP_DA_MORE: {
            return shape_if(wanted, PRODUCT, p, p);
        }
        case VJP_SYMMETRISE: {
            return shape_if(wanted, EACH, 1u, square());
        }
        default: {
            return shape_if(wanted, PRODUCT, p, long_side());
        }
    }
}

// dB = D Xᵀ. dA = β dB + κ (dB A + A dB). dX = α D + B D + (dA + dAᵀ) X.
fn step_vjp_product(at: u32) -> Product {
    let steps = args.cell.steps;
    let turn = steps - 1u - at / STEP_VJP_PHASES;
    let x = whole(x_at(turn, steps));
    let a = small(a_at(turn, steps));
    let d = whole(d_at(at / STEP_VJP_PHASES));
    let fresh = whole(d_at(at / STEP_VJP_PHASES + 1u));
    let da = small(da_at());
    let db = small(db_at());
    switch at % STEP_VJP_PHASES {
        case VJP_DB: {
            return Product(db, 0.0, db, 1.0, d, transposed(x));
        }
        case VJP_DA: {
            return Product(da, args.cell.beta, db, args.cell.kappa, db, a);
        }
        case VJP_DA_MORE: {
            return Product(da, 1.0, da, args.cell.kappa, a, db);
        }
        case VJP_DX: {
            return Product(fresh, args.cell.alpha, d, 1.0, small(b_at(turn, steps)), d);
        }
        default: {
            return Product(fresh, 1.0, fresh, 1.0, da, x);
        }
    }
}

// `dA + dAᵀ`, a pair of elements by one invocation.
// Only pairs on and above the diagonal work, so that no two invocations write one element.
fn symmetrise(i: u32) {
    let p = short_side();
    let r = i / p;
    let c = i % p;
    if (r <= c) {
        let both = workspace[da_at() + r * p + c] + workspace[da_at() + c * p + r];
        workspace[da_at() + r * p + c] = both;
        workspace[da_at() + c * p + r] = both;
    }
}
