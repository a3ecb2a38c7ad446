// Bits of 16-bit floats and those of 32-bit ones. IEEE: whether a half is one of theirs or has the exponent of a float.

// The bits of a half as those of a float: exact.
// A bf16 is widened by a shift; an f16 has its exponent moved from bias 15 to bias 127.
fn float_of(half: u32) -> u32 {
    if !IEEE {
        return half << 16u;
    }
    let sign = (half & 0x8000u) << 16u;
    let exponent = (half >> 10u) & 31u;
    let fraction = half & 1023u;
    if exponent == 0u {
        // Zero, and what is subnormal at 16 bits but not at 32: so many times 2⁻²⁴.
        return sign | bitcast<u32>(f32(fraction) * 5.9604644775390625e-8);
    }
    // Infinity, and NaN with its fraction.
    if exponent == 31u {
        return sign | 0x7f800000u | (fraction << 13u);
    }
    return sign | ((exponent + 112u) << 23u) | (fraction << 13u);
}

// The bits of a float as those of the nearest half, of two the even one.
// Half of the last kept place is added, less one where that place is even, and the rest is cut off.
fn half_of(float: u32) -> u32 {
    let magnitude = float & 0x7fffffffu;
    if !IEEE {
        // A NaN keeps its upper bits and becomes quiet; rounding could carry it to infinity.
        if magnitude > 0x7f800000u {
            return (float >> 16u) | 0x40u;
        }
        return (float + 0x7fffu + ((float >> 16u) & 1u)) >> 16u;
    }
    let sign = (float >> 16u) & 0x8000u;
    if magnitude > 0x7f800000u {
        return sign | 0x7e00u;
    }
    // From the middle between the largest half and the one that would come next.
    if magnitude >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if magnitude < 0x38800000u {
        // Subnormal: beside ½ the last place of a float is that of such a half.
        return sign | (bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u);
    }
    return sign | ((magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u);
}
