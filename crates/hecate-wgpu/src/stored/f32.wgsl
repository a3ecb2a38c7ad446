// An array of 32-bit floats: number `i` is one(x[i / EACH], i); four from a multiple of four on are four(x[i / 4u]).
// One: what an array is an array of. Four: the same for reads of four elements.
// EACH: elements in a `One`.
alias One = f32;
alias Four = vec4<f32>;
const EACH = 1u;

// Element `i`, out of the word that holds it.
fn one(x: One, i: u32) -> f32 {
    return x;
}

// Four neighbouring elements.
fn four(x: Four) -> vec4<f32> {
    return x;
}
