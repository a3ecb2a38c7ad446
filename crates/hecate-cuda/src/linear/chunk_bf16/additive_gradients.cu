// Gradients of a chunk with bfloat16 for rules that never erase: equations (25)-(32) without r, for groups of warps and at most
// 128 keys and value columns. V takes the place of Z, and w comes after products with it.
//
// All rows of the chunk stay in shared memory. The state before the chunk and the gradient of the state after it come 16 value
// columns at a time. Two blocks share a multiprocessor.
#include "chunk_bf16/gates.cuh"

// A block of eight warps has one chunk of one head. Its two groups share keys: each makes all tokens of 64 columns of dQ and dK, and
// half of the columns of the squares.
template <u32 KEYS>
struct AdditiveGradients : Products<KEYS, 2, false> {
    using Base = Products<KEYS, 2, false>;
    using Base::row, Base::column, Base::square_row, Base::square_column, Base::place;
    using Keys = typename Base::Keys;
    using Rows = typename Base::Rows;
    using Square = typename Base::Square;
    static constexpr u32 BLOCK = Base::BLOCK, WARPS = Base::WARPS, COLUMNS = Base::COLUMNS, SIDES = Base::SIDES;
    using Own = Tokens<Base::GROUPS, CHUNK / SIDES, WARPS, false, true>;
    // 16 rows [16,KEYS] of both matrices, in panels of 64 columns; PLACES of them.
    static constexpr u32 DEPTH = 16, MATRIX = DEPTH * KEYS, PLACES = 3;
    static_assert(MATRIX == 8 * BLOCK, "a thread copies one piece of each matrix");
    // In bytes; two blocks have 226 KiB.
    static constexpr u32 SHARED = 2 * (4 * Rows::SIZE + SQUARE + PLACES * 2 * MATRIX) + sizeof(Own);
    static_assert(SHARED <= 113 << 10, "two blocks fit");

    const Bf16Gradients& args;
    const Linear& p;
    const Chunk chunk;
    const Rows k, q, v, dout;
    u16 *dg, *slabs;
    Own& tokens;

    // Shared memory: K, Q, V, dO [CHUNK,KEYS]; dG; places of slabs; what is gathered of each token.
    __device__ __forceinline__ AdditiveGradients(const Bf16Gradients& args, u8* shared)
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, args.first + blockIdx.x % args.chunks), k{(u16*)shared},
          q{k.x + k.SIZE}, v{q.x + k.SIZE}, dout{v.x + k.SIZE}, dg(dout.x + k.SIZE), slabs(dg + SQUARE),
          tokens(*(Own*)(slabs + PLACES * 2 * MATRIX)) {}

    // The thread's piece of eight keys of a slab: kept states lie in tiles [16,16] of four [8,8].
    static __device__ __forceinline__ u32 piece() {
        const u32 t = threadIdx.x, value = t % 16, key = t / 32 * 16 + t % 32 / 16 * 8;
        return key / 64 * (DEPTH * 64) + in_panel(value, key);
    }
    // Slab `i` of both matrices; a commit follows.
    __device__ __forceinline__ void fetch_slab(u32 i) const {
        if (DEPTH * i < p.value) {
            const u64 from = chunk.kept * kept_size<KEYS>(p) + i * MATRIX + 8 * threadIdx.x;
            u16* to = slabs + i % PLACES * 2 * MATRIX + piece();
            copy_16(to, args.kept + from, true);
            copy_16(to + MATRIX, args.kept_grads + from, true);
        }
        copies_commit();
    }

    // All rows, and what the mask begins with.
    __device__ __forceinline__ void begin() const {
        // Gates are asked for first: everything else takes longer.
        const Four gate = read_gates(p, chunk);
        fetch_tile<BLOCK>(p, chunk, p.k.data, p.key, 0, k, threadIdx.x);
        fetch_tile<BLOCK>(p, chunk, p.q.data, p.key, 0, q, threadIdx.x);
        fetch_tile<BLOCK>(p, chunk, p.v.data, p.value, 0, v, threadIdx.x);
        fetch_tile<BLOCK>(p, chunk, args.dout, p.value, 0, dout, threadIdx.x);
        copies_commit();
        // The first slabs come after the rows, while squares are made.
        fetch_slab(0);
        fetch_slab(1);
        tokens.begin(p, chunk, gate);
        // All rows are here; two slabs may still be on their way.
        copies_wait<2>();
        show_to_groups();
        __syncthreads();
        tokens.mask_gradient.template join<BLOCK / CHUNK>();
    }

    // x = A Bᵀ, columns of the square that are the group's; between `group_begin` and `group_end`.
    __device__ __forceinline__ void multiply_square(Square& x, Rows a, Rows b) const {
        const u64 of_a = described(a.x), of_b = described(b.x);
        #pragma unroll
        for (u32 s = 0; s < KEYS / 16; s++)
            group_multiply<false, false>(x.x, along(of_a, s), along(of_b, s, square_column), s > 0);
    }
    // Q Kᵀ and dO Vᵀ, and what the mask makes of them.
    __device__ __forceinline__ void squares() const {
        // Of a warp 16 rows, of a group 32 columns of each.
        Square g, read;
        group_begin();
        multiply_square(g, q, k);
        multiply_square(read, dout, v);
        group_end();
        hold(g.x), hold(read.x);
        // The mask's later sub-chunks are there.
        __syncthreads();
        tokens.set_factors(p);
        const u32 lane = threadIdx.x % 32;
        #pragma unroll
        for (u32 b = 0; b < SIDES / 16; b++) {
            const u32 first = square_column + 16 * b;
            // Above the diagonal there is nothing.
            if (first > square_row) {
                #pragma unroll
                for (u32 i = 0; i < 4; i++)
                    *(u32*)(dg + place(square_row + lane / 4 + i / 2 * 8, first + i % 2 * 8 + lane % 4 * 2)) = 0;
                if (lane < 16) tokens.written(square_row / 16)[first + lane] = 0.0f;
                continue;
            }
            float of[2][4], of_before[2][4];
            #pragma unroll
            for (u32 i = 0; i < 2; i++) mask(first + 8 * i, g.x[2 * b + i], read.x[2 * b + i], of[i], of_before[i]);
            // The block's gradient of c goes to where the gates' gradients gather it.
            tokens.mask_gradient.take(square_row, first, of, of_before);
        }
    }
    // dG of a tile [16,8] of the squares, its part of the gradient of w, and the gradients of c of each token and of the one
    // before.
    __device__ __forceinline__ void mask(
        u32 first, const float (&g)[4], const float (&read)[4], float (&to)[4], float (&to_before)[4]
    ) const {
        const u32 lane = threadIdx.x % 32, i = square_row + lane / 4, j = first + lane % 4 * 2;
        float now[2][2], before[2][2], of_w[2] = {};
        tokens.mask_gradient.at(i, j, now, before);
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float of_g[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                const u32 x = 2 * h + e, t = i + 8 * h;
                // What an earlier read would have of a later write is nothing, not zero times it.
                const float out = t >= j + e + p.before ? (p.before ? before[h][e] : now[h][e]) * read[x] : 0.0f;
                // dG has w; the gradient of w is the same sum without it.
                of_g[e] = tokens.gates[0][j + e] * out;
                of_w[e] += g[x] * out;
                // The gradient comes times c, that of its logarithm.
                const float of_reads = g[x] * of_g[e];
                to[x] = p.before ? 0.0f : of_reads;
                to_before[x] = p.before ? of_reads : 0.0f;
            }
            *(u32*)(dg + place(i + 8 * h, j)) = pack_bf16(of_g[0], of_g[1]);
        }
        // Sums over the sub-chunk's reads.
        #pragma unroll
        for (u32 e = 0; e < 2; e++) {
            #pragma unroll
            for (u32 mask = 4; mask < 32; mask *= 2) of_w[e] += shuffle_xor(of_w[e], mask);
            if (lane < 4) tokens.written(square_row / 16)[j + e] = of_w[e];
        }
    }

    // Σ x y of eight pairs.
    static __device__ __forceinline__ float inner(uint4 x, uint4 y) {
        float sum = low_half(x.x) * low_half(y.x) + high_half(x.x) * high_half(y.x);
        sum += low_half(x.y) * low_half(y.y) + high_half(x.y) * high_half(y.y);
        sum += low_half(x.z) * low_half(y.z) + high_half(x.z) * high_half(y.z);
        return sum + low_half(x.w) * low_half(y.w) + high_half(x.w) * high_half(y.w);
    }
    // dO M₀ᵀ and V dMᵀ, and <dM,M₀>, slab by slab.
    __device__ __forceinline__ void add_states(Keys& dq, Keys& dk) const {
        // Left factors [CHUNK,16] out of whole rows, right ones [16,64] out of a slab.
        const u64 of_dout = described(dout.x), of_v = described(v.x);
        dq.clear(), dk.clear();
        float carried = 0.0f;
        for (u32 i = 0; DEPTH * i < p.value; i++) {
            // Slab i is here; the next one may be on its way.
            copies_wait<1>();
            show_to_groups();
            __syncthreads();
            // All are through the slab whose place this one takes.
            fetch_slab(i + 2);
            const u16 *m = slabs + i % PLACES * 2 * MATRIX, *dm = m + MATRIX;
            group_begin();
            group_multiply<false, true>(dq.x[0].x, along(of_dout, i), across<DEPTH>(described(m), 0, column), true);
            group_multiply<false, true>(dk.x[0].x, along(of_v, i), across<DEPTH>(described(dm), 0, column), true);
            group_commit();
            // The piece that the thread copied itself, of both.
            carried += inner(*(const uint4*)(m + piece()), *(const uint4*)(dm + piece()));
            group_wait();
            hold(dq.x[0].x), hold(dk.x[0].x);
        }
        // An element a warp; `Tokens` adds them up.
        carried = warp_sum(carried);
        if (threadIdx.x % 32 == 0) tokens.carried[0][threadIdx.x / 32] = carried;
        finish_states(dq, q, OF_READ_A);
        finish_states(dk, k, OF_LAST_C);
    }
    // The factors of rows, and their gradients: Σ x with.
    __device__ __forceinline__ void finish_states(Keys& x, Rows with, u32 factor) const {
        const u32 lane = threadIdx.x % 32, i = row + lane / 4;
        // Sums over keys of a row: over the warp's 64, and `Tokens` joins both groups'.
        RowSums rows;
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const float by = tokens.vectors[factor * CHUNK + i + 8 * h];
            #pragma unroll
            for (u32 n = 0; n < COLUMNS / 8; n++) {
                const u32 of = *(const u32*)with.at(i + 8 * h, column + lane % 4 * 2, n);
                float &x0 = x.x[0].x[n][2 * h], &x1 = x.x[0].x[n][2 * h + 1];
                rows.add(2 * h, x0 * low_half(of) + x1 * high_half(of));
                x0 *= by, x1 *= by;
            }
        }
        rows.finish(row, tokens.sums_of(column / COLUMNS, factor));
    }
    // dQ += dG K, dK += dGᵀ Q.
    __device__ __forceinline__ void add_tokens(Keys& dq, Keys& dk) const {
        // dG is written by all warps; barriers of the slabs stand between.
        group_begin();
        this->template multiply<CHUNK>(dq, dg, k.x);
        this->template multiply<CHUNK, true>(dk, dg, q.x);
        group_end();
        hold(dq.x[0].x), hold(dk.x[0].x);
    }

    // To an array [rows,H,K] in whole lines, by way of the warp's own part of rows that nobody needs any more.
    __device__ __forceinline__ void store(const Keys& x, Rows way, u16* to) const {
        const u32 lane = threadIdx.x % 32, t = row + lane / 8, c = column + lane % 8 * 8;
        #pragma unroll
        for (u32 n = 0; n < COLUMNS / 8; n++)
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                u16* at = way.at(row + lane / 4 + 8 * h, column + lane % 4 * 2, n);
                *(u32*)at = pack_bf16(x.x[0].x[n][2 * h], x.x[0].x[n][2 * h + 1]);
            }
        __syncwarp();
        // Eight lanes write 128 bytes of a token.
        u16* at = to + chunk.token(p, t) * p.key + c;
        #pragma unroll
        for (u32 i = 0; i < 16; i += 4, at += (u64)4 * p.heads * p.key)
            if (t + i < chunk.tokens && c < p.key) *(uint4*)at = *(const uint4*)way.at(t + i, c);
    }
};

// A block has chunk `blockIdx.x % chunks` of one head.
template <u32 KEYS>
__device__ __forceinline__ void additive_gradients(const Bf16Gradients& args, u8* shared) {
    // Only GPUs with groups are given this kernel.
    if constexpr (GROUPS_MULTIPLY) {
        const AdditiveGradients<KEYS> of(args, shared);
        if (of.chunk.tokens == 0) return;
        // The order matters: each part needs the registers of the one before.
        of.begin();
        of.squares();
        typename AdditiveGradients<KEYS>::Keys dq, dk;
        of.add_states(dq, dk);
        of.add_tokens(dq, dk);
        // All have read V and dO.
        __syncthreads();
        of.store(dq, of.v, args.dq);
        of.store(dk, of.dout, args.dk);
        of.tokens.finish(args, of.chunk);
    }
}

// Two blocks of a multiprocessor hide what either waits for.
KERNEL(bf16_additive_gradients, Bf16Gradients, 256, 2) {
    DYNAMIC_SHARED(u8, shared);
    additive_gradients<128>(args, shared);
}
