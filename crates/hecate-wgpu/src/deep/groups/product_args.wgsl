// What products of matrices are told, whichever way they go. Places are counted from the start of a memory's part of `workspace`.

// Defined in `product.rs`.
@group(0) @binding(0) var<uniform> args: ProductArgs;
@group(0) @binding(1) var<storage, read_write> workspace: array<f32>;

// No place.
const NOTHING: u32 = 0u;

// Where the memory's part of `workspace` begins.
var<private> base: u32;
