// An array of IEEE's 16-bit floats, of an adapter that has them: read as one of 32-bit floats is, exactly.
enable f16;

alias One = f16;
alias Four = vec4<f16>;
const EACH = 1u;

// Widening is exact: every f16 is a float.
fn one(x: One, i: u32) -> f32 {
    return f32(x);
}

// Four elements, widened at once.
fn four(x: Four) -> vec4<f32> {
    return vec4<f32>(x);
}
