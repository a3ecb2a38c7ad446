// For rules without phases of the kind PRODUCT.

fn product_rounds(shape: vec3<u32>) -> u32 {
    return 0u;
}
fn load_terms(phase: u32, shape: vec3<u32>, round_at: u32) {}
fn add_terms(phase: u32, shape: vec3<u32>, round_at: u32) {}
