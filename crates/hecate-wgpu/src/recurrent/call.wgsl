// Slots that a rule does not have are 0 in these vectors.
// A call; `recurrent::RecurrentCall` is its twin. By slot: where each begins, and how many
// elements it has in a row, or in a sequence and head.
struct RecurrentCall {
    // In `given`.
    gates: vec4<u32>,
    initial: vec4<u32>,
    dlast: vec4<u32>,
    // In `made`: of final states, or of gradients of gates and initial states.
    last: vec4<u32>,
    dgates: vec4<u32>,
    widths: vec4<u32>,
    sizes: vec4<u32>,
    gate_slots: u32,
    state_slots: u32,
    sequence_heads: u32,
    heads: u32,
    key: u32,
    value: u32,
    // Elements of a token's gates, a state, what a token leaves for its backward, rows for one token.
    all_gates: u32,
    state: u32,
    record: u32,
    scratch: u32,
    // Elements of a workgroup's part of `workspace`, rows apart.
    workspace: u32,
    // Rows of one workgroup that lie in `workspace`.
    rows: u32,
    // Tokens that share a gradient point, 0 for none; tokens from which kept states are counted.
    frozen: u32,
    unit: u32,
    // Whether states are kept; whether a forward goes through a segment once more, for the backward after it.
    keep: u32,
    again: u32,
    // In `given`: where the first kept state of each sequence stands. First rows of sequences are the first there.
    kept_starts: u32,
    // In `made`: where dk begins, and dv at twice that.
    dk: u32,
    // What this dispatch does: sequences and heads from here, as many as there are workgroups. Of what there is to do
    // for each it takes ticks `begin … end`, in a backward of this segment, counted from the last.
    sequence_head: u32,
    begin: u32,
    end: u32,
    segment: u32,
    // Slots that go back to an anchor, 0 for none. Anchors [H,size] lie after the initial states in `given`. Their gradients by
    // sequence and head lie after those of the initial states in `made`.
    anchor_slots: u32,
    // Elements of the weights, where gradients are taken at their sum with the momentum after them; 0 for none.
    ahead: u32,
}
