// Results are IEEE's 16-bit floats, of an adapter that has them. Languages of GPUs leave it open how a float is rounded to
// one, so the float is made one of theirs before.
alias Made = f16;

fn made(x: f32) -> Made {
    return f16(bitcast<f32>(float_of(half_of(bitcast<u32>(x)))));
}
