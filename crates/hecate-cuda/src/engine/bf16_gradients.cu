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
#include "bf16_gates.cuh"

// A warp makes 16 ROWS tokens of 32 keys of dQ and dK, and 16 tokens of the squares.
template <u32 KEYS, u32 ROWS, bool S>
struct Gradients {
    static constexpr u32 MATRICES = S ? 2 : 1, GROUPS = KEYS / 32, WARPS = 4 / ROWS * GROUPS, BLOCK = 32 * WARPS;
    static constexpr u32 ROW = KEYS + 8, TILE = CHUNK * ROW;
    // Value columns of the squares at once; columns of a square that are a warp's.
    static constexpr u32 WIDTH = KEYS == 64 ? 64 : 128, WIDE_TILE = CHUNK * (WIDTH + 8), SIDES = 256 / WARPS;
    static_assert(WARPS == 8 || WARPS == 16, "squares are shared out for these");
    using Square = Sums<SIDES / 8>;
    using Slab = Slabs<KEYS, BLOCK, MATRICES>;
    using Own = Tokens<GROUPS, CHUNK / SIDES, WARPS, S>;
    static_assert(sizeof(Own) <= (S ? 65 << 10 : 23 << 10), "what the launch has for it");
    static constexpr u32 SLAB = Slab::SLAB, THIN = Slab::THIN, THIN_TILE = Slab::THIN_TILE;

    // [16 ROWS,32] of a warp.
    struct Keys {
        Sums<4> x[ROWS];
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (u32 r = 0; r < ROWS; r++) x[r].clear();
        }
    };

    const Bf16Gradients& args;
    const Linear& p;
    const Chunk chunk;
    Own& tokens;
    u16 *k, *q, *wide, *dn, *dg;
    Slab slabs;
    const u32 row, column;
    u32 square_row, square_column;
    Keys dq, dk;

    __device__ __forceinline__ Gradients(const Bf16Gradients& args, u8* shared)
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, blockIdx.x % args.chunks), tokens(*(Own*)shared),
          k((u16*)(shared + sizeof(Own))), q(k + TILE), wide(q + TILE), dn(wide + 2 * Slab::STAGE), dg(dn + CHUNK * SIDE),
          slabs(args, chunk, wide), row(threadIdx.x / 32 % (4 / ROWS) * 16 * ROWS), column(threadIdx.x / 32 / (4 / ROWS) * 32) {
        // Blocks on and below the diagonal are shared out so that warps that are 4 apart have about as much to do.
        const u32 warp = threadIdx.x / 32;
        if (WARPS == 8) square_row = (0x12013320 >> 4 * warp & 3) * 16, square_column = (0xe8 >> warp & 1) * 32;
        else square_row = warp / 4 * 16, square_column = (warp / 4 == 2 ? warp + 3 : warp) % 4 * 16;
    }

    // Z, Λ and dO, columns from `first`: where later slabs, dN and dG are.
    __device__ __forceinline__ void fetch_values(u32 first) const {
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.written, p.value, first, wide, WIDTH + 8, threadIdx.x);
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.solved, p.value, first, wide + WIDE_TILE, WIDTH + 8, threadIdx.x);
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.dout, p.value, first, wide + 2 * WIDE_TILE, WIDTH + 8, threadIdx.x);
        copies_commit();
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
            for (u32 n = 0; n < SIDES / 16; n++) {
                if (square_column + 16 * n > square_row) continue;
                right(of_b, b, DEPTH + 8, square_column + 16 * n, s);
                multiply_pair(x.x[2 * n], x.x[2 * n + 1], of_a, of_b);
                multiply_pair(y.x[2 * n], y.x[2 * n + 1], of_c, of_b);
            }
        }
    }

    // All that is read for the squares, the squares, and what comes of them.
    __device__ __forceinline__ void squares() {
        fetch_rows<KEYS, BLOCK>(p, chunk, p.k.data, p.key, 0, k, ROW, threadIdx.x);
        fetch_rows<KEYS, BLOCK>(p, chunk, p.q.data, p.key, 0, q, ROW, threadIdx.x);
        copies_commit();
        fetch_numbers<BLOCK>((const float*)(args.ready + chunk.kept * READY + 4 * SQUARE), tokens.numbers, threadIdx.x);
        fetch_values(0);
        slabs.ask();
        tokens.begin(p, chunk);
        copies_wait<1>();
        __syncthreads();
        tokens.influence.join();
        Square n, g, erased, read;  // K Kᵀ, Q Kᵀ, Λ Zᵀ, dO Zᵀ
        n.clear(), g.clear(), erased.clear(), read.clear();
        add_squares<KEYS>(n, g, k, q, k);
        for (u32 first = 0;;) {
            copies_wait<0>();
            __syncthreads();
            add_squares<WIDTH>(erased, read, wide + WIDE_TILE, wide + 2 * WIDE_TILE, wide);
            __syncthreads();
            first += WIDTH;
            if (first >= p.value) break;
            fetch_values(first);
        }
        slabs.fetch();
        masks(n, g, erased, read);
    }

    // dN + dNᵀ, dG, and dc of (31).
    __device__ __forceinline__ void masks(const Square& n, const Square& g, const Square& erased, const Square& read) {
        const u32 lane = threadIdx.x % 32;
        float* dr = tokens.dr[square_column / SIDES];
        RowSums rows;
        #pragma unroll
        for (u32 b = 0; b < SIDES / 16; b++) {
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
                const u32 x = 2 * b + i, at = first + 8 * i;
                if (first == square_row) mask<true>(at, n.x[x], g.x[x], erased.x[x], read.x[x], rows, of[i], of_before[i]);
                else mask<false>(at, n.x[x], g.x[x], erased.x[x], read.x[x], rows, of[i], of_before[i]);
            }
            tokens.influence.take(square_row, first, of, of_before);
        }
        if (lane % 4 == 0) dr[square_row + lane / 4] = dr[square_row + lane / 4 + 8] = 0.0f;
        rows.finish(square_row, dr);
    }
    // Of a tile [16,8]; the gradients of c of each token and of the token before are for who asks.
    template <bool DIAGONAL>
    __device__ __forceinline__ void mask(
        u32 first, const float (&n)[4], const float (&g)[4], const float (&erased)[4], const float (&read)[4], RowSums& rows,
        float (&to)[4], float (&to_before)[4]
    ) {
        const u32 i = square_row + threadIdx.x % 32 / 4, j = first + threadIdx.x % 4 * 2;
        float now[2][2], before[2][2];
        tokens.influence.at(i, j, now, before);
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 t = i + 8 * h;
            const float r = tokens.gates[1][t];
            float of_n[2], of_g[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                const u32 x = 2 * h + e;
                const bool writes = !DIAGONAL || t > j + e, reads = !DIAGONAL || t >= j + e + p.before;
                const float c = before[h][e], seen = p.before ? c : now[h][e];
                const float solved = writes ? erased[x] : 0.0f, out = reads ? read[x] : 0.0f;
                // dP is −r Λ; P has (L ∘ N) Z beside what the first state has.
                const float of_p = solved * n[x], of_p_c = of_p * c;
                rows.add(2 * h, of_p_c);
                of_n[e] = -r * (solved * c);
                of_g[e] = seen * out;
                const float of_reads = g[x] * (S ? out : of_g[e]), of_writes = -r * (S ? of_p : of_p_c);
                to[x] = p.before ? 0.0f : of_reads;
                to_before[x] = p.before ? of_reads + of_writes : of_writes;
            }
            const u32 both = pack_bf16(of_n[0], of_n[1]);
            if (!DIAGONAL) *(u32*)(dn + t * SIDE + j) = both;
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                if (DIAGONAL && t < j + e) continue;
                if (DIAGONAL) dn[t * SIDE + j + e] = (u16)(both >> 16 * e);
                dn[(j + e) * SIDE + t] = (u16)(both >> 16 * e);
            }
            *(u32*)(dg + t * SIDE + j) = pack_bf16(of_g[0], of_g[1]);
        }
    }

    // x += rows [16 ROWS,16] of tokens from column `s` times right factors [16,32].
    static __device__ __forceinline__ void multiply(Sums<4>& x, const u32 (&a)[4], const u32 (&b)[2][4]) {
        multiply_pair(x.x[0], x.x[1], a, b[0]);
        multiply_pair(x.x[2], x.x[3], a, b[1]);
    }
    __device__ __forceinline__ void multiply(Keys& x, const u16* rows, u32 stride, u32 s, const u32 (&b)[2][4]) const {
        #pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            u32 a[4];
            left(a, rows, stride, row + 16 * r, s);
            multiply(x.x[r], a, b);
        }
    }
    // Rows from `s` as right factors.
    __device__ __forceinline__ void rights(u32 (&b)[2][4], const u16* rows, u32 s) const {
        right_across(b[0], rows, ROW, column, s);
        right_across(b[1], rows, ROW, column + 16, s);
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
                const float number = tokens.numbers[factor * CHUNK + i + 8 * h], by = minus ? -number : number;
                #pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    const u32 of = *(const u32*)(with + (i + 8 * h) * ROW + column + 8 * n + lane % 4 * 2);
                    const float x0 = x.x[r].x[n][2 * h], x1 = x.x[r].x[n][2 * h + 1];
                    rows.add(2 * h, x0 * low_half(of) + x1 * high_half(of));
                    to.x[r].x[n][2 * h] += by * x0;
                    to.x[r].x[n][2 * h + 1] += by * x1;
                }
            }
            rows.finish(row + 16 * r, tokens.sums_of(column / 32, factor));
        }
    }

    // Σ x y of eight pairs.
    static __device__ __forceinline__ float inner(uint4 x, uint4 y) {
        float sum = low_half(x.x) * low_half(y.x) + high_half(x.x) * high_half(y.x);
        sum += low_half(x.y) * low_half(y.y) + high_half(x.y) * high_half(y.y);
        sum += low_half(x.z) * low_half(y.z) + high_half(x.z) * high_half(y.z);
        return sum + low_half(x.w) * low_half(y.w) + high_half(x.w) * high_half(y.w);
    }

    // What the states before the chunk have of dQ and dK; dw of (25).
    __device__ __forceinline__ void add_states() {
        dq.clear(), dk.clear();
        float dw = 0.0f;
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) {
            Keys reads, erases;
            reads.clear(), erases.clear();
            for (u32 first = 0; first < p.value; first += SLAB) {
                const u16* at = slabs.next();
                uint4 v;
                if (m == 0) v = slabs.read_v(first);
                #pragma unroll
                for (u32 s = 0; s < SLAB; s += 16) {
                    u32 b[2][4];
                    rights(b, at + 2 * THIN_TILE, s);
                    multiply(reads, at, THIN, s, b);
                    if (p.erase) multiply(erases, at + THIN_TILE, THIN, s, b);
                }
                const u32 t = threadIdx.x / (SLAB / 8), c = threadIdx.x % (SLAB / 8) * 8;
                if (m == 0) dw += inner(v, *(const uint4*)(at + THIN_TILE + t * THIN + c));
            }
            add(dq, reads, q, OF_READ_A + 3 * m, false);
            if (p.erase) add(dk, erases, k, OF_ERASE_A + 3 * m, true);
        }
        dw = Own::shared_sum(dw);
        if (threadIdx.x % Own::SHARING == 0) tokens.dw[threadIdx.x / Own::SHARING] = dw;
    }

    // What the squares have of them, (27) and (28).
    __device__ __forceinline__ void add_tokens() {
        #pragma unroll
        for (u32 s = 0; s < CHUNK; s += 16) {
            u32 b[2][4];
            rights(b, k, s);
            if (s < row + 16 * ROWS) multiply(dq, dg, SIDE, s, b);
            if (p.erase) multiply(dk, dn, SIDE, s, b);
            if (s < row) continue;
            rights(b, q, s);
            #pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                u32 a[4];
                left_across(a, dg, SIDE, row + 16 * r, s);
                multiply(dk.x[r], a, b);
            }
        }
    }

    // What the gradients of the states behind the chunk have of dK; <dM,M₀>, <dM,S₀>, <dS,S₀>.
    __device__ __forceinline__ void add_gradients() {
        float carried[3][2][4] = {};
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) {
            Keys writes;
            writes.clear();
            for (u32 first = 0; first < p.value; first += SLAB) {
                const u16 *at = slabs.next(), *gradient = at + 2 * THIN_TILE;
                uint4 x[Slab::EACH], y[Slab::EACH];
                slabs.read_state(m, first, x);
                if (S && m == 0) slabs.read_state(1, first, y);
                #pragma unroll
                for (u32 s = 0; s < SLAB; s += 16) {
                    u32 b[2][4];
                    rights(b, gradient, s);
                    multiply(writes, at, THIN, s, b);
                }
                Slab::add_inner(carried[2 * m], x, gradient);
                if (S && m == 0) Slab::add_inner(carried[1], y, gradient);
            }
            add(dk, writes, k, OF_LAST_C + 3 * m, false);
        }
        #pragma unroll
        for (u32 i = 0; i < (S ? 3 : 1); i++) {
            const float sum = warp_sum(Slab::inner(carried[i]));
            if (threadIdx.x % 32 == 0) tokens.carried[i][threadIdx.x / 32] = sum;
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
    of.tokens.finish(args, of.chunk);
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
