// Frozen groups of memories whose weights are an image of the state: what all kernels of these share.
//
// Inner gradients are products, as where memories decay. Reads are of an image of every token's state, which is no sum: so
// tokens go one after another, but columns of a state by themselves (`sweep.wgsl`). What (54) takes of a whole matrix, its
// norm, is one factor of what was read, and comes afterwards.

// Rows of a workgroup that is no sweep's, and lists by such slabs: largest elements of the state and of the anchor, sums of powers, inner products of weights with gradients.
const SLAB: u32 = 16u;
const TOP: u32 = 0u;
const FAR: u32 = 1u;
const SUM: u32 = 2u;
const ALONG: u32 = 3u;

// Numbers by token, of the first layer and then of the second: the largest product of a key and a value; σ, n and f of the
// state that is read (`images.wgsl`); what its gradients are multiplied by.
const REACH: u32 = 25u;
const UNIT: u32 = 27u;
const NORM_OF: u32 = 29u;
const FACTOR: u32 = 31u;
const SLOPE: u32 = 33u;
const SHARED: u32 = 35u;

// Of distributions: the mean of what the last layer is asked, where a norm is behind it. Columns have one sum, so all outputs have
// the same of the mean; rounded sums differ a little, and that may be all by which a norm tells outputs apart.
const MEAN: u32 = NORM_OF;

// What a sweep leaves of a number that invocations add up.
const PARTS: u32 = 8u;

// The layer in work.
var<private> own_layer: u32;
var<private> layer: LayerPlaces;

// Makes layer `number`, 0 or 1, the one in work.
fn begin_layer(number: u32) {
    own_layer = number;
    layer = plan.layers[number];
}

// Whether queries of the layer have no mean. A group's first state, as it is read before its write, need be no distribution.
fn centres(t: u32) -> bool {
    return RETENTION == KL && own_layer == 1u && args.cell.hidden != 0u && args.cell.norm != 0u && (AFTER == 1u || t > 0u);
}

// Number `which` of token t in this layer.
fn of_layer(which: u32, t: u32) -> f32 {
    return number(which + own_layer, t);
}
