// Gradients of the gates of a token: sums of (32), (14), and what each rule makes of dw and dr.

// The space of the chunks at work; gradients of gates go to their arrays.
@group(0) @binding(2) var<storage, read> space: array<f32>;
@group(0) @binding(3) var<storage, read_write> log_a: array<f32>;  // [rows,H]
@group(0) @binding(4) var<storage, read_write> theta: array<f32>;  // [rows,H]
@group(0) @binding(5) var<storage, read_write> gate2: array<f32>;  // [rows,H]: of log η with an S, else of β

// An invocation owns one token of one chunk.
@compute @workgroup_size(64)
fn gates(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let own = own_token(group, local);
    if !own.works {
        return;
    }
    let chunk = own.chunk;
    let t = own.t;
    // What the states before the chunk give, then what each earlier write of the chunk gives.
    var da = space[vector_at(chunk, FIRST_A, t)];
    var deta = space[vector_at(chunk, FIRST_ETA, t)];
    // Rows of the tables OF_A and OF_ETA: one entry for each earlier write.
    for (var j = 0u; j < t; j++) {
        da += space[square_at(chunk, OF_A, t, j)];
        deta += space[square_at(chunk, OF_ETA, t, j)];
    }
    let at = token(own.here, t);
    put_gates(at, scalars_of(at), space[vector_at(chunk, DW, t)], space[vector_at(chunk, DR, t)], da, deta);
}
