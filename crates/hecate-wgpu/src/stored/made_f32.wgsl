// Results are 32-bit floats.
alias Made = f32;

fn made(x: f32) -> Made {
    return x;
}
