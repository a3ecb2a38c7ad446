// What a kernel of products is told; `matmul.rs` has its twin.

struct MatmulArgs {
    // m.
    rows: u32,
    // n.
    columns: u32,
    // k.
    inner: u32,
    // Tiles across the columns, and of a product.
    across: u32,
    tiles: u32,
    // Terms of a part, a multiple of 16, and parts of a sum.
    split_depth: u32,
    parts: u32,
    // Workgroups in all: tiles times parts times products.
    groups: u32,
}

@group(0) @binding(0) var<uniform> args: MatmulArgs;
