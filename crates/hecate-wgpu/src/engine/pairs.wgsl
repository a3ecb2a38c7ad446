// Rows of any length, four numbers at once: zeros behind the end.

@group(0) @binding(2) var<storage, read> x: array<f32>;  // [rows,H,width]
@group(0) @binding(3) var<storage, read> y: array<f32>;  // [rows,H,width] or [kept,H,M and S,K,V]

fn x_four(at: u32, c: u32) -> vec4<f32> {
    var four = vec4<f32>(x[at + c], 0.0, 0.0, 0.0);
    if c + 1u < args.width {
        four.y = x[at + c + 1u];
    }
    if c + 2u < args.width {
        four.z = x[at + c + 2u];
    }
    if c + 3u < args.width {
        four.w = x[at + c + 3u];
    }
    return four;
}

fn y_four(at: u32, c: u32) -> vec4<f32> {
    var four = vec4<f32>(y[at + c], 0.0, 0.0, 0.0);
    if c + 1u < args.width {
        four.y = y[at + c + 1u];
    }
    if c + 2u < args.width {
        four.z = y[at + c + 2u];
    }
    if c + 3u < args.width {
        four.w = y[at + c + 3u];
    }
    return four;
}
