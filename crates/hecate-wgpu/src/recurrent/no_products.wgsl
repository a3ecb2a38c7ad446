// For rules without phases of the kind PRODUCT.

// A phase of the kind PRODUCT would take no round.
fn product_rounds(shape: vec3<u32>) -> u32 {
    return 0u;
}
// Never called with work to do.
fn load_terms(phase: u32, shape: vec3<u32>, round_at: u32) {}
// Never called with work to do.
fn add_terms(phase: u32, shape: vec3<u32>, round_at: u32) {}
