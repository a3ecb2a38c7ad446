// An array of 16-bit floats with the exponent of longer ones, two to a word, the first in its low half: read as one of
// 32-bit floats is, exactly.
alias One = u32;
alias Four = vec2<u32>;
const EACH = 2u;

// A bf16 is the upper half of a float, so that widening is a shift.
fn one(x: One, i: u32) -> f32 {
    return bitcast<f32>(select(x << 16u, x & 0xffff0000u, i % 2u == 1u));
}

// Four elements in two words, in the order of memory.
fn four(x: Four) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
}
