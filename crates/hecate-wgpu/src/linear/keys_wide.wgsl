// Queries and keys of a multiple of four elements: zeros after the end.

@group(0) @binding(2) var<storage, read> q: array<Four>;  // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<Four>;  // [rows,H,K]

// Elements `row` to `row + 3` of the query that begins at `at`, in one read.
// With WHOLE the key fills the rows of its invocations, and no row needs a test.
fn query_four(at: u32, row: u32) -> vec4<f32> {
    if WHOLE == 1u {
        return four(q[at / 4u + row / 4u]);
    }
    return select(vec4<f32>(), four(q[at / 4u + min(row, key_length() - 1u) / 4u]), row < key_length());
}

// The same of a key.
fn key_four(at: u32, row: u32) -> vec4<f32> {
    if WHOLE == 1u {
        return four(k[at / 4u + row / 4u]);
    }
    return select(vec4<f32>(), four(k[at / 4u + min(row, key_length() - 1u) / 4u]), row < key_length());
}
