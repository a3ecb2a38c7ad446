// Blocks of quantized matrices, byte for byte as ggml has them; `hecate_core::quantized` says what they hold.
//
// FORMAT is a constant: 0 for q8_0, 1 for q6_k, 2 for q5_k, 3 for q4_k. Blocks begin at even bytes, so words are put
// together from two where they do not lie on their own.

// The blocks of all rows, in words.
@group(0) @binding(2) var<storage, read> weights: array<u32>;

// Values that are decoded at once, under one scale.
const PART = 16u;

// What 16 values are made of: whole numbers, four in each column, of which each is `scale q - minimum`.
struct Part {
    q: mat4x4<f32>,
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
// Returns the parts of 16 values in a block.
fn block_parts() -> u32 {
    if FORMAT == 0u { return 2u; }
    return 16u;
}

// Returns byte `at` of the weights.
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

// The bytes of a word, of each the bits of `mask`.
fn bytes_of(word: u32, mask: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(mask);
}

// Four numbers of a part, from number `i` on.
fn quants(block: u32, part: u32, i: u32) -> vec4<f32> {
    if FORMAT == 0u {
        let signed = vec4<i32>(vec4<u32>(word_at(block + 2u + PART * part + i)) << vec4<u32>(24u, 16u, 8u, 0u));
        return vec4<f32>(signed >> vec4<u32>(24u));
    }
    let at = PART * (part % 2u) + i;
    if FORMAT == 1u {
        // Of each half of eight parts, two share bytes of lower bits, four those of upper bits.
        let half = part / 8u;
        let quarter = part % 8u / 2u;
        let lower = word_at(block + 64u * half + 32u * (quarter % 2u) + at) >> (4u * (quarter / 2u));
        let upper = word_at(block + 128u + 32u * half + at) >> (2u * quarter);
        return vec4<f32>(bytes_of(lower, 15u) | (bytes_of(upper, 3u) << vec4<u32>(4u))) - 32.0;
    }
    let j = part / 2u;
    let lower = bytes_of(word_at(block + block_bytes() - 128u + 32u * (j / 2u) + at) >> (4u * (j % 2u)), 15u);
    if FORMAT == 3u { return vec4<f32>(lower); }
    let fifth = bytes_of(word_at(block + 16u + at) >> j, 1u);
    return vec4<f32>(lower | (fifth << vec4<u32>(4u)));
}

// Scale and minimum of a part.
fn scales(block: u32, part: u32) -> vec2<f32> {
    if FORMAT == 0u { return vec2<f32>(half_at(block), 0.0); }
    if FORMAT == 1u { return vec2<f32>(half_at(block + 208u) * f32(signed_byte_at(block + 192u + part)), 0.0); }
    // Scales and minima of 6 bits; of the last four groups two bits stand apart.
    let j = part / 2u;
    let at = block + 4u + j;
    var scale = byte_at(at) & 63u;
    var minimum = byte_at(at + 4u) & 63u;
    if j >= 4u {
        let both = byte_at(at + 4u);
        scale = (both & 15u) | ((byte_at(at - 4u) >> 6u) << 4u);
        minimum = (both >> 4u) | ((byte_at(at) >> 6u) << 4u);
    }
    return vec2<f32>(half_at(block) * f32(scale), half_at(block + 2u) * f32(minimum));
}

// Part `part` of row `row` of a matrix whose rows have `parts`.
fn decode(row: u32, parts: u32, part: u32) -> Part {
    let block = (row * (parts / block_parts()) + part / block_parts()) * block_bytes();
    let i = part % block_parts();
    let factors = scales(block, i);
    // Written out, because loops come with bounds that keep compilers from doing so.
    let q = mat4x4<f32>(quants(block, i, 0u), quants(block, i, 4u), quants(block, i, 8u), quants(block, i, 12u));
    return Part(q, factors.x, factors.y);
}
