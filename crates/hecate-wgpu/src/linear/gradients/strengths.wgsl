// Sums over a token's values. dv = w Λ, dw = Λ·v, dr = -Λ·p.
//
// (25): the gradients of values, of w and of r. Where nothing is erased a token writes z = w v, without a scan.

@group(0) @binding(2) var<storage, read> dz: array<f32>;         // [rows,H,V]: Λ
@group(0) @binding(3) var<storage, read> targets: array<f32>;    // [rows,H,V]: v
@group(0) @binding(4) var<storage, read> predicted: array<f32>;  // [rows,H,V]: p, of rules that erase
@group(0) @binding(5) var<storage, read_write> dv: array<f32>;   // [rows,H,V]
@group(0) @binding(6) var<storage, read_write> dw: array<f32>;   // [rows,H]
@group(0) @binding(7) var<storage, read_write> dr: array<f32>;   // [rows,H]
@group(0) @binding(8) var<storage, read_write> z: array<f32>;    // [rows,H,V]

// A workgroup has 256 invocations.
// Invocations of a token and head, and tokens of a workgroup.
const SHARE = 16u;
const TOKENS = 16u;

// What each invocation has of dw and dr: sums over every sixteenth column.
// All of a token's invocations are neighbours, so that they read a row side by side.
var<workgroup> shares: array<vec2<f32>, SHARE * TOKENS>;

// Sixteen neighbours have one token and head. Chunks do not matter here: all tokens of a call go at once.
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
            if args.erase == ERASE_NOTHING {
                z[i] = w * targets[i];
            } else {
                sums.y -= adjoint * predicted[i];
            }
        }
    }
    // Nothing of a token that is not there.
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
