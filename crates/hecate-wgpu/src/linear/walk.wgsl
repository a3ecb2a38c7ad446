// What the scans forward and reverse share: which columns a workgroup walks with, and where its states begin and end.
//
// A workgroup owns COLUMNS columns of one sequence and head, for all tokens; columns never interact.

// Tokens bring their queries along.
const QUERIES = 1u;

// Where `put_state` writes: M or S at the end of the walk, or a kept state. For the reverse scan all are gradients.
const TO_M = 0u;
const TO_S = 1u;
const TO_KEPT = 2u;

// WGSL cannot point into an array of choice, so a number names it.
fn put_state(which: u32, i: u32, x: f32) {
    if which == TO_M {
        last_m[i] = x;
    } else if which == TO_S {
        last_s[i] = x;
    } else {
        kept[i] = x;
    }
}

// `begin` put the states that a walk starts from into `work`, as bits.
fn state_at(i: u32) -> f32 {
    return bitcast<f32>(work[i]);
}

// A workgroup's part of the call, and an invocation's.
struct Walk {
    head: u32,
    mine: Place,
    column: u32,  // first one of the workgroup
    matrix: u32,  // the invocation's column in arrays [N,H,K,V]
}

// The tokens of workgroup `block`. Apart from `Walk`: barriers stand in the loop over them, so its end must be seen to be
// the same for all invocations.
fn tokens_of(block: u32) -> Sequence {
    return sequence(block / blocks() / args.heads);
}

// Of workgroup `block`: a sequence and head, then a block of columns.
fn walk_of(block: u32, local: u32) -> Walk {
    let state = block / blocks();
    let mine = place(block % blocks(), local);
    let matrix = state * key_length() * args.value + mine.column;
    return Walk(state % args.heads, mine, block % blocks() * COLUMNS, matrix);
}

// The rows of S that the walk starts from; nothing without momentum.
fn first_momentum(own: Walk) -> Rows {
    if MOMENTUM == 1u {
        return read_rows(args.s + own.matrix, own.mine.part);
    }
    return Rows();
}

// Keeps M and S as those with this number in arrays [kept,H].
fn keep(own: Walk, number: u32, m: Rows, s: Rows) {
    if own.mine.writes {
        let to = number * MATRICES * key_length() * args.value + own.mine.column;
        write_rows(TO_KEPT, to, own.mine.part, m);
        if MOMENTUM == 1u {
            write_rows(TO_KEPT, to + key_length() * args.value, own.mine.part, s);
        }
    }
}

// M and S at the end of the walk.
fn leave(own: Walk, m: Rows, s: Rows) {
    if own.mine.writes {
        write_rows(TO_M, own.matrix, own.mine.part, m);
        if MOMENTUM == 1u {
            write_rows(TO_S, own.matrix, own.mine.part, s);
        }
    }
}
