// The exact chunk form with bfloat16: gradients of what a chunk was given, equations (25)-(32). Chunks are independent:
// each starts from the kept state before it, the kept gradient of the state after it, Z and Λ.
//
// Keys and queries stay in shared memory. First come the squares, of all value columns: Λ Zᵀ, dO Zᵀ, K Kᵀ, Q Kᵀ, and what
// the masks make of them. Then value columns come again, a slab at a time, while the next slab is on its way. With M₀
// (and S₀) they make dO M₀ᵀ and Λ M₀ᵀ, with dM (and dS) Z dMᵀ. So few sums are held at once that two blocks without
// momentum fit a multiprocessor.
//
// Products with X₀ = K M₀, Q M₀ and K dM are summed over value columns. These are sums over keys of what dQ and dK need
// anyway: Σ_v Λ X₀ = Σ_k K (Λ M₀ᵀ), and so on.
#include "chunk_bf16/gates.cuh"

// One chunk of one head, by a block of 8 or 16 warps; `chunk_bf16/mod.rs` has its shapes.
template <u32 KEYS, u32 APART, bool S>
struct Gradients : Products<KEYS, APART, S> {
    using Base = Products<KEYS, APART, S>;
    using Base::add_slab, Base::add_squares, Base::place;
    using Base::row, Base::column, Base::square_row, Base::square_column;
    using Keys = typename Base::Keys;
    using Rows = typename Base::Rows;
    using Slab = typename Base::Slab;
    using Square = typename Base::Square;
    static constexpr bool GROUP = Base::GROUP;
    static constexpr u32 MATRICES = Base::MATRICES, WARPS = Base::WARPS, BLOCK = Base::BLOCK;
    static constexpr u32 ROWS = Base::ROWS, COLUMNS = Base::COLUMNS, SIDES = Base::SIDES, SLAB = Slab::SLAB;
    // Value columns of the squares at once.
    static constexpr u32 WIDTH = KEYS == 64 ? 64 : 128;
    using Wide = Tile<WIDTH, GROUP>;
    using Own = Tokens<Base::GROUPS, CHUNK / SIDES, WARPS, S, false>;
    static_assert(sizeof(Own) <= (S ? 68 << 10 : 23 << 10), "what the launch has for it");
    // Slabs, dN and dG; before these the values of the squares.
    // Elements of 16 bits.
    static constexpr u32 NARROW = 2 * Slab::STAGE + 2 * Base::SQUARES;
    static constexpr u32 AFTER = NARROW > 3 * Wide::SIZE ? NARROW : 3 * Wide::SIZE;

    const Bf16Gradients& args;
    const Linear& p;
    const Chunk chunk;
    const Rows k, q;
    u16 *wide, *dn, *dg;
    Own& tokens;
    Slab slabs;
    Keys dq, dk;

    // Shared memory: K, Q [CHUNK,KEYS]; slabs, dN, dG, or Z, Λ, dO; then what is gathered of each token.
    __device__ __forceinline__ Gradients(const Bf16Gradients& args, u8* shared)
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, args.first + blockIdx.x % args.chunks), k{(u16*)shared},
          q{k.x + k.SIZE}, wide(q.x + q.SIZE), dn(wide + 2 * Slab::STAGE), dg(dn + Base::SQUARES),
          tokens(*(Own*)(wide + AFTER)), slabs(args, chunk, wide) {}

    // Z, Λ and dO: where later slabs, dN and dG are.
    __device__ __forceinline__ Wide values(u32 which) const { return {wide + which * Wide::SIZE}; }
    // Columns from `first` on of Z, Λ and dO [CHUNK,WIDTH].
    __device__ __forceinline__ void fetch_values(u32 first) const {
        fetch_tile<BLOCK>(p, chunk, args.pseudo_values, p.value, first, values(0), threadIdx.x);
        fetch_tile<BLOCK>(p, chunk, args.solved, p.value, first, values(1), threadIdx.x);
        fetch_tile<BLOCK>(p, chunk, args.dout, p.value, first, values(2), threadIdx.x);
        copies_commit();
    }

    // This thread's token has eight columns out of every 8 SHARING: of V and Λ, whose inner product is dw of (25).
    // Pieces of eight columns that a thread asks for at once.
    static constexpr u32 PIECES = 4, PASS = PIECES * 8 * Own::SHARING;
    // V and Λ, eight columns a piece.
    struct Pieces {
        uint4 v[PIECES], solved[PIECES];
    };
    // Loads V and Λ of the thread's token, PIECES vectors of eight columns; zeros outside.
    __device__ __forceinline__ void read_values(Pieces& x, u32 first) const {
        // Neighbouring threads have neighbouring pieces of one token.
        const u32 t = threadIdx.x / Own::SHARING, c = first + threadIdx.x % Own::SHARING * 8;
        const u64 at = chunk.token(p, t) * p.value;
        #pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            const u32 column = c + i * 8 * Own::SHARING;
            const bool inside = t < chunk.tokens && column < p.value;
            x.v[i] = inside ? *(const uint4*)((const u16*)p.v.data + at + column) : uint4{};
            x.solved[i] = inside ? *(const uint4*)(args.solved + at + column) : uint4{};
        }
    }
    // Σ of the products of all pieces.
    static __device__ __forceinline__ float inner(const Pieces& x) {
        float sum = 0.0f;
        #pragma unroll
        for (u32 i = 0; i < PIECES; i++) sum += inner(x.v[i], x.solved[i]);
        return sum;
    }
    // While there are registers: everything after this needs them. The first pieces are on their way meanwhile.
    __device__ __forceinline__ void begin(Four gate) {
        Pieces x;
        read_values(x, 0);
        tokens.begin(p, chunk, gate);
        // Σ over all columns of V and Λ, a share a thread.
        float dw = inner(x);
        for (u32 first = PASS; first < p.value; first += PASS) {
            read_values(x, first);
            dw += inner(x);
        }
        // Threads of a token are neighbours in a warp.
        dw = Own::shared_sum(dw);
        if (threadIdx.x % Own::SHARING == 0) tokens.dw[threadIdx.x / Own::SHARING] = dw;
    }
    // Σ x y of eight pairs.
    static __device__ __forceinline__ float inner(uint4 x, uint4 y) {
        float sum = low_half(x.x) * low_half(y.x) + high_half(x.x) * high_half(y.x);
        sum += low_half(x.y) * low_half(y.y) + high_half(x.y) * high_half(y.y);
        sum += low_half(x.z) * low_half(y.z) + high_half(x.z) * high_half(y.z);
        return sum + low_half(x.w) * low_half(y.w) + high_half(x.w) * high_half(y.w);
    }

    // All that is read for the squares, the squares, and what comes of them.
    __device__ __forceinline__ void squares() {
        const Four gate = read_gates(p, chunk);
        fetch_tile<BLOCK>(p, chunk, p.k.data, p.key, 0, k, threadIdx.x);
        fetch_tile<BLOCK>(p, chunk, p.q.data, p.key, 0, q, threadIdx.x);
        copies_commit();
        // The factors of (25), which states and reads are times.
        const float* vectors = (const float*)(args.ready + chunk.kept * READY + 4 * SQUARE);
        fetch_vectors<BLOCK>(vectors, tokens.vectors, threadIdx.x, OF_ERASE_A, S ? OF_END : END_OF_PLAIN);
        fetch_values(0);
        // Gates and dw, while keys, queries and values are on their way.
        begin(gate);
        copies_wait<1>();
        if (GROUP) show_to_groups();
        __syncthreads();
        // Not before: what is needed first comes first.
        slabs.ask();
        // Later sub-chunks of the mask.
        tokens.mask_gradient.template join<BLOCK / CHUNK>();
        // Four squares of a warp's part at once: 4 SIDES elements a thread at most.
        Square n, g, erased, read;  // K Kᵀ, Q Kᵀ, Λ Zᵀ, dO Zᵀ
        if (!GROUP) n.clear(), g.clear(), erased.clear(), read.clear();
        // K Kᵀ and Q Kᵀ.
        add_squares(n, g, k, q, k);
        for (u32 first = 0;;) {
            copies_wait<0>();
            if (GROUP) show_to_groups();
            __syncthreads();
            // Λ Zᵀ and dO Zᵀ, WIDTH value columns at a time.
            add_squares(erased, read, values(1), values(2), values(0), first > 0);
            __syncthreads();
            // All have multiplied: the next columns may take the place of these.
            first += WIDTH;
            if (first >= p.value) break;
            fetch_values(first);
        }
        // The first slab comes while masks are applied.
        slabs.fetch();
        masks(n, g, erased, read);
    }

    // What is left of rounding dN and dG, of a thread's two rows. Elements of a row hand it on to the next, since products with
    // keys that are alike are sums of rows.
    struct Rest {
        float n[2], g[2];
    };
    // dN + dNᵀ, for groups dN alone, dG, and dc of (31).
    __device__ __forceinline__ void masks(const Square& n, const Square& g, const Square& erased, const Square& read) {
        const u32 lane = threadIdx.x % 32;
        // Each part of the columns has its own sums of rows.
        float* dr = tokens.dr[square_column / SIDES];
        RowSums rows;
        Rest rest{};
        #pragma unroll
        for (u32 b = 0; b < SIDES / 16; b++) {
            const u32 first = square_column + 16 * b;
            // Above the diagonal there is nothing; groups read zeros there.
            if (first > square_row) {
                #pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 at = place(square_row + lane / 4 + i / 2 * 8, first + i % 2 * 8 + lane % 4 * 2);
                    *(u32*)(dg + at) = 0;
                    if (GROUP) *(u32*)(dn + at) = 0;
                }
                continue;
            }
            float of[2][4], of_before[2][4];
            #pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 x = 2 * b + i, at = first + 8 * i;
                if (first == square_row)
                    mask<true>(at, n.x[x], g.x[x], erased.x[x], read.x[x], rows, rest, of[i], of_before[i]);
                else mask<false>(at, n.x[x], g.x[x], erased.x[x], read.x[x], rows, rest, of[i], of_before[i]);
            }
            // The block's gradient of c goes to where the gates' gradients gather it.
            tokens.mask_gradient.take(square_row, first, of, of_before);
        }
        // Of dG the last goes to a column that is near, of all four threads of a row.
        const u32 near = max(square_column, min(square_row, square_column + SIDES - 16));
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float left = rest.g[h];
            left += shuffle_xor(left, 1), left += shuffle_xor(left, 2);
            if (lane % 4 > 0) continue;
            // The thread's own element, which stays zero where it is.
            u32* at = (u32*)(dg + place(square_row + lane / 4 + 8 * h, near));
            const float found = low_half(*at);
            if (found != 0.0f) *at = pack_bf16(found + left, high_half(*at));
        }
        if (lane % 4 == 0) dr[square_row + lane / 4] = dr[square_row + lane / 4 + 8] = 0.0f;
        rows.finish(square_row, dr);
    }
    // Of a tile [16,8]; the gradients of c of each token and of the token before are for who asks.
    template <bool DIAGONAL>
    __device__ __forceinline__ void mask(
        u32 first, const float (&n)[4], const float (&g)[4], const float (&erased)[4], const float (&read)[4], RowSums& rows,
        Rest& rest, float (&to)[4], float (&to_before)[4]
    ) {
        // A thread has rows i and i + 8, columns j and j + 1.
        const u32 i = square_row + threadIdx.x % 32 / 4, j = first + threadIdx.x % 4 * 2;
        float now[2][2], before[2][2];
        tokens.mask_gradient.at(i, j, now, before);
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 t = i + 8 * h;
            // r of the row's token.
            const float r = tokens.gates[1][t];
            float of_n[2], of_g[2];
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                const u32 x = 2 * h + e;
                const bool writes = !DIAGONAL || t > j + e, reads = !DIAGONAL || t >= j + e + p.before;
                // c of the token before belongs to erasing, and to reading where reads come first.
                const float c = before[h][e], seen = p.before ? c : now[h][e];
                const float solved = writes ? erased[x] : 0.0f, out = reads ? read[x] : 0.0f;
                // dP is −r Λ; P has (L ∘ N) Z beside what the first state has.
                const float of_p = solved * n[x], of_p_c = of_p * c;
                rows.add(2 * h, of_p_c);
                of_n[e] = -r * (solved * c);
                of_g[e] = seen * out;
                // Without momentum the gradient comes times c, that of its logarithm.
                const float of_reads = g[x] * (S ? out : of_g[e]), of_writes = -r * (S ? of_p : of_p_c);
                to[x] = p.before ? 0.0f : of_reads;
                to_before[x] = p.before ? of_reads + of_writes : of_writes;
            }
            // dN, and off groups dNᵀ in the same square.
            const u32 both = pack_with_rest(of_n[0], of_n[1], rest.n[h]);
            if (GROUP || !DIAGONAL) *(u32*)(dn + place(t, j)) = both;
            #pragma unroll
            for (u32 e = 0; e < 2; e++) {
                if (GROUP || DIAGONAL && t < j + e) continue;
                if (DIAGONAL) dn[place(t, j + e)] = (u16)(both >> 16 * e);
                dn[place(j + e, t)] = (u16)(both >> 16 * e);
            }
            *(u32*)(dg + place(t, j)) = pack_with_rest(of_g[0], of_g[1], rest.g[h]);
        }
    }

    // to += by ∘ x, or minus that, and the gradient of a factor without its sign: Σ x with.
    __device__ __forceinline__ void add(Keys& to, const Keys& x, Rows with, u32 factor, bool minus) {
        const u32 lane = threadIdx.x % 32;
        #pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            // First row of the thread.
            const u32 i = row + 16 * r + lane / 4;
            RowSums rows;
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                // What the row is times, and in the other direction its gradient: a sum over the row.
                const float scale = tokens.vectors[factor * CHUNK + i + 8 * h], by = minus ? -scale : scale;
                #pragma unroll
                for (u32 n = 0; n < COLUMNS / 8; n++) {
                    const u32 of = *(const u32*)with.at(i + 8 * h, column + lane % 4 * 2, n);
                    const float x0 = x.x[r].x[n][2 * h], x1 = x.x[r].x[n][2 * h + 1];
                    rows.add(2 * h, x0 * low_half(of) + x1 * high_half(of));
                    to.x[r].x[n][2 * h] += by * x0;
                    to.x[r].x[n][2 * h + 1] += by * x1;
                }
            }
            rows.finish(row + 16 * r, tokens.sums_of(column / COLUMNS, factor));
        }
    }

    // What the states before the chunk have of dQ and dK.
    // (27) and (28) by the states: value columns pass in slabs.
    __device__ __forceinline__ void add_states() {
        // dO M₀ᵀ and Λ M₀ᵀ, and the same of S₀; factors of rows come after all columns passed.
        Keys reads[MATRICES], erases[MATRICES];
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) reads[m].clear(), erases[m].clear();
        for (u32 first = 0; first < p.value; first += SLAB) {
            // Matrices of a slab first, then dO, then Λ.
            const u16 *matrices = slabs.next(), *dout = matrices + Slab::VALUES;
            this->template add_slab<true>(reads, dout, erases, dout + Slab::THIN_TILE, p.erase, matrices);
        }
        // Rows of dO and Λ get their factors here, once.
        dq.clear(), dk.clear();
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) {
            add(dq, reads[m], q, OF_READ_A + 3 * m, false);
            if (p.erase) add(dk, erases[m], k, OF_ERASE_A + 3 * m, true);
        }
    }

    // What the gradients of the states after the chunk have of dK; <dM,M₀>, <dM,S₀>, <dS,S₀>.
    __device__ __forceinline__ void add_gradients() {
        // Inner products of states with gradients, as sums of products of 8 rows with 8 rows.
        float carried[3][2][4] = {};
        // (c[C,·] ∘ Z) dM of (28), and the same of dS, without the factors of rows.
        Keys writes[MATRICES];
        uint4 states[MATRICES][Slab::EACH];
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) {
            // The first pieces of the states are in registers before their slab is there.
            writes[m].clear();
            slabs.read_state(m, 0, states[m]);
        }
        for (u32 first = 0; first < p.value; first += SLAB) {
            const u16* gradients = slabs.next();
            add_slab(writes, gradients + Slab::VALUES, gradients);
            Slab::add_inner(carried[0], states[0], gradients);
            if (S) {
                Slab::add_inner(carried[1], states[MATRICES - 1], gradients);
                Slab::add_inner(carried[2], states[MATRICES - 1], gradients + Slab::MATRIX);
            }
            #pragma unroll
            for (u32 m = 0; m < MATRICES; m++) slabs.read_state(m, first + SLAB, states[m]);
        }
        #pragma unroll
        for (u32 m = 0; m < MATRICES; m++) add(dk, writes[m], k, OF_LAST_C + 3 * m, false);
        #pragma unroll
        for (u32 i = 0; i < (S ? 3 : 1); i++) {
            // An element a warp; `Tokens` adds them up.
            const float sum = warp_sum(Slab::inner(carried[i]));
            if (threadIdx.x % 32 == 0) tokens.carried[i][threadIdx.x / 32] = sum;
        }
    }

    // A lane writes two neighbouring elements of a row.
    __device__ __forceinline__ void store_directly(const Keys& x, u16* to) const {
        const u32 lane = threadIdx.x % 32, c = column + lane % 4 * 2;
        #pragma unroll
        for (u32 i = 0; i < 2 * ROWS; i++) {
            const u32 t = row + 8 * i + lane / 4;
            if (t >= chunk.tokens) continue;
            u16* at = to + chunk.token(p, t) * p.key + c;
            const Sums<COLUMNS / 8>& of = x.x[i / 2];
            #pragma unroll
            for (u32 n = 0; n < COLUMNS / 8; n++)
                if (c + 8 * n < p.key) *(u32*)(at + 8 * n) = pack_bf16(of.x[n][i % 2 * 2], of.x[n][i % 2 * 2 + 1]);
        }
    }
    // By way of where dN and dG were, after a barrier, so that whole lines are written.
    static_assert(WARPS * 16 * COLUMNS <= 2 * Base::SQUARES, "each warp has its place");
    // to = x rounded to bfloat16, rows of [rows,H,K], by way of shared memory.
    __device__ __forceinline__ void store_lines(const Keys& x, u16* to) const {
        // Pieces of 16 bytes of a warp's row, and rows that a warp writes at once.
        constexpr u32 PIECES = COLUMNS / 8, TOGETHER = 32 / PIECES;
        const u32 lane = threadIdx.x % 32, c = lane % PIECES * 8;
        // The warp's own place, [16,COLUMNS].
        u16* own = dn + threadIdx.x / 32 * 16 * COLUMNS;
        #pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            #pragma unroll
            for (u32 n = 0; n < PIECES; n++)
                #pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    u16* at = own + in_panel<COLUMNS>(lane / 4 + 8 * h, 8 * n + lane % 4 * 2);
                    *(u32*)at = pack_bf16(x.x[r].x[n][2 * h], x.x[r].x[n][2 * h + 1]);
                }
            __syncwarp();
            const u32 first = lane / PIECES;
            u16* at = to + chunk.token(p, row + 16 * r + first) * p.key + column + c;
            const u32 apart = TOGETHER * p.heads * p.key;
            #pragma unroll 1
            for (u32 i = 0; i < 16; i += TOGETHER, at += apart) {
                const uint4 of = *(const uint4*)(own + in_panel<COLUMNS>(first + i, c));
                if (row + 16 * r + first + i < chunk.tokens && column + c < p.key) *(uint4*)at = of;
            }
            __syncwarp();
        }
    }
    // Two blocks of a multiprocessor hide how long stores take, and one that is alone does not.
    __device__ __forceinline__ void store(const Keys& x, u16* to) const {
        if constexpr (S) store_lines(x, to);
        else store_directly(x, to);
    }
};

// A block has chunk `blockIdx.x % chunks` of one head.
template <u32 KEYS, u32 APART, bool S>
__device__ __forceinline__ void gradients(const Bf16Gradients& args, u8* shared) {
    Gradients<KEYS, APART, S> of(args, shared);
    if (of.chunk.tokens == 0) return;
    // The order matters: each part needs the registers of the one before.
    of.squares();
    of.add_states();
    // (27) and (28).
    of.add_tokens(of.dq, of.dk, of.dg, of.dn, of.k, of.q, of.p.erase);
    if (S) __syncthreads();
    of.store(of.dq, args.dq);
    of.add_gradients();
    of.store(of.dk, args.dk);
    of.tokens.finish(args, of.chunk);
}

#define GRADIENTS(name, KEYS, APART, S, THREADS, BLOCKS) \
    KERNEL(name, Bf16Gradients, THREADS, BLOCKS) {       \
        DYNAMIC_SHARED(u8, shared);                      \
        gradients<KEYS, APART, S>(args, shared);         \
    }

// Name, keys, rows of 16 tokens of a warp, momentum, threads of a block, blocks of a multiprocessor.
GRADIENTS(bf16_gradients_64, 64, 1, false, 256, 2)
GRADIENTS(bf16_gradients_128, 128, 2, false, 256, 2)
GRADIENTS(bf16_gradients_256, 256, 2, false, 512, 1)
GRADIENTS(bf16_gradients_64_momentum, 64, 1, true, 256, 1)
GRADIENTS(bf16_gradients_128_momentum, 128, 1, true, 512, 1)
