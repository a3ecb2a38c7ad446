// The gradients of a token's gates, at `at`, from those of its scalars w, r, a, η: (14). Kernels name the arrays.
fn put_gates(at: u32, scalars: vec4<f32>, dw: f32, dr: f32, da: f32, deta: f32) {
    var of_theta = dw;
    var of_a = da;
    // r = θ a: its gradient goes to both.
    if args.erase == ERASE_DECAYED {
        of_theta += scalars.z * dr;
        of_a += scalars.x * dr;
    } else if args.erase != ERASE_NOTHING && args.erase != ERASE_BETA {
        of_theta += dr;
    }
    // d log a = a da, and d log η = η dη.
    // A gate that the rule has not is written to memory that nobody reads.
    log_a[at] = scalars.z * of_a;
    theta[at] = of_theta;
    gate2[at] = select(dr, scalars.w * deta, args.matrices == 2u);
}
