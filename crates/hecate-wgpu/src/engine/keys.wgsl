// Queries and keys of any length.

@group(0) @binding(2) var<storage, read> q: array<f32>;  // [rows,H,K]
@group(0) @binding(3) var<storage, read> k: array<f32>;  // [rows,H,K]

fn query_four(at: u32, row: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if row < KEY {
        x.x = q[at + row];
    }
    if row + 1u < KEY {
        x.y = q[at + row + 1u];
    }
    if row + 2u < KEY {
        x.z = q[at + row + 2u];
    }
    if row + 3u < KEY {
        x.w = q[at + row + 3u];
    }
    return x;
}

fn key_four(at: u32, row: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if row < KEY {
        x.x = k[at + row];
    }
    if row + 1u < KEY {
        x.y = k[at + row + 1u];
    }
    if row + 2u < KEY {
        x.z = k[at + row + 2u];
    }
    if row + 3u < KEY {
        x.w = k[at + row + 3u];
    }
    return x;
}
