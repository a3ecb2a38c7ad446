// The exact chunk form: gradients of what a chunk was given, equations (23)-(32). Chunks are independent: each starts
// from the kept state before it and the kept gradient of the state after it, and goes from block of columns to block.
#pragma once
#include "chunk.cuh"

// `chunk::Gradients` is its twin.
struct ChunkGradients {
    Linear p;
    // [kept,H,PREPARED]
    const float* prepared;
    // [kept,H,1 + S,K,V]: states before each chunk
    const float* kept;
    // [kept,H,1 + S,K,V]: gradients of the states after
    const float* kept_grads;
    // [rows,H,V], [rows,H,K], [rows,H,K], [rows,H,V]
    Array dout, dq, dk, dv;
    // [rows,H]: gradients of the gates; null where the rule has none
    float *log_a, *log_eta, *theta, *beta;
    // Of the longest sequence
    u32 chunks, unused;
};

// Sums over all columns, a number a token: of equations (25) and (31).
enum { DW, DR, DA_READ, DB_READ, DA_ERASE, DB_ERASE, DC_LAST, DE_LAST, SUMS };

// One chunk of one head, by a block of 8 warps. Keys, queries and the prepared squares stay in shared memory while blocks of
// WIDTH value columns pass. Then the tables of c and E take the place of all but keys and queries.
//
// Sums over columns stay in registers: the squares Λ Zᵀ and dO Zᵀ, dQ and dK. Sums of each token are in `sums`, a copy for
// each of the two warps that share a row.
template <u32 KEYS, u32 WIDTH, bool S>
struct Gradients {
    static constexpr u32 STRIDE = KEYS + 4, NARROW = WIDTH + 8;
    using Own = Share<CHUNK, WIDTH>;
    using Square = Share<CHUNK, CHUNK>;
    using Keys = Share<CHUNK, KEYS>;

    const ChunkGradients& args;
    const Linear& p;
    const Chunk chunk;
    // 1 where a token reads the memory after its own write.
    const u32 seen;
    // How warps share [CHUNK,WIDTH], [CHUNK,CHUNK] and [CHUNK,KEYS].
    const Own own;
    const Square square;
    const Keys keys;
    // Shared memory: keys and queries [CHUNK,STRIDE]; T and Y ∘ Q Kᵀ [CHUNK,WIDE]; states and their gradients
    // [KEYS,NARROW]; V, dO, Z, and dZ, then Λ [CHUNK,NARROW]. `over` is where `t` begins.
    float *k, *q, *t, *y, *m, *s, *dm, *ds, *v, *dout, *z, *x, *over;
    // Shared, of the block.
    // w, r, a, η [4,CHUNK]; what was prepared [VECTORS]; sums [2,SUMS,CHUNK]; −r A[t], −r b[t] [CHUNK].
    float (*gates)[CHUNK], *vectors, (*sums)[SUMS][CHUNK], *erase_a, *erase_b;
    // Λ Zᵀ, dO Zᵀ
    Sum<Square::TILES> erased, read;
    Sum<Keys::TILES> dq, dk;
    // <dM,M₀>, <dM,S₀>, <dS,S₀>
    float carried[3] = {0.0f, 0.0f, 0.0f};

    // `shared` is dynamic and is cut up here; the other arrays are static.
    __device__ __forceinline__ Gradients(
        const ChunkGradients& args, float* shared, float (*gates)[CHUNK], float* vectors, float (*sums)[SUMS][CHUNK],
        float (*erase)[CHUNK]
    )
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, blockIdx.x % args.chunks),
          seen(args.p.before ? 0 : 1), gates(gates), vectors(vectors), sums(sums), erase_a(erase[0]), erase_b(erase[1]) {
        // Dynamic shared memory in this order.
        float* rest = shared;
        auto take = [&](u32 count) { float* x = rest; rest += count; return x; };
        k = take(CHUNK * STRIDE), q = take(CHUNK * STRIDE);
        // What only the columns need; the tables take its place.
        over = rest;
        t = take(CHUNK * WIDE), y = take(CHUNK * WIDE);
        m = take(KEYS * NARROW), dm = take(KEYS * NARROW);
        s = S ? take(KEYS * NARROW) : nullptr, ds = S ? take(KEYS * NARROW) : nullptr;
        v = take(CHUNK * NARROW), dout = take(CHUNK * NARROW), z = take(CHUNK * NARROW), x = take(CHUNK * NARROW);
    }

    // A[t] and b[t], t = 0..CHUNK; c and E of the last token.
    __device__ __forceinline__ const float* a() const { return vectors + AT_A; }
    // Returns b [CHUNK + 1], the factors of S before the chunk.
    __device__ __forceinline__ const float* b() const { return vectors + AT_B; }
    // Returns c [CHUNK], how much of each write is in M after the last token.
    __device__ __forceinline__ const float* last_c() const { return vectors + AT_C; }
    // Returns E [CHUNK], how much of each write is in S after the last token.
    __device__ __forceinline__ const float* last_e() const { return vectors + AT_E; }

    // All that does not depend on columns, and sums at zero.
    __device__ __forceinline__ void begin() {
        const float* prepared = args.prepared + chunk.kept * PREPARED;
        read_rows<KEYS>(p, chunk, p.k, p.key, 0, k, STRIDE);
        read_rows<KEYS>(p, chunk, p.q, p.key, 0, q, STRIDE);
        if (p.erase) read_square(prepared, t);
        read_square(prepared + SQUARE, y);
        for (u32 i = threadIdx.x; i < VECTORS; i += THREADS) vectors[i] = prepared[2 * SQUARE + i];
        // Sums begin at zero.
        for (u32 i = threadIdx.x; i < 2 * SUMS * CHUNK; i += THREADS) (&sums[0][0][0])[i] = 0.0f;
        if (threadIdx.x < CHUNK) {
            bool inside = threadIdx.x < chunk.tokens;
            Four of = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
            gates[0][threadIdx.x] = of.x, gates[1][threadIdx.x] = of.y;
            gates[2][threadIdx.x] = of.z, gates[3][threadIdx.x] = of.w;
        }
        erased.clear(), read.clear(), dq.clear(), dk.clear();
        __syncthreads();
        // dX₀ and dX₁ of (26) by Λ.
        if (threadIdx.x < CHUNK) {
            erase_a[threadIdx.x] = -gates[1][threadIdx.x] * a()[threadIdx.x];
            erase_b[threadIdx.x] = -gates[1][threadIdx.x] * b()[threadIdx.x];
        }
    }

    // Adds Σ_c x(row, c) f(row, c) of this warp's part to a sum of each row.
    template <class F>
    __device__ __forceinline__ void add(u32 which, Sum<Own::TILES>& of, F f) {
        // A thread has two rows; four threads share each.
        RowSums rows;
        // The thread's first row and column of a tile [16,8].
        const u32 g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        #pragma unroll
        for (u32 n = 0; n < Own::TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++)
                rows.add(i, of.x[n][i] * f(own.row + g + i / 2 * 8, own.column + 8 * n + 2 * c + i % 2, n, i));
        rows.finish(own.row, sums[own.side][which]);
    }

    // What a warp holds of a block of columns, [16,8 TILES] each.
    struct ColumnSums {
        // K M₀, K S₀, K dM and K dS.
        Sum<Own::TILES> of_m, of_s, of_dm, of_ds;
        // dZ, then Λ.
        Sum<Own::TILES> now;

        // What the state before the chunk predicts: a part of P.
        __device__ __forceinline__ float predicted(const Gradients& of, u32 row, u32 n, u32 i) const {
            return of.a()[row] * of_m.x[n][i] + (S ? of.b()[row] * of_s.x[n][i] : 0.0f);
        }
    };

    // A block of columns from `first`.
    __device__ __forceinline__ void columns(u32 first) {
        // The block before is done with its arrays.
        __syncthreads();
        read_columns(first);
        __syncthreads();
        ColumnSums sums;
        reads(sums.now);
        right_sides(sums);
        __syncthreads();
        solve(sums);
        sums_of_tokens(sums, first);
        __syncthreads();
        keys_and_squares();
        // (31): what the last states give to A, b and E.
        for (u32 i = threadIdx.x; i < KEYS * WIDTH; i += THREADS) {
            u32 at = i / WIDTH * NARROW + i % WIDTH;
            carried[0] += dm[at] * m[at];
            if (S) carried[1] += dm[at] * s[at], carried[2] += ds[at] * s[at];
        }
    }

    // The states before and the gradients after the chunk [KEYS,WIDTH], V and dO [CHUNK,WIDTH].
    __device__ __forceinline__ void read_columns(u32 first) {
        const u64 matrix = (u64)p.key * p.value;
        const float *kept = args.kept + chunk.kept * (S ? 2 : 1) * matrix;
        const float* after = args.kept_grads + chunk.kept * (S ? 2 : 1) * matrix;
        read_matrix<KEYS, WIDTH>(p, kept, first, m, NARROW);
        read_matrix<KEYS, WIDTH>(p, after, first, dm, NARROW);
        if (S) read_matrix<KEYS, WIDTH>(p, kept + matrix, first, s, NARROW);
        if (S) read_matrix<KEYS, WIDTH>(p, after + matrix, first, ds, NARROW);
        read_rows<WIDTH>(p, chunk, p.v, p.value, first, v, NARROW);
        read_rows<WIDTH>(p, chunk, args.dout, p.value, first, dout, NARROW);
    }

    // Rows of keys [·,STRIDE] and of columns [·,NARROW], as factors of products.
    static __device__ __forceinline__ auto of_keys(const float* x) {
        return [x](u32 i, u32 j) { return x[i * STRIDE + j]; };
    }
    // Returns rows of columns [.,NARROW] as a factor of products.
    static __device__ __forceinline__ auto of_columns(const float* x) {
        return [x](u32 i, u32 c) { return x[i * NARROW + c]; };
    }

    // What the reads give to (31).
    __device__ __forceinline__ void reads(Sum<Own::TILES>& now) {
        auto dout_at = [&](u32 i, u32 c, u32, u32) { return dout[i * NARROW + c]; };
        // Q M₀, then Q S₀.
        now.clear();
        product(now, own.row, own.column, KEYS, of_keys(q), of_columns(m));
        add(DA_READ, now, dout_at);
        if (S) {
            now.clear();
            product(now, own.row, own.column, KEYS, of_keys(q), of_columns(s));
            add(DB_READ, now, dout_at);
        }
    }

    // The right side of (19) to `z`, and (23) to `x`; a barrier follows.
    __device__ __forceinline__ void right_sides(ColumnSums& sums) {
        sums.of_m.clear(), sums.of_s.clear();
        if (p.erase) {
            product(sums.of_m, own.row, own.column, KEYS, of_keys(k), of_columns(m));
            if (S) product(sums.of_s, own.row, own.column, KEYS, of_keys(k), of_columns(s));
        }
        const float *w = gates[0], *r = gates[1];
        each([&](u32 i, u32 c, u32 n, u32 e) {
            // Tokens past the chunk's end have w = r = 0.
            z[i * NARROW + c] = w[i] * v[i * NARROW + c] - (p.erase ? r[i] * sums.predicted(*this, i, n, e) : 0.0f);
        });
        sums.of_dm.clear(), sums.of_ds.clear();
        product(sums.of_dm, own.row, own.column, KEYS, of_keys(k), of_columns(dm));
        if (S) product(sums.of_ds, own.row, own.column, KEYS, of_keys(k), of_columns(ds));
        each([&](u32 i, u32, u32 n, u32 e) {
            // What later states need of Z.
            sums.now.x[n][e] = last_c()[i] * sums.of_dm.x[n][e] + (S ? last_e()[i] * sums.of_ds.x[n][e] : 0.0f);
        });
        product(sums.now, own.row, own.column, CHUNK, [&](u32 i, u32 j) { return y[j * WIDE + i]; }, of_columns(dout));
        each([&](u32 i, u32 c, u32 n, u32 e) { x[i * NARROW + c] = sums.now.x[n][e]; });
    }

    // The solutions: Z of (19) in place of its right side, Λ of (24) in registers.
    __device__ __forceinline__ void solve(ColumnSums& sums) {
        if (!p.erase) return;
        // T times one, Tᵀ times the other.
        Sum<Own::TILES> solved;
        solved.clear(), sums.now.clear();
        product(solved, own.row, own.column, CHUNK, [&](u32 i, u32 j) { return t[i * WIDE + j]; }, of_columns(z));
        product(sums.now, own.row, own.column, CHUNK, [&](u32 i, u32 j) { return t[j * WIDE + i]; }, of_columns(x));
        // All have read both right sides.
        __syncthreads();
        each([&](u32 i, u32 c, u32 n, u32 e) { z[i * NARROW + c] = solved.x[n][e]; });
    }

    // (25), (31): sums over columns, and dV. A row's place in `x` and `z` is its thread's own. Λ is left in `x`.
    __device__ __forceinline__ void sums_of_tokens(ColumnSums& sums, u32 first) {
        const float* w = gates[0];
        auto z_at = [&](u32 i, u32 c, u32, u32) { return z[i * NARROW + c]; };
        add(DC_LAST, sums.of_dm, z_at);
        if (S) add(DE_LAST, sums.of_ds, z_at);
        add(DW, sums.now, [&](u32 i, u32 c, u32, u32) { return v[i * NARROW + c]; });
        each([&](u32 i, u32 c, u32 n, u32 e) {
            if (i < chunk.tokens && first + c < p.value)
                store(args.dv, chunk.token(p, i) * p.value + first + c, w[i] * sums.now.x[n][e]);
            x[i * NARROW + c] = sums.now.x[n][e];
        });
        if (!p.erase) return;
        // The part of dr that the first state has, da⁻ and db⁻ of (31); without r.
        add(DR, sums.now, [&](u32 i, u32, u32 n, u32 e) { return sums.predicted(*this, i, n, e); });
        add(DA_ERASE, sums.now, [&](u32, u32, u32 n, u32 e) { return sums.of_m.x[n][e]; });
        if (S) add(DB_ERASE, sums.now, [&](u32, u32, u32 n, u32 e) { return sums.of_s.x[n][e]; });
    }

    // f(row, column of the block, tile, place) of a warp's part of [CHUNK,WIDTH].
    template <class F>
    __device__ __forceinline__ void each(F f) {
        const u32 g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        #pragma unroll
        for (u32 n = 0; n < Own::TILES; n++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) f(own.row + g + i / 2 * 8, own.column + 8 * n + 2 * c + i % 2, n, i);
    }

    // What a block of columns adds to Λ Zᵀ, dO Zᵀ, dQ of (27) and dK of (28).
    __device__ __forceinline__ void keys_and_squares() {
        // Factors as they lie, transposed, or with a factor for each row.
        auto across = [](const float* x) { return [x](u32 c, u32 j) { return x[j * NARROW + c]; }; };
        auto scaled = [](const float* by, const float* x) {
            return [by, x](u32 i, u32 c) { return by[i] * x[i * NARROW + c]; };
        };
        auto plain = [](const float* x) { return [x](u32 i, u32 c) { return x[i * NARROW + c]; }; };
        // dO Zᵀ.
        product(read, square.row, square.column, WIDTH, plain(dout), across(z));
        // (27) and (28) by the states, with factors of rows.
        product(dq, keys.row, keys.column, WIDTH, scaled(a() + seen, dout), across(m));
        product(dk, keys.row, keys.column, WIDTH, scaled(last_c(), z), across(dm));
        if (S) {
            product(dq, keys.row, keys.column, WIDTH, scaled(b() + seen, dout), across(s));
            product(dk, keys.row, keys.column, WIDTH, scaled(last_e(), z), across(ds));
        }
        if (p.erase) {
            // Λ Zᵀ, and what the predictions give to dK.
            product(erased, square.row, square.column, WIDTH, plain(x), across(z));
            product(dk, keys.row, keys.column, WIDTH, scaled(erase_a, x), across(m));
            if (S) product(dk, keys.row, keys.column, WIDTH, scaled(erase_b, x), across(s));
        }
    }

    // Squares [CHUNK,WIDE] where columns were: c and E of each write at each token, dN, dG, dc.
    __device__ __forceinline__ float* table(u32 i) const { return over + i * CHUNK * WIDE; }

    // f(row, column, tile, place) of a warp's part of [CHUNK,CHUNK].
    template <class F>
    __device__ __forceinline__ void across_square(F f) {
        const u32 row = square.row + threadIdx.x % 32 / 4, column = square.column + 2 * (threadIdx.x % 4);
        #pragma unroll
        for (u32 tile = 0; tile < Square::TILES; tile++)
            #pragma unroll
            for (u32 i = 0; i < 4; i++) f(row + i / 2 * 8, column + 8 * tile + i % 2, tile, i);
    }

    // A sum of token `i`: both copies together.
    __device__ __forceinline__ float sum_of(u32 which, u32 i) const { return sums[0][which][i] + sums[1][which][i]; }

    // Once all columns are through.
    __device__ __forceinline__ void build_tables(float* first);
    // dN, dG and dc of (31), then the parts of dQ and dK that come through the squares.
    __device__ __forceinline__ void squares();
    // Takes gradients of the masks back to a and η, one column a thread, equation (32).
    __device__ __forceinline__ void back_through_tables();
    // The same of the states before the chunk, by one thread; to[0] gets that of a, to[1] that of η.
    __device__ __forceinline__ void back_to_first(const float* first, const float* last, float (*to)[CHUNK]);
    // Writes the gradients of w, r, a and η of each token, four threads a token.
    __device__ __forceinline__ void write_gates(const float (*first)[CHUNK]);
};
