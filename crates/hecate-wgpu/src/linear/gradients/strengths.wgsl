// Sums over a token's values. dv = w Λ, dw = Λ·v, dr = -Λ·p.
//
// (25): the gradients of values, of w and of r.

@group(0) @binding(2) var<storage, read> dz: array<f32>;         // [rows,H,V]: Λ
@group(0) @binding(3) var<storage, read> targets: array<f32>;    // [rows,H,V]: v
@group(0) @binding(4) var<storage, read> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(5) var<storage, read_write> dv: array<f32>;   // [rows,H,V]
@group(0) @binding(6) var<storage, read_write> dw: array<f32>;   // [rows,H]
@group(0) @binding(7) var<storage, read_write> dr: array<f32>;   // [rows,H]

// Invocations of a token and head, and tokens of a workgroup.
const SHARE = 16u;
const TOKENS = 16u;

// What each invocation has of dw and dr.
var<workgroup> shares: array<vec2<f32>, SHARE * TOKENS>;

// Sixteen neighbours have one token and head.
@compute @workgroup_size(256)
fn strengths(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let at = group_index(group) * TOKENS + local / SHARE;
    // dw and dr; the last workgroup may have invocations without a token.
    var sums = vec2<f32>();
    if at < args.scalars {
        let w = scalars_of(at).x;
        for (var c = local % SHARE; c < args.value; c += SHARE) {
            let i = at * args.value + c;
            let adjoint = dz[i];
            dv[i] = w * adjoint;
            sums.x += adjoint * targets[i];
            if args.erase != ERASE_NOTHING {
                sums.y -= adjoint * predicted[i];
            }
        }
    }
    shares[local] = sums;
    workgroupBarrier();
    if local % SHARE != 0u || at >= args.scalars {
        return;
    }
    // In their order, so that two runs give the same bits.
    for (var i = 1u; i < SHARE; i++) {
        sums += shares[local + i];
    }
    dw[at] = sums.x;
    dr[at] = sums.y;
}
