// An array of 32-bit floats: number `i` is one(x[i / EACH], i); four from a multiple of four on are four(x[i / 4u]).
alias One = f32;
alias Four = vec4<f32>;
const EACH = 1u;

fn one(x: One, i: u32) -> f32 {
    return x;
}

fn four(x: Four) -> vec4<f32> {
    return x;
}
