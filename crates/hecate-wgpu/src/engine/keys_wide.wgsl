// Queries and keys of a multiple of four numbers.

@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;  // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<vec4<f32>>;  // [rows,H,K]

fn query_four(at: u32, row: u32) -> vec4<f32> {
    if KEY % ROWS != 0u && row >= KEY {
        return vec4<f32>();
    }
    return q[at / 4u + row / 4u];
}

fn key_four(at: u32, row: u32) -> vec4<f32> {
    if KEY % ROWS != 0u && row >= KEY {
        return vec4<f32>();
    }
    return k[at / 4u + row / 4u];
}
