// The exact chunk form with bfloat16: gradients of what a chunk was given, equations (25)-(32). Chunks are independent:
// each starts from the kept state before it, the kept gradient of the state behind it, Z and Λ.
//
// Keys and queries stay in shared memory. First come the squares, of all value columns: Λ Zᵀ, dO Zᵀ, K Kᵀ, Q Kᵀ, and what
// the masks make of them. Then value columns come again, a slab at a time, while the slab behind is on its way: with M₀
// (and S₀) for dO M₀ᵀ and Λ M₀ᵀ, and with dM (and dS) for Z dMᵀ. So few sums are held at once that two blocks without
// momentum fit a multiprocessor.
//
// Sums over value columns of products with X₀ = K M₀, Q M₀ and K dM are sums over keys of what dQ and dK need anyway:
// Σ_v Λ X₀ = Σ_k K (Λ M₀ᵀ), and so on.
#include "bf16_influence.cuh"

struct Bf16Gradients {
    Linear p;
    const u8* ready;           // [kept,H,READY]
    const u16* kept;           // [kept,H,1 + S,V,K]: states before each chunk
    const u16* kept_grads;     // [kept,H,1 + S,V,K]: gradients of the states behind
    const u16 *written, *solved;  // [rows,H,V]: Z, Λ
    const u16* dout;           // [rows,H,V]
    u16 *dq, *dk;              // [rows,H,K]
    float *log_a, *log_eta, *theta, *beta;  // [rows,H]: gradients of the gates; null where the rule has none
    u32 chunks, unused;        // of the longest sequence
};

// A warp makes 16 ROWS tokens of 32 keys of dQ and dK, and 16 tokens of the squares.
template <u32 KEYS, u32 ROWS, bool S>
struct Gradients {
    static constexpr u32 MATRICES = S ? 2 : 1, GROUPS = KEYS / 32, WARPS = 4 / ROWS * GROUPS, BLOCK = 32 * WARPS;
    static constexpr u32 ROW = KEYS + 8, TOKENS = CHUNK * ROW;
    // Value columns of the squares at once, and of a slab.
    static constexpr u32 WIDTH = KEYS == 64 ? 64 : 128, SLAB = S || KEYS == 256 ? 64 : 32;
    static constexpr u32 WIDE_ROW = WIDTH + 8, WIDE_TILE = CHUNK * WIDE_ROW, THIN = SLAB + 8, THIN_TILE = CHUNK * THIN;
    static constexpr u32 STAGE = 2 * THIN_TILE + SLAB * ROW;  // bfloat16 of a slab
    static constexpr u32 SIDES = 256 / WARPS, SIDE_BLOCKS = SIDES / 16;
    // Factors of (25), by their numbers from OF_ERASE_A on, have gradients that are sums over keys.
    static constexpr u32 FACTORS = 3 * MATRICES;
    static_assert(WARPS == 8 || WARPS == 16, "squares are shared out for these");
    using Square = Sums<SIDES / 8>;

    // [16 ROWS,32] of a warp.
    struct Keys {
        Sums<4> x[ROWS];
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (u32 r = 0; r < ROWS; r++) x[r].clear();
        }
    };

    struct Own {
        Gates gates;
        float sums[GROUPS][FACTORS][CHUNK], dw[CHUNK], dr[CHUNK / SIDES][CHUNK], carried[3][WARPS];
        __align__(16) float numbers[NUMBERS];
        Influence<S> influence;
    };
    static_assert(sizeof(Own) <= (S ? 65 << 10 : 23 << 10), "what the launch has for it");

    const Bf16Gradients& args;
    const Linear& p;
    const Chunk chunk;
    Own& own;
    u16 *k, *q, *stages, *dn, *dg;
    const u32 row, column;
    u32 square_row, square_column;
    u32 fetched, next_matrix, next_column;  // slabs
    Keys dq, dk;

    __device__ __forceinline__ Gradients(const Bf16Gradients& args, u8* shared)
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, blockIdx.x % args.chunks), own(*(Own*)shared),
          row(threadIdx.x / 32 % (4 / ROWS) * 16 * ROWS), column(threadIdx.x / 32 / (4 / ROWS) * 32), fetched(0),
          next_matrix(0), next_column(0) {
        k = (u16*)(shared + sizeof(Own)), q = k + TOKENS, stages = q + TOKENS;
        dn = stages + 2 * STAGE, dg = dn + CHUNK * SIDE;
        // Blocks of squares on and below the diagonal are shared out so that warps that are 4 apart have as much to do.
        const u32 warp = threadIdx.x / 32;
        if (WARPS == 8) square_row = (0x12013320 >> 4 * warp & 3) * 16, square_column = (0xe8 >> warp & 1) * 32;
        else square_row = warp / 4 * 16, square_column = (warp / 4 == 2 ? warp + 3 : warp) % 4 * 16;
    }

    __device__ __forceinline__ const u16* matrix(const u16* of, u32 which) const {
        return of + (chunk.kept * MATRICES + which) * p.key * p.value;
    }

    // Z, Λ and dO, columns from `first`.
    __device__ __forceinline__ void fetch_values(u32 first) const {
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.written, p.value, first, stages, WIDE_ROW, threadIdx.x);
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.solved, p.value, first, stages + WIDE_TILE, WIDE_ROW, threadIdx.x);
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.dout, p.value, first, stages + 2 * WIDE_TILE, WIDE_ROW, threadIdx.x);
        copies_commit();
    }

    // The next slab: dO, Λ and columns of a state, or Z and columns of a state's gradient; rows [SLAB,KEYS].
    __device__ __forceinline__ void fetch_slab() {
        if (next_matrix < 2 * MATRICES) {
            u16* to = stages + fetched % 2 * STAGE;
            const bool state = next_matrix < MATRICES;
            const u16* x = matrix(state ? args.kept : args.kept_grads, next_matrix % MATRICES);
            fetch_rows<SLAB, BLOCK>(p, chunk, state ? args.dout : args.written, p.value, next_column, to, THIN, threadIdx.x);
            if (state && p.erase)
                fetch_rows<SLAB, BLOCK>(p, chunk, args.solved, p.value, next_column, to + THIN_TILE, THIN, threadIdx.x);
            to += 2 * THIN_TILE;
            constexpr u32 STEP = BLOCK / (KEYS / 8);
            const u32 c = threadIdx.x % (KEYS / 8) * 8, v = threadIdx.x / (KEYS / 8);
            #pragma unroll
            for (u32 i = 0; i < SLAB / STEP; i++) {
                const bool inside = next_column + v + i * STEP < p.value && c < p.key;
                const u16* from = inside ? x + (u64)(next_column + v + i * STEP) * p.key + c : x;
                copy_16(to + (v + i * STEP) * ROW + c, from, inside);
            }
            next_column += SLAB;
            if (next_column >= p.value) next_column = 0, next_matrix++;
        }
        copies_commit();
        fetched++;
    }
    // The slab that was fetched last, by all; the one behind it is then on its way.
    __device__ __forceinline__ const u16* slab() {
        copies_wait<0>();
        __syncthreads();
        const u16* at = stages + (fetched + 1) % 2 * STAGE;
        fetch_slab();
        return at;
    }

    // While tiles are on their way.
    __device__ __forceinline__ void read_gates() {
        const u32 t = threadIdx.x;
        if (t < CHUNK) {
            Four of = t < chunk.tokens ? lower(p, gates_of(p, chunk.token(p, t))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
            own.gates[0][t] = of.x, own.gates[1][t] = of.y, own.gates[2][t] = of.z, own.gates[3][t] = of.w;
        }
        for (u32 i = t; i < GROUPS * FACTORS * CHUNK; i += BLOCK) (&own.sums[0][0][0])[i] = 0.0f;
        __syncthreads();
        own.influence.begin(own.gates);
    }

    // Σ x y of eight pairs.
    static __device__ __forceinline__ float inner(uint4 x, uint4 y) {
        float sum = low_half(x.x) * low_half(y.x) + high_half(x.x) * high_half(y.x);
        sum += low_half(x.y) * low_half(y.y) + high_half(x.y) * high_half(y.y);
        sum += low_half(x.z) * low_half(y.z) + high_half(x.z) * high_half(y.z);
        return sum + low_half(x.w) * low_half(y.w) + high_half(x.w) * high_half(y.w);
    }

    // V of a token, for dw of (25): SHARING threads to a token, VALUES runs of 8 columns each.
    static constexpr u32 SHARING = BLOCK / CHUNK, VALUES = WIDTH / 8 / SHARING;
    __device__ __forceinline__ void read_values(u32 first, uint4 (&v)[VALUES]) const {
        const u32 t = threadIdx.x / SHARING;
        #pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            const u32 c = first + (threadIdx.x % SHARING + i * SHARING) * 8;
            v[i].x = v[i].y = v[i].z = v[i].w = 0;
            if (t < chunk.tokens && c < p.value)
                v[i] = *(const uint4*)((const u16*)p.v.data + chunk.token(p, t) * p.value + c);
        }
    }
    __device__ __forceinline__ float strengths(const uint4 (&v)[VALUES]) const {
        const u16* solved = stages + WIDE_TILE + threadIdx.x / SHARING * WIDE_ROW;
        float sum = 0.0f;
        #pragma unroll
        for (u32 i = 0; i < VALUES; i++)
            sum += inner(v[i], *(const uint4*)(solved + (threadIdx.x % SHARING + i * SHARING) * 8));
        return sum;
    }
    // Over the threads of a token.
    static __device__ __forceinline__ float shared_sum(float sum) {
        #pragma unroll
        for (u32 mask = 1; mask < SHARING; mask *= 2) sum += shuffle_xor(sum, mask);
        return sum;
    }

    // x += A Bᵀ, y += C Bᵀ, on and below the diagonal.
    template <u32 DEPTH>
    __device__ __forceinline__ void add_squares(Square& x, Square& y, const u16* a, const u16* c, const u16* b) const {
        if (square_column > square_row) return;
        #pragma unroll
        for (u32 s = 0; s < DEPTH; s += 16) {
            u32 of_a[4], of_c[4], of_b[4];
            left(of_a, a, DEPTH + 8, square_row, s);
            left(of_c, c, DEPTH + 8, square_row, s);
            #pragma unroll
            for (u32 n = 0; n < SIDE_BLOCKS; n++) {
                if (square_column + 16 * n > square_row) continue;
                right(of_b, b, DEPTH + 8, square_column + 16 * n, s);
                multiply_pair(x.x[2 * n], x.x[2 * n + 1], of_a, of_b);
                multiply_pair(y.x[2 * n], y.x[2 * n + 1], of_c, of_b);
            }
        }
    }

    // Everything that is asked for first, the squares, and what comes of them.
    __device__ __forceinline__ void squares() {
        fetch_rows<KEYS, BLOCK>(p, chunk, p.k.data, p.key, 0, k, ROW, threadIdx.x);
        fetch_rows<KEYS, BLOCK>(p, chunk, p.q.data, p.key, 0, q, ROW, threadIdx.x);
        copies_commit();
        fetch_numbers<BLOCK>((const float*)(args.ready + chunk.kept * READY + 4 * SQUARE), own.numbers, threadIdx.x);
        fetch_values(0);
        uint4 v[VALUES];
        read_values(0, v);
        read_gates();
        copies_wait<1>();
        __syncthreads();
        own.influence.join();
        Square n, g, erased, read;  // K Kᵀ, Q Kᵀ, Λ Zᵀ, dO Zᵀ
        n.clear(), g.clear(), erased.clear(), read.clear();
        add_squares<KEYS>(n, g, k, q, k);
        float dw = 0.0f;
        for (u32 first = 0;;) {
            copies_wait<0>();
            __syncthreads();
            add_squares<WIDTH>(erased, read, stages + WIDE_TILE, stages + 2 * WIDE_TILE, stages);
            dw += strengths(v);
            __syncthreads();
            first += WIDTH;
            if (first >= p.value) break;
            fetch_values(first);
            read_values(first, v);
        }
        fetch_slab();
        dw = shared_sum(dw);
        if (threadIdx.x % SHARING == 0) own.dw[threadIdx.x / SHARING] = dw;
        masks(n, g, erased, read);
    }

    // dN + dNᵀ, dG, and dc of (31).
    __device__ __forceinline__ void masks(const Square& n, const Square& g, const Square& erased, const Square& read) {
        const u32 lane = threadIdx.x % 32;
        RowSums rows;
        #pragma unroll
        for (u32 b = 0; b < SIDE_BLOCKS; b++) {
            const u32 first = square_column + 16 * b;
            if (first > square_row) {
                #pragma unroll
                for (u32 i = 0; i < 4; i++)
                    *(u32*)(dg + (square_row + lane / 4 + i / 2 * 8) * SIDE + first + i % 2 * 8 + lane % 4 * 2) = 0;
                continue;
            }
            float of[2][4], of_before[2][4];
            #pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 x = 2 * b + i;
                mask(first + 8 * i, n.x[x], g.x[x], erased.x[x], read.x[x], rows, of[i], of_before[i]);
            }
            own.influence.take(square_row, first, of, of_before);
        }
        const u32 side = square_column / SIDES;
        if (lane % 4 == 0) own.dr[side][square_row + lane / 4] = own.dr[side][square_row + lane / 4 + 8] = 0.0f;
        rows.finish(square_row, own.dr[side]);
    }
    // Of a tile [16,8]; the gradients of c of each token and of the token before are for who asks.
    __device__ __forceinline__ void mask(
        u32 first, const float (&n)[4], const float (&g)[4], const float (&erased)[4], const float (&read)[4], RowSums& rows,
        float (&to)[4], float (&to_before)[4]
    ) {
        const u32 i = square_row + threadIdx.x % 32 / 4, j = first + threadIdx.x % 4 * 2;
        float now[2][2], before[2][2];
        own.influence.at(i, j, now, before);
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 t = i + 8 * h;
            const float r = own.gates[1][t];
            float of_n[2], of_g[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                const u32 x = 2 * h + e;
                const bool is_before = t > j + e, is_now = t >= j + e;
                const float solved = is_before ? erased[x] : 0.0f, c = before[h][e], out = is_now ? read[x] : 0.0f;
                // dP is −r Λ; P has (L ∘ N) Z beside what the first state has.
                const float p_of = solved * n[x], read_before = p.before && is_before ? out : 0.0f;
                rows.add(2 * h, p_of * c);
                of_n[e] = -r * solved * c;
                of_g[e] = p.before ? c * read_before : now[h][e] * out;
                to[x] = p.before ? 0.0f : g[x] * (S ? out : of_g[e]);
                to_before[x] = (g[x] * read_before - r * p_of) * (S ? 1.0f : c);
            }
            const u32 both = pack_bf16(of_n[0], of_n[1]);
            #pragma unroll
            for (u32 e = 0; e < 2; e++)
                if (t >= j + e) dn[t * SIDE + j + e] = dn[(j + e) * SIDE + t] = (u16)(both >> 16 * e);
            *(u32*)(dg + t * SIDE + j) = pack_bf16(of_g[0], of_g[1]);
        }
    }

    // x += rows of tokens [.,16] from column `s` times right factors [16,32].
    static __device__ __forceinline__ void multiply(Sums<4>& x, const u32 (&a)[4], const u32 (&b)[2][4]) {
        multiply_pair(x.x[0], x.x[1], a, b[0]);
        multiply_pair(x.x[2], x.x[3], a, b[1]);
    }
    __device__ __forceinline__ void add_rows(Keys& x, const u16* tokens, u32 s, const u32 (&b)[2][4]) const {
        #pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            u32 a[4];
            left(a, tokens, THIN, row + 16 * r, s);
            multiply(x.x[r], a, b);
        }
    }
    __device__ __forceinline__ void rights(u32 (&b)[2][4], const u16* matrix, u32 s) const {
        right_across(b[0], matrix, ROW, column, s);
        right_across(b[1], matrix, ROW, column + 16, s);
    }

    // to += by ∘ x, or minus that, and the gradient of a factor without its sign: Σ x with.
    __device__ __forceinline__ void add(Keys& to, const Keys& x, const u16* with, u32 factor, bool minus) {
        const u32 lane = threadIdx.x % 32;
        #pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            const u32 i = row + 16 * r + lane / 4;
            RowSums rows;
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const float number = own.numbers[factor * CHUNK + i + 8 * h], by = minus ? -number : number;
                #pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    const u32 of = *(const u32*)(with + (i + 8 * h) * ROW + column + 8 * n + lane % 4 * 2);
                    const float x0 = x.x[r].x[n][2 * h], x1 = x.x[r].x[n][2 * h + 1];
                    rows.add(2 * h, x0 * low_half(of) + x1 * high_half(of));
                    to.x[r].x[n][2 * h] += by * x0;
                    to.x[r].x[n][2 * h + 1] += by * x1;
                }
            }
            rows.finish(row + 16 * r, own.sums[column / 32][factor - OF_ERASE_A]);
        }
    }

    // What the states before the chunk have of dQ and dK.
    __device__ __forceinline__ void add_states() {
        dq.clear(), dk.clear();
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) {
            Keys reads, erases;
            reads.clear(), erases.clear();
            for (u32 first = 0; first < p.value; first += SLAB) {
                const u16* at = slab();
                #pragma unroll
                for (u32 s = 0; s < SLAB; s += 16) {
                    u32 b[2][4];
                    rights(b, at + 2 * THIN_TILE, s);
                    add_rows(reads, at, s, b);
                    if (p.erase) add_rows(erases, at + THIN_TILE, s, b);
                }
            }
            add(dq, reads, q, OF_READ_A + 3 * m, false);
            if (p.erase) add(dk, erases, k, OF_ERASE_A + 3 * m, true);
        }
    }

    // What the squares have of them, (27) and (28).
    __device__ __forceinline__ void add_tokens() {
        #pragma unroll
        for (u32 s = 0; s < CHUNK; s += 16) {
            u32 a[4], b[2][4];
            rights(b, k, s);
            #pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                if (s < row + 16 * ROWS) {
                    left(a, dg, SIDE, row + 16 * r, s);
                    multiply(dq.x[r], a, b);
                }
                if (p.erase) {
                    left(a, dn, SIDE, row + 16 * r, s);
                    multiply(dk.x[r], a, b);
                }
            }
            if (s < row) continue;
            rights(b, q, s);
            #pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                left_across(a, dg, SIDE, row + 16 * r, s);
                multiply(dk.x[r], a, b);
            }
        }
    }

    // Eight columns each of a slab of a state, which was here before.
    static constexpr u32 EACH = SLAB * KEYS / 8 / BLOCK;
    __device__ __forceinline__ void read_state(u32 which, u32 first, uint4 (&x)[EACH]) const {
        #pragma unroll
        for (u32 n = 0; n < EACH; n++) {
            const u32 i = threadIdx.x + n * BLOCK, v = first + i / (KEYS / 8), c = i % (KEYS / 8) * 8;
            x[n].x = x[n].y = x[n].z = x[n].w = 0;
            if (v < p.value && c < p.key) x[n] = *(const uint4*)(matrix(args.kept, which) + (u64)v * p.key + c);
        }
    }
    static __device__ __forceinline__ float inner(const uint4 (&x)[EACH], const u16* slab) {
        float sum = 0.0f;
        #pragma unroll
        for (u32 n = 0; n < EACH; n++) {
            const u32 i = threadIdx.x + n * BLOCK;
            sum += inner(x[n], *(const uint4*)(slab + i / (KEYS / 8) * ROW + i % (KEYS / 8) * 8));
        }
        return sum;
    }

    // What the gradients of the states behind the chunk have of dK; <dM,M₀>, <dM,S₀>, <dS,S₀>.
    __device__ __forceinline__ void add_gradients() {
        float carried[3] = {0.0f, 0.0f, 0.0f};
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) {
            Keys writes;
            writes.clear();
            for (u32 first = 0; first < p.value; first += SLAB) {
                const u16 *at = slab(), *gradient = at + 2 * THIN_TILE;
                uint4 x[EACH], y[EACH];
                read_state(m, first, x);
                if (S && m == 0) read_state(1, first, y);
                #pragma unroll
                for (u32 s = 0; s < SLAB; s += 16) {
                    u32 b[2][4];
                    rights(b, gradient, s);
                    add_rows(writes, at, s, b);
                }
                carried[2 * m] += inner(x, gradient);
                if (S && m == 0) carried[1] += inner(y, gradient);
            }
            add(dk, writes, k, OF_LAST_C + 3 * m, false);
        }
        #pragma unroll
        for (u32 i = 0; i < (S ? 3 : 1); i++) {
            const float sum = warp_sum(carried[i]);
            if (threadIdx.x % 32 == 0) own.carried[i][threadIdx.x / 32] = sum;
        }
    }

    __device__ __forceinline__ void store(const Keys& x, u16* to) const {
        const u32 lane = threadIdx.x % 32, c = column + lane % 4 * 2;
        #pragma unroll
        for (u32 i = 0; i < 2 * ROWS; i++) {
            const u32 t = row + 8 * i + lane / 4;
            if (t >= chunk.tokens) continue;
            u16* at = to + chunk.token(p, t) * p.key + c;
            const Sums<4>& of = x.x[i / 2];
            #pragma unroll
            for (u32 n = 0; n < 4; n++)
                if (c + 8 * n < p.key) *(u32*)(at + 8 * n) = pack_bf16(of.x[n][i % 2 * 2], of.x[n][i % 2 * 2 + 1]);
        }
    }

    __device__ __forceinline__ float total(u32 factor, u32 t) const {
        float sum = 0.0f;
        #pragma unroll
        for (u32 group = 0; group < GROUPS; group++) sum += own.sums[group][factor - OF_ERASE_A][t];
        return sum;
    }
    __device__ __forceinline__ float total_carried(u32 i) const {
        float sum = 0.0f;
        #pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) sum += own.carried[i][warp];
        return sum;
    }
    // What reads and erases give to A (or b) of the state behind token t.
    __device__ __forceinline__ float behind(u32 t, u32 m) const {
        const u32 reader = p.before ? t + 1 : t, n = chunk.tokens;
        float sum = reader < n ? total(OF_READ_A + 3 * m, reader) : 0.0f;
        if (t + 1 < n) sum -= own.gates[1][t + 1] * total(OF_ERASE_A + 3 * m, t + 1);
        return sum;
    }

    // All sums of one token a thread.
    __device__ __forceinline__ void join_tokens() {
        const u32 t = threadIdx.x;
        float dr = own.influence.a_of(t) * total(OF_ERASE_A, t);
        if (S) dr += own.influence.b_of(t) * total(OF_ERASE_B, t);
        #pragma unroll
        for (u32 side = 0; side < CHUNK / SIDES; side++) dr += own.dr[side][t];
        own.dr[0][t] = p.erase ? dr : 0.0f;
        const float to_a = behind(t, 0);
        if constexpr (S) {
            own.influence.to_a[t] = to_a, own.influence.to_b[t] = behind(t, 1);
        } else {
            own.influence.finish(t, to_a + (t + 1 == chunk.tokens ? total_carried(0) : 0.0f), total(OF_LAST_C, t));
        }
    }

    __device__ __forceinline__ void gates() {
        __syncthreads();
        const u32 t = threadIdx.x;
        if (t < CHUNK) join_tokens();
        __syncthreads();
        if constexpr (S) {
            if (t < CHUNK) {
                own.influence.back(own.gates, t, chunk.tokens, total(OF_LAST_C, t), total(OF_LAST_E, t));
            } else if (t == CHUNK) {
                const float last[3] = {total_carried(0), total_carried(1), total_carried(2)};
                own.influence.back_to_first(own.gates, chunk.tokens, last);
            }
            __syncthreads();
        }
        write_gates();
    }
    // SHARING threads to a token.
    __device__ __forceinline__ void write_gates() const {
        const u32 i = threadIdx.x / SHARING, part = threadIdx.x % SHARING;
        float da = 0.0f, deta = 0.0f;
        if constexpr (S) {
            if (i < chunk.tokens) {
                const float2 both = own.influence.template gradient<SHARING>(i, part);
                da = both.x, deta = both.y;
            }
        } else {
            da = own.influence.template gradient<SHARING>(i, part);
        }
        da = shared_sum(da), deta = shared_sum(deta);
        if (part != 0 || i >= chunk.tokens) return;
        const Four of = {own.gates[0][i], own.gates[1][i], own.gates[2][i], own.gates[3][i]};
        GateGrads grads = raise(p, of, own.dw[i], -own.dr[0][i], S ? da : 0.0f, deta);
        const u64 at = chunk.token(p, i);
        args.log_a[at] = S ? grads.log_a : grads.log_a + da;
        args.theta[at] = grads.theta;
        if (args.log_eta) args.log_eta[at] = grads.log_eta;
        if (args.beta) args.beta[at] = grads.beta;
    }
};

template <u32 KEYS, u32 ROWS, bool S>
__device__ __forceinline__ void gradients(const Bf16Gradients& args, u8* shared) {
    Gradients<KEYS, ROWS, S> of(args, shared);
    if (of.chunk.tokens == 0) return;
    of.squares();
    of.add_states();
    of.add_tokens();
    of.store(of.dq, args.dq);
    of.add_gradients();
    of.store(of.dk, args.dk);
    of.gates();
}

#define GRADIENTS(name, KEYS, ROWS, S, THREADS, BLOCKS)    \
    KERNEL(name, Bf16Gradients, THREADS, BLOCKS) {       \
        DYNAMIC_SHARED(u8, shared);                      \
        gradients<KEYS, ROWS, S>(args, shared);          \
    }

GRADIENTS(bf16_gradients_64, 64, 1, false, 256, 2)
GRADIENTS(bf16_gradients_128, 128, 2, false, 256, 2)
GRADIENTS(bf16_gradients_256, 256, 2, false, 512, 1)
GRADIENTS(bf16_gradients_64_momentum, 64, 1, true, 256, 1)
GRADIENTS(bf16_gradients_128_momentum, 128, 1, true, 512, 1)
