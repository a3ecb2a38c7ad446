// Columns of weights that go back to the lengths of their anchor's where a group starts: equation (95).
//
// The constant RENORM says whether they do. A column is one invocation's; its states lie in `workspace`, its anchor in `given`.

// Added to squared lengths.
const COLUMN_EPSILON: f32 = 1e-6;

// Columns of a slot that has an anchor: the first has a row for each element of a key, the second is as wide as a value.
fn columns_of(slot: u32) -> u32 {
    return select(args.call.value, args.call.sizes.x / args.call.key, slot == 0u);
}

// Squared lengths of the column of an anchor's matrix that starts at `b`, and of a state's at `x`.
fn lengths(b: u32, x: u32, count: u32, apart: u32) -> vec2<f32> {
    var sums = vec2(COLUMN_EPSILON);
    for (var i = 0u; i < count; i += apart) {
        let own = vec2(bitcast<f32>(given[b + i]), workspace[x + i]);
        sums += own * own;
    }
    return sums;
}

// A group starts: `spare` gets the state at `origin`, which may be `spare`, its columns set back.
fn begin_group(origin: u32, head: u32) {
    sync();
    var at = 0u;
    for (var slot = 0u; slot < args.call.state_slots; slot++) {
        let size = args.call.sizes[slot];
        if (slot < args.call.anchor_slots) {
            let columns = columns_of(slot);
            for (var c = me; c < columns; c += THREADS) {
                let both = lengths(anchor_at(at, size, head) + c, origin + at + c, size - c, columns);
                let factor = sqrt(both.x / both.y);
                for (var i = at + c; i < at + size; i += columns) {
                    workspace[spare + i] = factor * workspace[origin + i];
                }
            }
        } else {
            for (var i = at + me; i < at + size; i += THREADS) {
                workspace[spare + i] = workspace[origin + i];
            }
        }
        at += size;
    }
    sync();
}
