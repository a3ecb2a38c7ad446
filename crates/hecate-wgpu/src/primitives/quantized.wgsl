// Blocks of quantized matrices, byte for byte as ggml has them; `hecate_core::quantized` says what they hold.
//
// FORMAT is a constant: 0 for q8_0, 1 for q6_k, 2 for q5_k, 3 for q4_k. Blocks begin at even bytes, so words are put
// together from two where they do not lie on their own.

// The blocks of all rows, in words.
@group(0) @binding(1) var<storage, read> weights: array<u32>;

// Values that are decoded at once, under one scale.
const PART = 16u;

// What 16 values are made of: whole numbers of which each is `scale q - minimum`.
struct Part {
    q: array<i32, 16>,
    scale: f32,
    minimum: f32,
}

// Bytes and parts of a block.
fn block_bytes() -> u32 {
    if FORMAT == 0u { return 34u; }
    if FORMAT == 1u { return 210u; }
    if FORMAT == 2u { return 176u; }
    return 144u;
}
fn block_parts() -> u32 {
    if FORMAT == 0u { return 2u; }
    return 16u;
}

fn byte_at(at: u32) -> u32 {
    return (weights[at / 4u] >> (8u * (at % 4u))) & 255u;
}

// The same with a sign.
fn signed_byte_at(at: u32) -> i32 {
    return i32(byte_at(at) << 24u) >> 24u;
}

// A 16-bit float at an even byte.
fn half_at(at: u32) -> f32 {
    return bitcast<f32>(float_of((weights[at / 4u] >> (8u * (at % 4u))) & 65535u));
}

// Four bytes from an even one on.
fn word_at(at: u32) -> u32 {
    let i = at / 4u;
    if at % 4u == 0u { return weights[i]; }
    return (weights[i] >> 16u) | (weights[i + 1u] << 16u);
}

// Part `part` of the block that begins at byte `block`.
fn decode(block: u32, part: u32) -> Part {
    var result: Part;
    if FORMAT == 0u {
        result.scale = half_at(block);
        for (var i = 0u; i < 16u; i += 1u) {
            result.q[i] = signed_byte_at(block + 2u + 16u * part + i);
        }
        return result;
    }
    if FORMAT == 1u {
        result.scale = half_at(block + 208u) * f32(signed_byte_at(block + 192u + part));
        // Of each half of eight parts, two share bytes of lower bits, four those of upper bits.
        let half = part / 8u;
        let quarter = part % 8u / 2u;
        let at = 16u * (part % 2u);
        let low = block + 64u * half + 32u * (quarter % 2u) + at;
        let high = block + 128u + 32u * half + at;
        for (var i = 0u; i < 16u; i += 4u) {
            let lower = word_at(low + i) >> (4u * (quarter / 2u));
            let upper = word_at(high + i) >> (2u * quarter);
            for (var k = 0u; k < 4u; k += 1u) {
                result.q[i + k] = i32(((lower >> (8u * k)) & 15u) | (((upper >> (8u * k)) & 3u) << 4u)) - 32;
            }
        }
        return result;
    }
    // Scales and minima of 6 bits; of the last four groups two bits stand apart.
    let j = part / 2u;
    let at = 16u * (part % 2u);
    let scales = block + 4u;
    var scale = byte_at(scales + j) & 63u;
    var minimum = byte_at(scales + j + 4u) & 63u;
    if j >= 4u {
        let both = byte_at(scales + j + 4u);
        scale = (both & 15u) | ((byte_at(scales + j - 4u) >> 6u) << 4u);
        minimum = (both >> 4u) | ((byte_at(scales + j) >> 6u) << 4u);
    }
    result.scale = half_at(block) * f32(scale);
    result.minimum = half_at(block + 2u) * f32(minimum);
    let low = block + block_bytes() - 128u + 32u * (j / 2u) + at;
    for (var i = 0u; i < 16u; i += 4u) {
        let lower = word_at(low + i) >> (4u * (j % 2u));
        var fifth = 0u;
        if FORMAT == 2u { fifth = word_at(block + 16u + at + i) >> j; }
        for (var k = 0u; k < 4u; k += 1u) {
            result.q[i + k] = i32(((lower >> (8u * k)) & 15u) | (((fifth >> (8u * k)) & 1u) << 4u));
        }
    }
    return result;
}
