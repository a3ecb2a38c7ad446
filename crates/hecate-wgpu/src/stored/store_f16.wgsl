// Results are IEEE's 16-bit floats, of an adapter that has them. Languages of GPUs leave it open how a float is rounded to
// one, so the float is made one of theirs before.
alias Output = f16;

// `half_of` rounds to the nearest, ties to even; the conversion that follows is exact.
fn to_output(x: f32) -> Output {
    return f16(bitcast<f32>(float_of(half_of(bitcast<u32>(x)))));
}
