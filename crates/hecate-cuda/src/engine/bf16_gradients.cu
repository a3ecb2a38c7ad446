// The exact chunk form with bfloat16: gradients of what a chunk was given, equations (25)-(32). Chunks are independent:
// each starts from the kept state before it, the kept gradient of the state behind it, Z and Λ.
//
// Sums over value columns of products with X₀ = K M₀, Q M₀ and K dM are sums over keys of what dQ and dK need anyway:
// Σ_v Λ X₀ = Σ_k K (Λ M₀ᵀ), and so on.
#include "bf16.cuh"

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

// Sums over all columns, a number a token: of equations (25) and (31).
enum { DW, DR, DA_READ, DB_READ, DA_ERASE, DB_ERASE, DC_LAST, DE_LAST, SUMS };

template <u32 KEYS, bool S>
struct Gradients {
    // Value columns that are taken at once.
    static constexpr u32 WIDTH = KEYS, ROW = KEYS + 8, SLOTS = S ? 3 : 2;
    static constexpr u32 TOKENS = CHUNK * ROW, MATRIX = WIDTH * ROW;  // bfloat16 of a tile
    using Keys = Sums<KEYS / 16>;

    struct Own {
        float gates[4][CHUNK], sums[2][SUMS][CHUNK], total[SUMS][CHUNK], to_a[CHUNK], to_b[CHUNK];
        float first[CHUNK], grads[2][CHUNK], few[32], a[CHUNK + 1], b[CHUNK + 1];
        __align__(16) float numbers[NUMBERS];
    };

    const Bf16Gradients& args;
    const Linear& p;
    const Chunk chunk;
    Own& own;
    u16 *k, *q, *z, *solved, *dout, *slots;
    const u32 row, square_column, key_column, side, seen;
    Sums<4> erased, read;  // Λ Zᵀ, dO Zᵀ
    Keys dq, dk;
    float carried[3];  // <dM,M₀>, <dM,S₀>, <dS,S₀>

    __device__ __forceinline__ Gradients(const Bf16Gradients& args, u8* shared, Own& own)
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, blockIdx.x % args.chunks), own(own),
          row(threadIdx.x / 32 % 4 * 16), square_column(threadIdx.x / 128 * 32), key_column(threadIdx.x / 128 * KEYS / 2),
          side(threadIdx.x / 128), seen(args.p.before ? 0 : 1), carried{0.0f, 0.0f, 0.0f} {
        k = (u16*)shared, q = k + TOKENS, z = q + TOKENS, solved = z + TOKENS, dout = solved + TOKENS;
        slots = dout + TOKENS;
    }

    __device__ __forceinline__ u16* slot(u32 i) const { return slots + i * MATRIX; }

    // Columns from `first` of the matrix `which` of a kept state as rows [WIDTH,KEYS].
    __device__ __forceinline__ void fetch_matrix(const u16* from, u32 which, u32 first, u16* to) const {
        const u16* x = from + (chunk.kept * (S ? 2 : 1) + which) * p.key * p.value;
        constexpr u32 STEP = THREADS / (KEYS / 8);
        const u32 c = threadIdx.x % (KEYS / 8) * 8, v = threadIdx.x / (KEYS / 8);
        #pragma unroll
        for (u32 i = 0; i < WIDTH / STEP; i++) {
            bool inside = first + v + i * STEP < p.value && c < p.key;
            copy_16(to + (v + i * STEP) * ROW + c, inside ? x + (u64)(first + v + i * STEP) * p.key + c : x, inside);
        }
    }

    __device__ __forceinline__ void begin() {
        const u8* ready = args.ready + chunk.kept * READY;
        fetch_rows<KEYS, THREADS>(p, chunk, p.k.data, p.key, 0, k, ROW);
        fetch_rows<KEYS, THREADS>(p, chunk, p.q.data, p.key, 0, q, ROW);
        fetch_numbers<THREADS>((const float*)(ready + 4 * SQUARE), own.numbers);
        for (u32 i = threadIdx.x; i < 2 * SUMS * CHUNK; i += THREADS) (&own.sums[0][0][0])[i] = 0.0f;
        if (threadIdx.x < CHUNK) {
            bool inside = threadIdx.x < chunk.tokens;
            Four of = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
            own.gates[0][threadIdx.x] = of.x, own.gates[1][threadIdx.x] = of.y;
            own.gates[2][threadIdx.x] = of.z, own.gates[3][threadIdx.x] = of.w;
        }
        erased.clear(), read.clear(), dq.clear(), dk.clear();
    }

    // to += by ∘ (rows of tokens times a slot), and Σ of that product without `by` and `with`, keys or queries.
    template <class F>
    __device__ __forceinline__ void add(Keys& to, const u16* tokens, const u16* matrix, const u16* with, u32 which, F by) {
        Keys x;
        x.clear();
        #pragma unroll
        for (u32 s = 0; s < WIDTH / 16; s++) {
            u32 a[4], b[4];
            left(a, tokens, ROW, row, 16 * s);
            #pragma unroll
            for (u32 n = 0; n < KEYS / 32; n++) {
                right_across(b, matrix, ROW, key_column + 16 * n, 16 * s);
                multiply_pair(x.x[2 * n], x.x[2 * n + 1], a, b);
            }
        }
        const u32 lane = threadIdx.x % 32, i = row + lane / 4;
        const float factors[2] = {by(i), by(i + 8)};
        RowSums rows;
        #pragma unroll
        for (u32 n = 0; n < KEYS / 16; n++)
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                u32 of = *(const u32*)(with + (i + 8 * h) * ROW + key_column + 8 * n + lane % 4 * 2);
                rows.add(2 * h, x.x[n][2 * h] * low_half(of) + x.x[n][2 * h + 1] * high_half(of));
                to.x[n][2 * h] += factors[h] * x.x[n][2 * h];
                to.x[n][2 * h + 1] += factors[h] * x.x[n][2 * h + 1];
            }
        rows.finish(row, own.sums[side][which]);
    }

    // Λ Zᵀ and dO Zᵀ, on and below the diagonal.
    __device__ __forceinline__ void add_squares() {
        if (square_column >= row + 16) return;
        #pragma unroll
        for (u32 s = 0; s < WIDTH; s += 16) {
            u32 of[4], out[4], b[4];
            left(of, solved, ROW, row, s);
            left(out, dout, ROW, row, s);
            #pragma unroll
            for (u32 n = 0; n < 4; n += 2) {
                right(b, z, ROW, square_column + 8 * n, s);
                multiply_pair(erased.x[n], erased.x[n + 1], of, b);
                multiply_pair(read.x[n], read.x[n + 1], out, b);
            }
        }
    }

    // <x,y> of two slots, this thread's part.
    __device__ __forceinline__ float inner(const u16* x, const u16* y) const {
        float sum = 0.0f;
        for (u32 i = threadIdx.x; i < WIDTH * KEYS / 2; i += THREADS) {
            u32 at = i / (KEYS / 2) * ROW + i % (KEYS / 2) * 2, a = *(const u32*)(x + at), b = *(const u32*)(y + at);
            sum += low_half(a) * low_half(b) + high_half(a) * high_half(b);
        }
        return sum;
    }

    // dw of (25): four threads to a token.
    __device__ __forceinline__ void strengths(u32 first) {
        const u32 t = threadIdx.x / 4;
        float sum = 0.0f;
        if (t < chunk.tokens) {
            const u16* v = (const u16*)p.v.data + chunk.token(p, t) * p.value + first;
            for (u32 c = threadIdx.x % 4 * 8; c < WIDTH; c += 32) {
                if (first + c >= p.value) break;
                const uint4 of = *(const uint4*)(v + c), by = *(const uint4*)(solved + t * ROW + c);
                sum += low_half(of.x) * low_half(by.x) + high_half(of.x) * high_half(by.x);
                sum += low_half(of.y) * low_half(by.y) + high_half(of.y) * high_half(by.y);
                sum += low_half(of.z) * low_half(by.z) + high_half(of.z) * high_half(by.z);
                sum += low_half(of.w) * low_half(by.w) + high_half(of.w) * high_half(by.w);
            }
        }
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (threadIdx.x % 4 == 0) own.sums[0][DW][t] += sum;
    }

    // A block of columns from `first`.
    __device__ __forceinline__ void columns(u32 first) {
        __syncthreads();
        fetch_rows<WIDTH, THREADS>(p, chunk, args.written, p.value, first, z, ROW);
        fetch_rows<WIDTH, THREADS>(p, chunk, args.solved, p.value, first, solved, ROW);
        fetch_rows<WIDTH, THREADS>(p, chunk, args.dout, p.value, first, dout, ROW);
        fetch_matrix(args.kept, 0, first, slot(0));
        copies_commit();
        fetch_matrix(args.kept_grads, 0, first, slot(1));
        if (S) fetch_matrix(args.kept, 1, first, slot(2));
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const float* numbers = own.numbers;
        auto by = [&](u32 which) { return [=](u32 i) { return numbers[which * CHUNK + i]; }; };
        auto less = [&](u32 which) { return [=](u32 i) { return -numbers[which * CHUNK + i]; }; };
        add_squares();
        strengths(first);
        add(dq, dout, slot(0), q, DA_READ, by(OF_READ_A));
        if (p.erase) add(dk, solved, slot(0), k, DA_ERASE, less(OF_ERASE_A));
        copies_wait<0>();
        __syncthreads();
        if (S) add(dq, dout, slot(2), q, DB_READ, by(OF_READ_B));
        if (S && p.erase) add(dk, solved, slot(2), k, DB_ERASE, less(OF_ERASE_B));
        add(dk, z, slot(1), k, DC_LAST, by(OF_LAST_C));
        carried[0] += inner(slot(0), slot(1));
        if (S) {
            carried[1] += inner(slot(1), slot(2));
            __syncthreads();
            fetch_matrix(args.kept_grads, 1, first, slot(0));
            copies_commit();
            copies_wait<0>();
            __syncthreads();
            add(dk, z, slot(0), k, DE_LAST, by(OF_LAST_E));
            carried[2] += inner(slot(0), slot(2));
        }
    }

    // Where columns were: c of each write at each token, its gradient, E with momentum, [CHUNK,WIDE]; dN and dG.
    __device__ __forceinline__ float* table(u32 i) const { return (float*)z + i * CHUNK * WIDE; }
    __device__ __forceinline__ u16* dn() const { return (u16*)table(S ? 3 : 2); }
    __device__ __forceinline__ u16* dg() const { return dn() + CHUNK * SIDE; }

    // (15)-(17), a column a thread; A, b and E of the state before by one more.
    __device__ __forceinline__ void build_tables() {
        float *c = table(0), *e = table(2);
        const u32 j = threadIdx.x;
        if (j < CHUNK) {
            float now = 0.0f, pushed = 0.0f;
            #pragma unroll 8
            for (u32 s = 0; s < CHUNK; s++) {
                pushed = s == j ? 1.0f : S && s > j ? pushed * own.gates[3][s] : 0.0f;
                now = s > j ? own.gates[2][s] * now + pushed : pushed;
                c[s * WIDE + j] = now;
                if (S) e[s * WIDE + j] = pushed;
            }
        } else if (j == CHUNK) {
            float a = 1.0f, b = 0.0f, pushed = 1.0f;
            for (u32 s = 0; s < CHUNK; s++) {
                own.a[s] = a, own.b[s] = b, own.first[s] = pushed;
                if (S) pushed *= own.gates[3][s];
                a *= own.gates[2][s];
                if (S) b = own.gates[2][s] * b + pushed;
            }
        }
    }

    // f(row, column, tile, place) of a warp's part of [CHUNK,CHUNK].
    template <class F>
    __device__ __forceinline__ void across_square(F f) {
        const u32 i = row + threadIdx.x % 32 / 4, j = square_column + 2 * (threadIdx.x % 4);
        #pragma unroll
        for (u32 tile = 0; tile < 4; tile++)
            #pragma unroll
            for (u32 e = 0; e < 4; e++) f(i + e / 2 * 8, j + 8 * tile + e % 2, tile, e);
    }

    // dN, dG, and dc of (31).
    __device__ __forceinline__ void masks() {
        float *c = table(0), *dc = table(1);
        Sums<4> n, g;
        n.clear(), g.clear();
        if (square_column < row + 16) {
            #pragma unroll
            for (u32 s = 0; s < KEYS; s += 16) {
                u32 key[4], query[4], b[4];
                left(key, k, ROW, row, s);
                left(query, q, ROW, row, s);
                #pragma unroll
                for (u32 i = 0; i < 4; i += 2) {
                    right(b, k, ROW, square_column + 8 * i, s);
                    multiply_pair(n.x[i], n.x[i + 1], key, b);
                    multiply_pair(g.x[i], g.x[i + 1], query, b);
                }
            }
        }
        RowSums rows;
        across_square([&](u32 i, u32 j, u32 tile, u32 e) {
            float before = i > j ? c[(i - 1) * WIDE + j] : 0.0f, after = i >= j ? c[i * WIDE + j] : 0.0f;
            // dP is −r Λ; P has (L ∘ N) Z beside what the first state has.
            float of = i > j ? erased.x[tile][e] : 0.0f, out = i >= j ? read.x[tile][e] : 0.0f;
            rows.add(e, of * before * n.x[tile][e]);
            erased.x[tile][e] = -own.gates[1][i] * of;
            dn()[i * SIDE + j] = to_bf16(before * erased.x[tile][e]);
            dg()[i * SIDE + j] = to_bf16((p.before ? before : after) * out);
            dc[i * WIDE + j] = p.before ? 0.0f : g.x[tile][e] * out;
        });
        if (p.erase) rows.finish(row, own.sums[side][DR]);
        __syncthreads();
        across_square([&](u32 i, u32 j, u32 tile, u32 e) {
            if (i <= j) return;
            float more = n.x[tile][e] * erased.x[tile][e] + (p.before ? g.x[tile][e] * read.x[tile][e] : 0.0f);
            dc[(i - 1) * WIDE + j] += more;
        });
    }

    // to += left [16,16] rows [16,KEYS] from row `s`.
    __device__ __forceinline__ void add_rows(Keys& to, const u32 (&a)[4], const u16* rows, u32 s) {
        #pragma unroll
        for (u32 n = 0; n < KEYS / 32; n++) {
            u32 b[4];
            right_across(b, rows, ROW, key_column + 16 * n, s);
            multiply_pair(to.x[2 * n], to.x[2 * n + 1], a, b);
        }
    }

    // The squares' part of dQ and dK, (27) and (28), and both as results.
    __device__ __forceinline__ void finish_keys() {
        for (u32 s = 0; s < CHUNK; s += 16) {
            u32 a[4];
            if (s <= row) {
                left(a, dg(), SIDE, row, s);
                add_rows(dq, a, k, s);
            }
            if (s >= row) {
                left_across(a, dg(), SIDE, row, s);
                add_rows(dk, a, q, s);
            }
            if (!p.erase) continue;
            if (s <= row) {
                left(a, dn(), SIDE, row, s);
                add_rows(dk, a, k, s);
            }
            if (s >= row) {
                left_across(a, dn(), SIDE, row, s);
                add_rows(dk, a, k, s);
            }
        }
        store(dq, args.dq);
        store(dk, args.dk);
    }

    __device__ __forceinline__ void store(const Keys& x, u16* to) const {
        const u32 lane = threadIdx.x % 32, c = key_column + lane % 4 * 2;
        #pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 t = row + lane / 4 + 8 * h;
            if (t >= chunk.tokens) continue;
            u16* at = to + chunk.token(p, t) * p.key + c;
            #pragma unroll
            for (u32 n = 0; n < KEYS / 16; n++)
                if (c + 8 * n < p.key) *(u32*)(at + 8 * n) = pack_bf16(x.x[n][2 * h], x.x[n][2 * h + 1]);
        }
    }

    // Sums of both halves; of one token a thread.
    __device__ __forceinline__ void join_halves() {
        const u32 i = threadIdx.x;
        #pragma unroll
        for (u32 n = 0; n < SUMS; n++) own.total[n][i] = own.sums[0][n][i] + own.sums[1][n][i];
        own.total[DR][i] += own.a[i] * own.total[DA_ERASE][i] + own.b[i] * own.total[DB_ERASE][i];
    }

    // What the reads and the erase give to A and b of the state behind each token; of one token a thread.
    __device__ __forceinline__ void join_tokens() {
        const u32 i = threadIdx.x, t = i + 1, n = chunk.tokens;
        float a = seen ? own.total[DA_READ][i] : t < n ? own.total[DA_READ][t] : 0.0f;
        float b = seen ? own.total[DB_READ][i] : t < n ? own.total[DB_READ][t] : 0.0f;
        if (t < n) a -= own.gates[1][t] * own.total[DA_ERASE][t], b -= own.gates[1][t] * own.total[DB_ERASE][t];
        own.to_a[i] = a, own.to_b[i] = b;
    }

    // (32), a column a thread: what each write's influence gives to a and η, in place of dc and c.
    __device__ __forceinline__ void back_through_tables() {
        float *c = table(0), *dc = table(1), *e = table(2);
        const u32 j = threadIdx.x, n = chunk.tokens;
        float next_c = own.total[DC_LAST][j], next_e = S ? own.total[DE_LAST][j] : 0.0f;
        #pragma unroll 4
        for (u32 s = CHUNK; s-- > 0;) {
            float da = 0.0f, deta = 0.0f;
            if (s < n && s >= j) {
                float now = dc[s * WIDE + j] + next_c, pushed = now + next_e;
                if (s > j) da = now * c[(s - 1) * WIDE + j];
                if (S && s > j) deta = pushed * e[(s - 1) * WIDE + j];
                next_c = own.gates[2][s] * now, next_e = own.gates[3][s] * pushed;
            }
            dc[s * WIDE + j] = da;
            if (S) c[s * WIDE + j] = deta;
        }
    }

    // The same of the states before the chunk, by one thread: [0] to a, [1] to η.
    __device__ __forceinline__ void back_to_first(const float* last) {
        float next_a = last[0], next_b = last[1], next_e = last[2];
        #pragma unroll 4
        for (u32 s = chunk.tokens; s-- > 0;) {
            float da = next_a + own.to_a[s], db = next_b + own.to_b[s], de = next_e + db;
            own.grads[0][s] = da * own.a[s] + db * own.b[s];
            own.grads[1][s] = de * own.first[s];
            next_a = own.gates[2][s] * da, next_b = own.gates[2][s] * db, next_e = own.gates[3][s] * de;
        }
    }

    // Gradients of the gates: four threads to a token.
    __device__ __forceinline__ void write_gates() {
        const u32 i = threadIdx.x / 4;
        float da = 0.0f, deta = 0.0f;
        for (u32 j = threadIdx.x % 4; j < CHUNK; j += 4) {
            da += table(1)[i * WIDE + j];
            if (S) deta += table(0)[i * WIDE + j];
        }
        #pragma unroll
        for (u32 mask = 1; mask < 4; mask *= 2) {
            da += shuffle_xor(da, mask);
            deta += shuffle_xor(deta, mask);
        }
        if (threadIdx.x % 4 != 0 || i >= chunk.tokens) return;
        const Four of = {own.gates[0][i], own.gates[1][i], own.gates[2][i], own.gates[3][i]};
        GateGrads grads = raise(p, of, own.total[DW][i], -own.total[DR][i], da + own.grads[0][i], deta + own.grads[1][i]);
        const u64 at = chunk.token(p, i);
        args.log_a[at] = grads.log_a;
        args.theta[at] = grads.theta;
        if (args.log_eta) args.log_eta[at] = grads.log_eta;
        if (args.beta) args.beta[at] = grads.beta;
    }
};

template <u32 KEYS, bool S>
__device__ __forceinline__ void gradients(const Bf16Gradients& args, u8* shared) {
    __shared__ typename Gradients<KEYS, S>::Own own;
    Gradients<KEYS, S> of(args, shared, own);
    if (of.chunk.tokens == 0) return;
    of.begin();
    for (u32 column = 0; column < args.p.value; column += of.WIDTH) of.columns(column);
    float last[3];
    #pragma unroll
    for (u32 i = 0; i < 3; i++) last[i] = block_sum(of.carried[i], own.few);
    of.build_tables();
    __syncthreads();
    of.masks();
    if (threadIdx.x < CHUNK) of.join_halves();
    __syncthreads();
    of.finish_keys();
    if (threadIdx.x < CHUNK) of.join_tokens();
    __syncthreads();
    if (threadIdx.x < CHUNK) of.back_through_tables();
    else if (threadIdx.x == CHUNK) of.back_to_first(last);
    __syncthreads();
    of.write_gates();
}

#define GRADIENTS(name, KEYS, S)           \
    KERNEL(name, Bf16Gradients, 256) {     \
        DYNAMIC_SHARED(u8, shared);        \
        gradients<KEYS, S>(args, shared);  \
    }

GRADIENTS(bf16_gradients_64, 64, false)
GRADIENTS(bf16_gradients_128, 128, false)
GRADIENTS(bf16_gradients_64_momentum, 64, true)
GRADIENTS(bf16_gradients_128_momentum, 128, true)
