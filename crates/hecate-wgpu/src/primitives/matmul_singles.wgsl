// Operands of any sizes: read element by element, zero after the first `there`.
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;

// `there` says how many of the four are inside the operand.
fn four_of_a(at: u32, there: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if there > 0u { x.x = a[at]; }
    if there > 1u { x.y = a[at + 1u]; }
    if there > 2u { x.z = a[at + 2u]; }
    if there > 3u { x.w = a[at + 3u]; }
    return x;
}

// The same of the other operand.
fn four_of_b(at: u32, there: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if there > 0u { x.x = b[at]; }
    if there > 1u { x.y = b[at + 1u]; }
    if there > 2u { x.z = b[at + 2u]; }
    if there > 3u { x.w = b[at + 3u]; }
    return x;
}
