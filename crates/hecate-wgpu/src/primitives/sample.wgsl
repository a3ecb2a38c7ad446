// Drawing tokens: what `Cut::draw` of `hecate-core` defines, number by number. A workgroup has a text, an invocation four lanes
// of tokens. Numbers of 64 bits are two words, the lower first.

// Defined in `sample.rs`.
@group(0) @binding(0) var<uniform> args: SampleArgs;
// [B,V]
@group(0) @binding(1) var<storage, read> scores: array<f32>;
// [B,3]: a seed of two words, and the number of draws
@group(0) @binding(2) var<storage, read> streams: array<u32>;
// [B]
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;
// [B,3]: one draw on
@group(0) @binding(4) var<storage, read_write> next: array<u32>;

const LANES: u32 = 1024u;
const INVOCATIONS: u32 = 256u;
const OWN: u32 = 4u;
// Level of a token without weight.
const NEVER: u32 = 0xffffffffu;

// A number of tokens, and their weight.
struct Sum {
    count: u32,
    mass: vec2<u32>,
}

// Those of an invocation's own lanes.
var<private> own_lanes: array<Sum, OWN>;
// A number an invocation.
var<workgroup> sums: array<Sum, INVOCATIONS>;
var<workgroup> counts: array<atomic<u32>, INVOCATIONS>;
// What all have to know.
var<workgroup> total: Sum;
var<workgroup> largest: vec2<u32>;
var<workgroup> found: vec2<u32>;
var<workgroup> tops: array<vec2<u32>, INVOCATIONS>;

// a + b of 64-bit integers, the lower word first.
fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

// Adds the counts and the masses of two sets of tokens.
fn both(a: Sum, b: Sum) -> Sum {
    return Sum(a.count + b.count, plus(a.mass, b.mass));
}

// a - b of 64-bit integers.
fn minus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

// a < b of 64-bit integers.
fn less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// The whole product of two words, by halves of them.
fn times(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return vec2(right << 16u | (low & 0xffffu), (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u));
}

// A part of a whole under 2⁶², in parts of 2³².
fn share(whole: vec2<u32>, part: u32) -> vec2<u32> {
    return plus(times(whole.y, part), vec2(times(whole.x, part).y, 0u));
}

// 2³¹ at level 0, half of it 2²⁴ levels further: 2⁻ᶠ with alternating signs.
fn weight(level: u32) -> u32 {
    if level == NEVER {
        return 0u;
    }
    let fraction = level << 8u;
    var power = 0x012e5362u - times(fraction, 0x001f1256u).y;
    power = 0x07150107u - times(fraction, power).y;
    power = 0x1ebec46du - times(fraction, power).y;
    power = 0x58b90472u - times(fraction, power).y;
    power = 0x80000000u - times(fraction, power).y;
    return power >> (level >> 24u);
}

// Two random words of a key and a counter, the first of them: Threefry-2x32 with 20 rounds, as `threefry` of `hecate-core`.
fn random_word(key: vec2<u32>, counter: vec2<u32>) -> u32 {
    var keys = array<u32, 3>(key.x, key.y, 0x1BD11BDAu ^ key.x ^ key.y);
    var rotations = array<u32, 8>(13u, 15u, 26u, 6u, 17u, 29u, 16u, 24u);
    var x = counter.x + keys[0];
    var y = counter.y + keys[1];
    for (var n = 1u; n < 6u; n++) {
        // Four rounds, then the key once more.
        for (var i = 0u; i < 4u; i++) {
            let turn = rotations[(4u * n - 4u + i) % 8u];
            x += y;
            y = ((y << turn) | (y >> (32u - turn))) ^ x;
        }
        x += keys[n % 3u];
        y += keys[(n + 1u) % 3u] + n;
    }
    return x;
}

// Level of a token; −∞ is looked at by its bits.
fn level_of(half: f32, score: f32) -> u32 {
    let distance = half - 0.5 * score;
    if bitcast<u32>(score) == 0xff800000u || !(distance < args.limit) {
        return NEVER;
    }
    return u32(distance * args.scale);
}

// Whether a token, level and number, comes before another.
fn comes_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x < b.x || (a.x == b.x && a.x != NEVER && a.y < b.y);
}

// Adds a token to its lane where it comes before `bound`.
fn add_own(row: u32, half: f32, first: u32, lane: u32, bound: vec2<u32>) {
    let i = first + lane;
    if i < args.vocabulary {
        let own = vec2(level_of(half, scores[row + i]), i);
        if comes_before(own, bound) {
            own_lanes[lane] = both(own_lanes[lane], Sum(1u, vec2(weight(own.x), 0u)));
        }
    }
}

// Tokens of all invocations before `bound`: those of an invocation's own lanes stay in `own_lanes`, and `sums` has what it and
// those before it have. Loops are short, since some drivers end long ones.
fn ahead(row: u32, half: f32, local: u32, bound: vec2<u32>) -> Sum {
    for (var lane = 0u; lane < OWN; lane++) {
        own_lanes[lane] = Sum(0u, vec2(0u));
    }
    // An invocation's lanes lie side by side, so one round has a token of each.
    for (var first = OWN * local; first < args.vocabulary; first += LANES) {
        add_own(row, half, first, 0u, bound);
        add_own(row, half, first, 1u, bound);
        add_own(row, half, first, 2u, bound);
        add_own(row, half, first, 3u, bound);
    }
    var own = own_lanes[0];
    for (var lane = 1u; lane < OWN; lane++) {
        own = both(own, own_lanes[lane]);
    }
    workgroupBarrier();
    sums[local] = own;
    // Every round doubles how many invocations a sum is of.
    for (var reach = 1u; reach < INVOCATIONS; reach *= 2u) {
        workgroupBarrier();
        var before = Sum(0u, vec2(0u));
        if local >= reach { before = sums[local - reach]; }
        workgroupBarrier();
        sums[local] = both(before, sums[local]);
    }
    workgroupBarrier();
    if local == 0u { total = sums[INVOCATIONS - 1u]; }
    return workgroupUniformLoad(&total);
}

// The level of the `top_k`-th token, eight bits at a time: tokens that agree in the bits before are counted by the next ones.
fn level_of_last(row: u32, half: f32, local: u32) -> u32 {
    var level = 0u;
    var wanted = args.top_k;
    for (var digit = 4u; digit > 0u; digit--) {
        let shift = 8u * (digit - 1u);
        workgroupBarrier();
        atomicStore(&counts[local], 0u);
        workgroupBarrier();
        for (var i = local; i < args.vocabulary; i += INVOCATIONS) {
            let own = level_of(half, scores[row + i]);
            // Shifts of 32 are none in WGSL, so the bits before the first eight are compared apart.
            if own != NEVER && (digit == 4u || (own >> shift) >> 8u == level) {
                atomicAdd(&counts[(own >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if local == 0u {
            var place = 0u;
            var left = wanted;
            for (; place < 255u; place++) {
                let count = atomicLoad(&counts[place]);
                if left <= count { break; }
                left -= count;
            }
            found = vec2(place, left);
        }
        let last = workgroupUniformLoad(&found);
        level = (level << 8u) | last.x;
        wanted = last.y;
    }
    return level;
}

// The weight of the first `top_k` tokens; of all where that is 0.
fn kept(row: u32, half: f32, local: u32) -> vec2<u32> {
    let all = ahead(row, half, local, vec2(NEVER, 0u));
    if args.top_k == 0u || all.count <= args.top_k {
        return all.mass;
    }
    let level = level_of_last(row, half, local);
    let part = ahead(row, half, local, vec2(level + 1u, 0u));
    return minus(part.mass, times(part.count - args.top_k, weight(level)));
}

// The token before `bound` whose interval of the weights, lane by lane, holds `goal`: the invocation that has it looks for it.
// `sums` and `own_lanes` are as `ahead` left them.
fn find(row: u32, half: f32, local: u32, bound: vec2<u32>, goal: vec2<u32>) -> vec2<u32> {
    var start = vec2(0u);
    if local > 0u { start = sums[local - 1u].mass; }
    if !less(goal, start) && less(goal, sums[local].mass) {
        var left = minus(goal, start);
        var lane = 0u;
        while !less(left, own_lanes[lane].mass) {
            left = minus(left, own_lanes[lane].mass);
            lane++;
        }
        for (var i = OWN * local + lane; i < args.vocabulary; i += LANES) {
            let own = vec2(level_of(half, scores[row + i]), i);
            if comes_before(own, bound) {
                let weighs = vec2(weight(own.x), 0u);
                if less(left, weighs) {
                    found = own;
                    break;
                }
                left = minus(left, weighs);
            }
        }
    }
    return workgroupUniformLoad(&found);
}

// The largest score as a number that grows with it, and the complement of its number; all ones for NaN.
fn top(row: u32, local: u32) -> vec2<u32> {
    var best = vec2(0u);
    for (var i = local; i < args.vocabulary; i += INVOCATIONS) {
        let bits = bitcast<u32>(scores[row + i]);
        var own = vec2(~i, select(bits | 0x80000000u, ~bits, bits >> 31u == 1u));
        if is_nan(scores[row + i]) {
            own = vec2(0xffffffffu);
        }
        if less(best, own) { best = own; }
    }
    tops[local] = best;
    workgroupBarrier();
    if local == 0u {
        for (var i = 1u; i < INVOCATIONS; i++) {
            if less(best, tops[i]) { best = tops[i]; }
        }
        largest = best;
    }
    return workgroupUniformLoad(&largest);
}

// A token, or one of core's numbers in its place: NaN, then +∞, then −∞ alone.
fn drawn(number: u32, local: u32) -> u32 {
    let row = number * args.vocabulary;
    let best = top(row, local);
    if best.x == 0xffffffffu && best.y == 0xffffffffu { return 0xffffffffu; }
    if best.y == 0xff800000u { return 0xfffffffeu; }
    if best.y == 0x007fffffu { return 0xfffffffdu; }
    if args.greedy == 1u { return ~best.x; }
    let half = 0.5 * scores[row + ~best.x];
    var wanted = vec2(0xffffffffu);
    if args.top_p != 0u {
        wanted = share(kept(row, half, local), args.top_p);
        if wanted.x == 0u && wanted.y == 0u { wanted.x = 1u; }
    }
    let key = vec2(streams[3u * number], streams[3u * number + 1u]);
    let drawn_before = streams[3u * number + 2u];
    var bound = vec2(NEVER, 0u);
    var all = ahead(row, half, local, bound);
    // What is not kept bounds the next round.
    for (var round = 0u;; round++) {
        let word = random_word(key, vec2(drawn_before, round));
        bound = find(row, half, local, bound, share(all.mass, word));
        all = ahead(row, half, local, bound);
        if (args.top_k == 0u || all.count < args.top_k) && less(all.mass, wanted) { return bound.y; }
    }
    return 0u;
}

// tokens[n] = a token drawn from text n's scores; `next` has the random streams with their counters moved on.
@compute @workgroup_size(256)
fn sample(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    // Workgroups after the last text do its work again, for nothing.
    let number = min(group_index(group), args.batch - 1u);
    let token = drawn(number, local);
    if local == 0u { tokens[number] = token; }
    if local < 3u { next[3u * number + local] = streams[3u * number + local] + local / 2u; }
}
