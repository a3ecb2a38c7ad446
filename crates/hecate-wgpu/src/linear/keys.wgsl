// Queries and keys of any length: zeros after the end.

@group(0) @binding(2) var<storage, read> q: array<f32>;  // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<f32>;  // [rows,H,K]

// Elements `row` to `row + 3` of the query that begins at `at`; reads stay inside, and `select` drops the rest.
fn query_four(at: u32, row: u32) -> vec4<f32> {
    let rows = vec4<u32>(row, row + 1u, row + 2u, row + 3u);
    let i = at + min(rows, vec4<u32>(key_length() - 1u));
    return select(vec4<f32>(), vec4<f32>(q[i.x], q[i.y], q[i.z], q[i.w]), rows < vec4<u32>(key_length()));
}

// The same of a key.
fn key_four(at: u32, row: u32) -> vec4<f32> {
    let rows = vec4<u32>(row, row + 1u, row + 2u, row + 3u);
    let i = at + min(rows, vec4<u32>(key_length() - 1u));
    return select(vec4<f32>(), vec4<f32>(k[i.x], k[i.y], k[i.z], k[i.w]), rows < vec4<u32>(key_length()));
}
