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

// GROUPS times four warps: 16 tokens each, and an equal part of the columns.
template <u32 KEYS, u32 GROUPS, bool S>
struct Gradients {
    // Value columns that are taken at once.
    static constexpr u32 WIDTH = KEYS, ROW = KEYS + 8, SLOTS = S ? 3 : 2;
    static constexpr u32 TOKENS = CHUNK * ROW, MATRIX = WIDTH * ROW;  // bfloat16 of a tile
    static constexpr u32 BLOCK = 128 * GROUPS, PART = KEYS / GROUPS, SIDES = CHUNK / GROUPS;
    using Keys = Sums<PART / 8>;
    using Square = Sums<SIDES / 8>;

    struct Own {
        float gates[4][CHUNK], sums[GROUPS][SUMS][CHUNK], total[SUMS][CHUNK], to_a[CHUNK], to_b[CHUNK];
        float first[CHUNK], grads[2][CHUNK], few[32], a[CHUNK], b[CHUNK], ends[8][CHUNK];
        Decays decays;
        __align__(16) float numbers[NUMBERS];
    };

    const Bf16Gradients& args;
    const Linear& p;
    const Chunk chunk;
    Own& own;
    u16 *k, *q, *z, *solved, *dout, *slots;
    const u32 row, square_column, key_column, side, seen;
    Square erased, read;  // Λ Zᵀ, dO Zᵀ
    Keys dq, dk;
    float carried[3];  // <dM,M₀>, <dM,S₀>, <dS,S₀>

    __device__ __forceinline__ Gradients(const Bf16Gradients& args, u8* shared, Own& own)
        : args(args), p(args.p), chunk(args.p, blockIdx.x / args.chunks, blockIdx.x % args.chunks), own(own),
          row(threadIdx.x / 32 % 4 * 16), square_column(threadIdx.x / 128 * SIDES), key_column(threadIdx.x / 128 * PART),
          side(threadIdx.x / 128), seen(args.p.before ? 0 : 1), carried{0.0f, 0.0f, 0.0f} {
        k = (u16*)shared, q = k + TOKENS, z = q + TOKENS, solved = z + TOKENS, dout = solved + TOKENS;
        slots = dout + TOKENS;
    }

    __device__ __forceinline__ u16* slot(u32 i) const { return slots + i * MATRIX; }

    // Columns from `first` of the matrix `which` of a kept state as rows [WIDTH,KEYS].
    __device__ __forceinline__ void fetch_matrix(const u16* from, u32 which, u32 first, u16* to) const {
        const u16* x = from + (chunk.kept * (S ? 2 : 1) + which) * p.key * p.value;
        constexpr u32 STEP = BLOCK / (KEYS / 8);
        const u32 c = threadIdx.x % (KEYS / 8) * 8, v = threadIdx.x / (KEYS / 8);
        #pragma unroll
        for (u32 i = 0; i < WIDTH / STEP; i++) {
            bool inside = first + v + i * STEP < p.value && c < p.key;
            copy_16(to + (v + i * STEP) * ROW + c, inside ? x + (u64)(first + v + i * STEP) * p.key + c : x, inside);
        }
    }

    __device__ __forceinline__ void begin() {
        const u8* ready = args.ready + chunk.kept * READY;
        fetch_rows<KEYS, BLOCK>(p, chunk, p.k.data, p.key, 0, k, ROW, threadIdx.x);
        fetch_rows<KEYS, BLOCK>(p, chunk, p.q.data, p.key, 0, q, ROW, threadIdx.x);
        fetch_numbers<BLOCK>((const float*)(ready + 4 * SQUARE), own.numbers, threadIdx.x);
        for (u32 i = threadIdx.x; i < GROUPS * SUMS * CHUNK; i += BLOCK) (&own.sums[0][0][0])[i] = 0.0f;
        erased.clear(), read.clear(), dq.clear(), dk.clear();
    }

    // While tiles are on their way.
    __device__ __forceinline__ void read_gates() {
        if (threadIdx.x < CHUNK) {
            bool inside = threadIdx.x < chunk.tokens;
            Four of = inside ? lower(p, gates_of(p, chunk.token(p, threadIdx.x))) : Four{0.0f, 0.0f, 1.0f, 1.0f};
            own.gates[0][threadIdx.x] = of.x, own.gates[1][threadIdx.x] = of.y;
            own.gates[2][threadIdx.x] = of.z, own.gates[3][threadIdx.x] = of.w;
        }
        __syncthreads();
        if (!S && threadIdx.x < CHUNK) own.decays.begin(threadIdx.x, [&](u32 s) { return own.gates[2][s]; });
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
            for (u32 n = 0; n < PART / 16; n++) {
                right_across(b, matrix, ROW, key_column + 16 * n, 16 * s);
                multiply_pair(x.x[2 * n], x.x[2 * n + 1], a, b);
            }
        }
        const u32 lane = threadIdx.x % 32, i = row + lane / 4;
        const float factors[2] = {by(i), by(i + 8)};
        RowSums rows;
        #pragma unroll
        for (u32 n = 0; n < PART / 8; n++)
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
            for (u32 n = 0; n < SIDES / 8; n += 2) {
                right(b, z, ROW, square_column + 8 * n, s);
                multiply_pair(erased.x[n], erased.x[n + 1], of, b);
                multiply_pair(read.x[n], read.x[n + 1], out, b);
            }
        }
    }

    // Σ x y of eight pairs.
    static __device__ __forceinline__ float inner(uint4 x, uint4 y) {
        float sum = low_half(x.x) * low_half(y.x) + high_half(x.x) * high_half(y.x);
        sum += low_half(x.y) * low_half(y.y) + high_half(x.y) * high_half(y.y);
        sum += low_half(x.z) * low_half(y.z) + high_half(x.z) * high_half(y.z);
        return sum + low_half(x.w) * low_half(y.w) + high_half(x.w) * high_half(y.w);
    }

    // <x,y> of two slots, this thread's part.
    __device__ __forceinline__ float inner(const u16* x, const u16* y) const {
        float sum = 0.0f;
        #pragma unroll
        for (u32 i = threadIdx.x; i < WIDTH * KEYS / 8; i += BLOCK) {
            const u32 at = i / (KEYS / 8) * ROW + i % (KEYS / 8) * 8;
            sum += inner(*(const uint4*)(x + at), *(const uint4*)(y + at));
        }
        return sum;
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
    __device__ __forceinline__ void strengths(const uint4 (&v)[VALUES]) {
        const u32 t = threadIdx.x / SHARING;
        float sum = 0.0f;
        #pragma unroll
        for (u32 i = 0; i < VALUES; i++)
            sum += inner(v[i], *(const uint4*)(solved + t * ROW + (threadIdx.x % SHARING + i * SHARING) * 8));
        #pragma unroll
        for (u32 mask = 1; mask < SHARING; mask *= 2) sum += shuffle_xor(sum, mask);
        if (threadIdx.x % SHARING == 0) own.total[DW][t] += sum;
    }

    // A block of columns from `first`.
    __device__ __forceinline__ void columns(u32 first) {
        __syncthreads();
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.written, p.value, first, z, ROW, threadIdx.x);
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.solved, p.value, first, solved, ROW, threadIdx.x);
        fetch_rows<WIDTH, BLOCK>(p, chunk, args.dout, p.value, first, dout, ROW, threadIdx.x);
        fetch_matrix(args.kept, 0, first, slot(0));
        copies_commit();
        fetch_matrix(args.kept_grads, 0, first, slot(1));
        if (S) fetch_matrix(args.kept, 1, first, slot(2));
        copies_commit();
        uint4 v[VALUES];
        read_values(first, v);
        if (first == 0) read_gates();
        copies_wait<1>();
        __syncthreads();
        const float* numbers = own.numbers;
        auto by = [&](u32 which) { return [=](u32 i) { return numbers[which * CHUNK + i]; }; };
        auto less = [&](u32 which) { return [=](u32 i) { return -numbers[which * CHUNK + i]; }; };
        add_squares();
        strengths(v);
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

    // Where columns were: the gradient of c of each write at each token, with momentum c and E, [CHUNK,WIDE]; dN and dG.
    __device__ __forceinline__ float* table(u32 i) const { return (float*)z + i * CHUNK * WIDE; }
    __device__ __forceinline__ u16* dn() const { return (u16*)table(S ? 3 : 1); }
    __device__ __forceinline__ u16* dg() const { return dn() + CHUNK * SIDE; }

    // c of rows and columns, and c of the token before.
    __device__ __forceinline__ void masks_of(u32 i, u32 j, float (&now)[2][2], float (&before)[2][2]) const {
        if constexpr (S) masks_at(table(1), i, j, now, before);
        else own.decays.at(i, j, now, before);
    }

    // With momentum, (15)-(17), a column a thread; A, b and E of the state before by one more.
    __device__ __forceinline__ void build_tables() {
        float *c = table(1), *e = table(2);
        const u32 j = threadIdx.x;
        if (j < CHUNK) {
            float now = 0.0f, pushed = 0.0f;
            #pragma unroll 8
            for (u32 s = 0; s < CHUNK; s++) {
                pushed = s == j ? 1.0f : s > j ? pushed * own.gates[3][s] : 0.0f;
                now = s > j ? own.gates[2][s] * now + pushed : pushed;
                c[s * WIDE + j] = now;
                e[s * WIDE + j] = pushed;
            }
        } else if (j == CHUNK) {
            float a = 1.0f, b = 0.0f, pushed = 1.0f;
            #pragma unroll 8
            for (u32 s = 0; s < CHUNK; s++) {
                own.a[s] = a, own.b[s] = b, own.first[s] = pushed;
                pushed *= own.gates[3][s];
                a *= own.gates[2][s];
                b = own.gates[2][s] * b + pushed;
            }
        }
    }

    // dN, dG, and dc of (31); without momentum times c: the gradient of its logarithm.
    __device__ __forceinline__ void masks() {
        float* dc = table(0);
        Square n, g;
        n.clear(), g.clear();
        if (square_column < row + 16) {
            #pragma unroll
            for (u32 s = 0; s < KEYS; s += 16) {
                u32 key[4], query[4], b[4];
                left(key, k, ROW, row, s);
                left(query, q, ROW, row, s);
                #pragma unroll
                for (u32 i = 0; i < SIDES / 8; i += 2) {
                    right(b, k, ROW, square_column + 8 * i, s);
                    multiply_pair(n.x[i], n.x[i + 1], key, b);
                    multiply_pair(g.x[i], g.x[i + 1], query, b);
                }
            }
        }
        RowSums rows;
        const u32 i = row + threadIdx.x % 32 / 4;
        // From here on `n` is what goes to c of the token before.
        #pragma unroll
        for (u32 tile = 0; tile < SIDES / 8; tile++) {
            const u32 j = square_column + 8 * tile + threadIdx.x % 4 * 2;
            float now[2][2], before[2][2];
            masks_of(i, j, now, before);
            #pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const u32 t = i + 8 * h;
                const float r = own.gates[1][t];
                float of_n[2], of_g[2], reads[2];
                #pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    float &of = n.x[tile][2 * h + e], go = g.x[tile][2 * h + e];
                    const bool is_before = t > j + e, is_now = t >= j + e;
                    const float solved = is_before ? erased.x[tile][2 * h + e] : 0.0f, c = before[h][e];
                    const float out = is_now ? read.x[tile][2 * h + e] : 0.0f;
                    // dP is −r Λ; P has (L ∘ N) Z beside what the first state has.
                    const float p_of = solved * of, read_before = p.before && is_before ? out : 0.0f;
                    rows.add(2 * h, p_of * c);
                    of_n[e] = -r * solved * c;
                    of_g[e] = p.before ? c * read_before : now[h][e] * out;
                    reads[e] = p.before ? 0.0f : go * (S ? out : of_g[e]);
                    of = (go * read_before - r * p_of) * (S ? 1.0f : c);
                }
                *(u32*)(dn() + t * SIDE + j) = pack_bf16(of_n[0], of_n[1]);
                *(u32*)(dg() + t * SIDE + j) = pack_bf16(of_g[0], of_g[1]);
                *(float2*)(dc + t * WIDE + j) = make_float2(reads[0], reads[1]);
            }
        }
        if (p.erase) rows.finish(row, own.sums[side][DR]);
        __syncthreads();
        #pragma unroll
        for (u32 tile = 0; tile < SIDES / 8; tile++)
            #pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 t = i + e / 2 * 8, j = square_column + 8 * tile + threadIdx.x % 4 * 2 + e % 2;
                if (t > j) dc[(t - 1) * WIDE + j] += n.x[tile][e];
            }
    }

    // to += left [16,16] rows [16,KEYS] from row `s`.
    __device__ __forceinline__ void add_rows(Keys& to, const u32 (&a)[4], const u16* rows, u32 s) {
        #pragma unroll
        for (u32 n = 0; n < PART / 16; n++) {
            u32 b[4];
            right_across(b, rows, ROW, key_column + 16 * n, s);
            multiply_pair(to.x[2 * n], to.x[2 * n + 1], a, b);
        }
    }

    // The squares' part of dQ and dK, (27) and (28), and both as results.
    __device__ __forceinline__ void finish_keys() {
        #pragma unroll
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
            for (u32 n = 0; n < PART / 8; n++)
                if (c + 8 * n < p.key) *(u32*)(at + 8 * n) = pack_bf16(x.x[n][2 * h], x.x[n][2 * h + 1]);
        }
    }

    // Sums of all groups; of one token a thread.
    __device__ __forceinline__ void join_groups() {
        const u32 i = threadIdx.x;
        #pragma unroll
        for (u32 n = DR; n < SUMS; n++) {
            own.total[n][i] = own.sums[0][n][i];
            #pragma unroll
            for (u32 group = 1; group < GROUPS; group++) own.total[n][i] += own.sums[group][n][i];
        }
        const float a = S ? own.a[i] : i ? own.decays.state(i - 1) : 1.0f;
        own.total[DR][i] += a * own.total[DA_ERASE][i] + (S ? own.b[i] * own.total[DB_ERASE][i] : 0.0f);
    }

    // What the reads and the erase give to A and b of the state behind each token; of one token a thread.
    __device__ __forceinline__ void join_tokens() {
        const u32 i = threadIdx.x, t = i + 1, n = chunk.tokens;
        float a = seen ? own.total[DA_READ][i] : t < n ? own.total[DA_READ][t] : 0.0f;
        float b = seen ? own.total[DB_READ][i] : t < n ? own.total[DB_READ][t] : 0.0f;
        if (t < n) a -= own.gates[1][t] * own.total[DA_ERASE][t], b -= own.gates[1][t] * own.total[DB_ERASE][t];
        own.to_a[i] = a, own.to_b[i] = b;
    }

    // Without momentum, the gradient of log a of token s: Σ_{t ≥ s > j} dc[t,j] c[t,j], and the same of the first state.
    // Sums over t within stretches of 8 tokens are left in the table, those of whole stretches from each on in `ends`.
    __device__ __forceinline__ void sum_up(u32 stretch) {
        float *w = table(0), sum = 0.0f;
        const u32 j = threadIdx.x % CHUNK;
        #pragma unroll
        for (u32 i = 8; i-- > 0;) {
            const u32 t = 8 * stretch + i;
            sum += w[t * WIDE + j];
            if (t + 1 == chunk.tokens) sum += own.total[DC_LAST][j] * own.decays.last(j);
            w[t * WIDE + j] = sum;
        }
        own.ends[stretch][j] = sum;
    }
    __device__ __forceinline__ void sum_ends() {
        const u32 j = threadIdx.x;
        float sum = 0.0f;
        #pragma unroll
        for (u32 i = 8; i-- > 0;) {
            float of = own.ends[i][j];
            own.ends[i][j] = sum;
            sum += of;
        }
    }
    // Of one token a thread, by two warps: the first state's part.
    __device__ __forceinline__ void first_state(float last) {
        const u32 t = threadIdx.x;
        own.first[t] = own.decays.state(t) * (own.to_a[t] + (t + 1 == chunk.tokens ? last : 0.0f));
    }

    // With momentum, (32), a column a thread: what each write's influence gives to a and η, in place of dc and c.
    __device__ __forceinline__ void back_through_tables() {
        float *dc = table(0), *c = table(1), *e = table(2);
        const u32 j = threadIdx.x, n = chunk.tokens;
        float next_c = own.total[DC_LAST][j], next_e = own.total[DE_LAST][j];
        #pragma unroll 4
        for (u32 s = CHUNK; s-- > 0;) {
            float da = 0.0f, deta = 0.0f;
            if (s < n && s >= j) {
                float now = dc[s * WIDE + j] + next_c, pushed = now + next_e;
                if (s > j) da = now * c[(s - 1) * WIDE + j];
                if (s > j) deta = pushed * e[(s - 1) * WIDE + j];
                next_c = own.gates[2][s] * now, next_e = own.gates[3][s] * pushed;
            }
            dc[s * WIDE + j] = da;
            c[s * WIDE + j] = deta;
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

    // Gradients of the gates: SHARING threads to a token.
    __device__ __forceinline__ void write_gates() {
        const u32 i = threadIdx.x / SHARING;
        float da = 0.0f, deta = 0.0f;
        if (S) {
            for (u32 j = threadIdx.x % SHARING; j < CHUNK; j += SHARING)
                da += table(0)[i * WIDE + j], deta += table(1)[i * WIDE + j];
        } else {
            for (u32 j = threadIdx.x % SHARING; j < CHUNK; j += SHARING) {
                if (j < i) da += table(0)[i * WIDE + j] + own.ends[i / 8][j];
                if (j >= i) da += own.first[j];
            }
        }
        #pragma unroll
        for (u32 mask = 1; mask < SHARING; mask *= 2) {
            da += shuffle_xor(da, mask);
            deta += shuffle_xor(deta, mask);
        }
        if (threadIdx.x % SHARING != 0 || i >= chunk.tokens) return;
        const Four of = {own.gates[0][i], own.gates[1][i], own.gates[2][i], own.gates[3][i]};
        const float to_a = S ? da + own.grads[0][i] : 0.0f, to_eta = S ? deta + own.grads[1][i] : 0.0f;
        GateGrads grads = raise(p, of, own.total[DW][i], -own.total[DR][i], to_a, to_eta);
        const u64 at = chunk.token(p, i);
        args.log_a[at] = S ? grads.log_a : grads.log_a + da;
        args.theta[at] = grads.theta;
        if (args.log_eta) args.log_eta[at] = grads.log_eta;
        if (args.beta) args.beta[at] = grads.beta;
    }
};

template <u32 KEYS, u32 GROUPS, bool S>
__device__ __forceinline__ void gradients(const Bf16Gradients& args, u8* shared) {
    __shared__ typename Gradients<KEYS, GROUPS, S>::Own own;
    Gradients<KEYS, GROUPS, S> of(args, shared, own);
    if (of.chunk.tokens == 0) return;
    const bool token = threadIdx.x < CHUNK;
    if (token) own.total[DW][threadIdx.x] = 0.0f;
    of.begin();
    for (u32 column = 0; column < args.p.value; column += of.WIDTH) of.columns(column);
    float last[3];
    #pragma unroll
    for (u32 i = 0; i < (S ? 3 : 1); i++) last[i] = block_sum(of.carried[i], own.few);
    if (S) of.build_tables();
    else if (threadIdx.x < 16) own.decays.join(threadIdx.x);
    __syncthreads();
    of.masks();
    if (token) of.join_groups();
    __syncthreads();
    if (token) of.join_tokens();
    of.finish_keys();
    if (S) {
        __syncthreads();
        if (token) of.back_through_tables();
        else if (threadIdx.x == CHUNK) of.back_to_first(last);
    } else {
        for (u32 stretch = threadIdx.x / CHUNK; stretch < 8; stretch += 2 * GROUPS) of.sum_up(stretch);
        __syncthreads();
        if (token) of.sum_ends(), of.first_state(last[0]);
    }
    __syncthreads();
    of.write_gates();
}

#define GRADIENTS(name, KEYS, GROUPS, S, BLOCKS)      \
    KERNEL(name, Bf16Gradients, 128 * GROUPS, BLOCKS) {  \
        DYNAMIC_SHARED(u8, shared);                   \
        gradients<KEYS, GROUPS, S>(args, shared);     \
    }

GRADIENTS(bf16_gradients_64, 64, 2, false, 2)
GRADIENTS(bf16_gradients_128, 128, 4, false, 1)
GRADIENTS(bf16_gradients_64_momentum, 64, 2, true, 1)
GRADIENTS(bf16_gradients_128_momentum, 128, 4, true, 1)
