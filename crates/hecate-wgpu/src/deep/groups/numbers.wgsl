// Numbers that a memory has for each token of its group, one kind after another; `places.rs` counts them.

// Gates θ, δ; then a, η and the recurrence that they make.
// (X; S) becomes (a X + m S; s S), and of a write Z it takes (x Z; y Z).
const THETA: u32 = 0u;
const DELTA: u32 = 1u;
// `A` alone is what a left factor is called among cooperative matrices.
const GATE_A: u32 = 2u;
const ETA: u32 = 3u;
const M: u32 = 4u;
const S: u32 = 5u;
const X: u32 = 6u;
const Y: u32 = 7u;
// After each token X is A X + B S of the first state, and S is E S.
const ALL_A: u32 = 8u;
const ALL_B: u32 = 9u;
const ALL_E: u32 = 10u;
// A, B and 1 - A as each token reads them; where weights are an image of the state, 1 - a is the last.
const READ_A: u32 = 11u;
const READ_B: u32 = 12u;
const READ_REST: u32 = 13u;
// How much of each write X and S have after the group; s of (94).
const LAST_C: u32 = 14u;
const LAST_E: u32 = 15u;
const SHRINK: u32 = 16u;
// Gradients of READ_A, READ_B, LAST_C, LAST_E, θ and δ, and of a and η as far as the first state is concerned.
const D_READ_A: u32 = 17u;
const D_READ_B: u32 = 18u;
const D_LAST_C: u32 = 19u;
const D_LAST_E: u32 = 20u;
const D_THETA: u32 = 21u;
const D_DELTA: u32 = 22u;
const D_A: u32 = 23u;
const D_ETA: u32 = 24u;
// s of the layer norm of predictions; `mapped.wgsl` has the kinds between.
const DEVIATION: u32 = 37u;
// 1 - A after each token.
const ALL_REST: u32 = 38u;
