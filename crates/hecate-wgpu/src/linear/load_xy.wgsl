// Rows of any length, four elements at once: zeros after the end.

@group(0) @binding(2) var<storage, read> x: array<f32>;  // [rows,H,width]
@group(0) @binding(3) var<storage, read> y: array<f32>;  // [rows,H,width] or [kept,H,M and S,K,V]

// Elements `c` to `c + 3` of the row of x that begins at `at`; reads stay inside the row.
fn x_four(at: u32, c: u32) -> vec4<f32> {
    let columns = vec4<u32>(c, c + 1u, c + 2u, c + 3u);
    let i = at + min(columns, vec4<u32>(args.width - 1u));
    return select(vec4<f32>(), vec4<f32>(x[i.x], x[i.y], x[i.z], x[i.w]), columns < vec4<u32>(args.width));
}

// The same of y.
fn y_four(at: u32, c: u32) -> vec4<f32> {
    let columns = vec4<u32>(c, c + 1u, c + 2u, c + 3u);
    let i = at + min(columns, vec4<u32>(args.width - 1u));
    return select(vec4<f32>(), vec4<f32>(y[i.x], y[i.y], y[i.z], y[i.w]), columns < vec4<u32>(args.width));
}
