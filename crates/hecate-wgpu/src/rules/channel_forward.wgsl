// One token forward: equations (110) to (114).
//
// The erase is read down the columns first, since every row of a column gets all of it. Rules without an erase leave that out, and
// go over the memory once.

// Every initial memory is one of the rule's.
const OPENED: u32 = 0u;
const BEGIN: u32 = 0u;
// p, down the columns.
const ERASE: u32 = 1u;
// The memory after the token, and what the query reads of it.
const WRITE: u32 = 2u;
const FORWARD_END: u32 = 3u;

// Both passes go down the columns, so that an invocation meets the same elements in each.
// Returns the kind of a phase and its rows and columns.
fn shape_of(phase: u32) -> vec3<u32> {
    if (phase == BEGIN) {
        return each_of(max(args.call.key, args.call.value), false);
    }
    return shape_if(phase == WRITE || erases(), COLUMNS, args.call.key, args.call.value);
}

// No phase multiplies a row by a matrix.
fn job_at(phase: u32) -> Job {
    return job(0u, 0u, 0u);
}

// Element i of a, e, b [K] and w [V], in phase BEGIN.
fn element(phase: u32, i: u32) -> vec4<f32> {
    begin_token(i);
    return vec4(0.0);
}

// No phase has sums over all elements, or goes along rows.
fn totalled(phase: u32, sums: vec4<f32>) {}
// Never asked: no phase goes along rows.
fn along(phase: u32, r: u32, c: u32) -> vec4<f32> {
    return vec4(0.0);
}
// Never called: no phase goes along rows.
fn ended(phase: u32, r: u32, sums: vec4<f32>) {}

// Each element is read once before it is written: `next` may be `old`.
fn down(phase: u32, r: u32, c: u32) -> f32 {
    let i = r * args.call.value + c;
    let before = workspace[old + i];
    // Its column's sum is p.
    if (phase == ERASE) {
        return reads(r) * before;
    }
    // What is written, and what was erased under its own key.
    var more = row(token.k + r) * row(row_w() + c);
    if (erases()) {
        more += row(row_b() + r) * row(record + c);
    }
    // Rows decay by their own factor: zero forgets all, and nothing is divided by it.
    let after = row(row_a() + r) * before + size_of_step() * more;
    workspace[next + i] = after;
    // The query reads after the write.
    return row(token.q + r) * after;
}

// p, then y.
fn landed(phase: u32, c: u32, sum: f32) {
    put(select(out, record, phase == ERASE) + c, sum);
}
