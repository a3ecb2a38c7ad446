// Operands whose rows begin at multiples of four elements: read four at a time, of which all or none are there.
@group(0) @binding(1) var<storage, read> a: array<Four>;
@group(0) @binding(2) var<storage, read> b: array<Four>;

// `there` is 0 or 4: rows begin at multiples of four.
fn four_of_a(at: u32, there: u32) -> vec4<f32> {
    if there == 0u { return vec4<f32>(); }
    return four(a[at / 4u]);
}

// The same of the other operand.
fn four_of_b(at: u32, there: u32) -> vec4<f32> {
    if there == 0u { return vec4<f32>(); }
    return four(b[at / 4u]);
}
