// What becomes of the sums of a product.

// Kinds beside the plain one, 0: the activation beside the result; what the first layer is written with.
// Then products of queries and keys as they are read; the gradients of those and of their masks.
const ACTIVATE: u32 = 1u;
const WRITE: u32 = 2u;
const MASK: u32 = 3u;
const MASK_BACK: u32 = 4u;

// How much, where it is not NOTHING: all, A, B and E after the group, 1 - A. Any other is where numbers by row are.
const WHOLE: u32 = 1u;
const KEPT: u32 = 2u;
const PUSHED: u32 = 3u;
const LEFT: u32 = 4u;
const REST: u32 = 5u;

// Number `which` of the group's token t; `masks.wgsl` names them.
fn number(which: u32, t: u32) -> f32 {
    return workspace[base + args.numbers + which * args.group + t];
}

// How much of a panel joins row i.
fn share(by: u32, i: u32) -> f32 {
    // Beyond the last token nothing changes, so the last row has what is left after the group.
    let last = args.group - 1u;
    switch by {
        case WHOLE: {
            return 1.0;
        }
        case KEPT: {
            return number(ALL_A, last);
        }
        case PUSHED: {
            return number(ALL_B, last);
        }
        case LEFT: {
            return number(ALL_E, last);
        }
        case REST: {
            return number(ALL_REST, last);
        }
        default: {
            return workspace[base + by + i];
        }
    }
}

// `sum` and what joins it of a panel.
fn joined(sum: f32, panel: u32, by: u32, i: u32, at: u32) -> f32 {
    if (by == NOTHING) {
        return sum;
    }
    return sum + share(by, i) * workspace[base + panel + at];
}

// What token t reads of the write of token j.
fn mask(t: u32, j: u32) -> f32 {
    if (args.read_after != 0u) {
        return workspace[base + args.first + t * args.columns + j];
    }
    // Before its own write a token finds what the one before left.
    return select(0.0, workspace[base + args.first + (max(t, 1u) - 1u) * args.columns + j], t > 0u);
}

// Element (i, j) of the sums.
fn finish(sum: f32, i: u32, j: u32) {
    let at = i * args.columns + j;
    let to = base + args.out + at;
    switch args.kind {
        case ACTIVATE: {
            workspace[to] = sum;
            workspace[base + args.also + at] = activation(sum).value;
        }
        case WRITE: {
            workspace[base + args.also + at] = sum;
            workspace[to] = -number(THETA, i) * sum * activation(workspace[base + args.slope + at]).slope;
        }
        case MASK: {
            workspace[to] = mask(i, j) * sum;
        }
        case MASK_BACK: {
            // `also` has the square: its product with this one is the mask's gradient.
            let own = mask(i, j);
            let square = workspace[base + args.also + at];
            workspace[base + args.second + at] += square * sum;
            workspace[to] = own * sum;
            workspace[base + args.also + at] = own * square;
        }
        default: {
            var y = joined(sum, args.first, args.first_by, i, at);
            y = joined(y, args.second, args.second_by, i, at);
            y = joined(y, args.third, args.third_by, i, at);
            if (args.slope != NOTHING) {
                y *= activation(workspace[base + args.slope + at]).slope;
            }
            workspace[to] = joined(y, args.out, args.own_by, i, at);
        }
    }
}
