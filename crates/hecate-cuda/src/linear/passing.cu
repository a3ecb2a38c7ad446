// State passing: what segments of a sequence begin with, out of what each makes of an empty memory and of a unit one.
//
// Rows of M and, with momentum, of S stand below each other: K rows of one, or 2 K of both. A segment takes the memory x that it
// begins with to P x + L. Back, the gradient of what it leaves is taken to Pᵀ x + L.
#include "hecate.cuh"

static constexpr u32 THREADS = 256;
// Columns of the memory that a block has, four to a thread; rows between those of a thread.
static constexpr u32 COLUMNS = 8, BETWEEN = THREADS / 2;
// Tiles of P that lie in shared memory: the one in work, and those on their way.
static constexpr u32 STAGES = 4;

// Which segments a sequence has; `passing::Segments` is its twin.
struct Segments {
    // First segment of each sequence and the end, then the sequence of each segment; null: `each` of every sequence
    const u32* table;
    u32 sequences, each;

    // Returns the first segment of a sequence.
    __device__ u32 first(u32 sequence) const { return table ? table[sequence] : sequence * each; }
    // Returns the sequence of a segment.
    __device__ u32 owner(u32 segment) const { return table ? table[sequences + 1 + segment] : segment / each; }
};

// What segments start from, to find L and P.
struct PassingOpen {
    Segments of;
    // [N,H,K,V]: what sequences begin with, or the gradient of what they leave; s is null without momentum
    const float *m, *s;
    // [segments,H,K,wide]
    float *to_m, *to_s;
    u32 heads, key, value, wide, back, unused;
};

// Columns of what a sequence has at that end, zeros in its other segments; then a unit matrix [rows,rows]. A block has a row.
KERNEL(passing_open, PassingOpen, THREADS) {
    const u32 row = blockIdx.x % args.key, head = blockIdx.x / args.key, segment = head / args.heads;
    const u32 sequence = args.of.owner(segment);
    const bool end = segment == (args.back ? args.of.first(sequence + 1) - 1 : args.of.first(sequence));
    const u64 from = (((u64)sequence * args.heads + head % args.heads) * args.key + row) * args.value;
    const u64 to = (u64)blockIdx.x * args.wide;
    for (u32 column = threadIdx.x; column < args.wide; column += THREADS) {
        const bool given = column < args.value && end, unit = column >= args.value;
        args.to_m[to + column] = given ? args.m[from + column] : unit && column - args.value == row ? 1.0f : 0.0f;
        if (!args.to_s) continue;
        args.to_s[to + column] = given ? args.s[from + column] : unit && column - args.value == args.key + row ? 1.0f : 0.0f;
    }
}

// From segment to segment.
struct PassingJoin {
    Segments of;
    // L: [segments,H,K,l_wide]; P: the columns from V on of [segments,H,K,p_wide]
    const float *l_m, *l_s, *p_m, *p_s;
    // [N,H,K,V]: what sequences begin with; back the gradient of what they leave
    const float *m, *s;
    // [segments,H,K,V]: the same of segments
    float *begin_m, *begin_s;
    // [N,H,K,V]: what sequences leave; back the gradient of what they begin with
    float *end_m, *end_s;
    u32 heads, key, value, l_wide, p_wide, matrices;
};

// Starts a copy of 4 bytes to shared memory, of zeros where `inside` is false; `from` is an address in any case.
__device__ __forceinline__ void copy_4(void* to, const void* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

// A block: one sequence and head, eight columns. ROWS of M, or of M and S, at most. `passing.rs` counts its shared memory.
template <bool BACK, u32 ROWS>
struct Joining {
    // Rows of x whose products are added at once, and from row to row of such a tile of P.
    static constexpr u32 TILE = 4096 / ROWS, APART = TILE + 1;
    // Rows of a thread.
    static constexpr u32 OWN = ROWS / BETWEEN;
    const PassingJoin& args;
    // [STAGES,ROWS,APART]; [ROWS,2] of four columns
    float* ring;
    float4* x;
    u32 head, rows, column, first, end, tiles;

    // Segment and head of a step; back, the first step is the last segment.
    __device__ u64 state(u32 step) const { return (u64)(BACK ? end - 1 - step : first + step) * args.heads + head; }
    // Element `row` of a column of four, of M or of S.
    template <typename T>
    __device__ T* place(T* m, T* s, u64 state, u32 row, u32 wide) const {
        return (row < args.key ? m : s) + (state * args.key + row % args.key) * wide + column;
    }
    // Returns four columns of row `row` of [M; S]; zeros outside.
    __device__ float4 read(const float* m, const float* s, u64 state, u32 row, u32 wide) const {
        if (row >= rows) return float4{};
        const float* from = place(m, s, state, row, wide);
        float x[4];
        #pragma unroll
        for (u32 c = 0; c < 4; c++) x[c] = column + c < args.value ? from[c] : 0.0f;
        return make_float4(x[0], x[1], x[2], x[3]);
    }
    // Stores four columns of row `row` of [M; S].
    __device__ void write(float* m, float* s, u64 state, u32 row, float4 x) const {
        if (row >= rows) return;
        float* to = place(m, s, state, row, args.value);
        const float from[4] = {x.x, x.y, x.z, x.w};
        #pragma unroll
        for (u32 c = 0; c < 4; c++) if (column + c < args.value) to[c] = from[c];
    }
    // Starts copies of what rows of x count in rows of the sum: tile `number` of all steps but the first.
    __device__ void fetch(u32 number) const {
        const u32 step = 1 + number / tiles;
        if (step < end - first) {
            const u64 at = state(step);
            const u32 begin = number % tiles * TILE;
            float* tile = ring + number % STAGES * ROWS * APART;
            for (u32 i = threadIdx.x; i < ROWS * TILE; i += THREADS) {
                // Neighbours in memory are neighbouring threads'.
                const u32 out = BACK ? i % ROWS : i / TILE, in = BACK ? i / ROWS : i % TILE;
                const u32 row = BACK ? begin + in : out, unit = BACK ? out : begin + in;
                const bool inside = max(row, unit) < rows;
                const float* of = inside && row >= args.key ? args.p_s : args.p_m;
                const u64 from = (at * args.key + row % args.key) * args.p_wide + args.value + unit;
                copy_4(tile + out * APART + in, of + (inside ? from : 0), inside);
            }
        }
        copies_commit();
    }
    // sums += a tile times its rows of x.
    __device__ void add(u32 number, float4 (&sums)[OWN]) const {
        const float* tile = ring + number % STAGES * ROWS * APART + threadIdx.x / 2 * APART;
        const float4* of = x + number % tiles * TILE * 2 + threadIdx.x % 2;
        #pragma unroll
        for (u32 j = 0; j < TILE; j++) {
            const float4 in = of[2 * j];
            #pragma unroll
            for (u32 n = 0; n < OWN; n++) {
                const float by = tile[n * BETWEEN * APART + j];
                sums[n].x += by * in.x, sums[n].y += by * in.y, sums[n].z += by * in.z, sums[n].w += by * in.w;
            }
        }
    }
    // x of this step to where its segment begins and to all threads; the sums begin with L.
    __device__ void begin(u32 step, float4 (&sums)[OWN], float4 (&own)[OWN]) const {
        #pragma unroll
        for (u32 n = 0; n < OWN; n++) {
            const u32 row = threadIdx.x / 2 + n * BETWEEN;
            x[2 * row + threadIdx.x % 2] = sums[n];
            write(args.begin_m, args.begin_s, state(step), row, sums[n]);
            sums[n] = own[n];
            // Of the next step, long before it is needed.
            if (step + 1 < end - first) own[n] = read(args.l_m, args.l_s, state(step + 1), row, args.l_wide);
        }
    }
};

// A thread has four columns of some rows. The first segment begins with what is given, which its L knows of.
template <bool BACK, u32 ROWS>
__device__ void join(const PassingJoin& args, float* shared) {
    using Of = Joining<BACK, ROWS>;
    const u32 blocks = (args.value + COLUMNS - 1) / COLUMNS, rows = args.matrices * args.key;
    const u32 given = blockIdx.x / blocks, sequence = given / args.heads;
    const u32 column = blockIdx.x % blocks * COLUMNS + threadIdx.x % 2 * 4, tiles = (rows + Of::TILE - 1) / Of::TILE;
    float* ring = shared + ROWS * COLUMNS;
    const Of of{
        args, ring, (float4*)shared, given % args.heads, rows, column, args.of.first(sequence), args.of.first(sequence + 1), tiles
    };
    for (u32 n = 0; n + 1 < STAGES; n++) of.fetch(n);
    float4 sums[Of::OWN], own[Of::OWN];
    #pragma unroll
    for (u32 n = 0; n < Of::OWN; n++) {
        const u32 row = threadIdx.x / 2 + n * BETWEEN;
        sums[n] = of.read(args.m, args.s, given, row, args.value);
        own[n] = of.read(args.l_m, args.l_s, of.state(0), row, args.l_wide);
    }
    of.begin(0, sums, own);
    for (u32 step = 1; step < of.end - of.first; step++) {
        // Everybody is done with the x before.
        __syncthreads();
        of.begin(step, sums, own);
        for (u32 tile = 0; tile < tiles; tile++) {
            const u32 number = (step - 1) * tiles + tile;
            copies_wait<STAGES - 2>();
            // Everybody's copies are there, and all are done with the tile before.
            __syncthreads();
            of.fetch(number + STAGES - 1);
            of.add(number, sums);
        }
    }
    #pragma unroll
    for (u32 n = 0; n < Of::OWN; n++)
        of.write(args.end_m, args.end_s, given, threadIdx.x / 2 + n * BETWEEN, sums[n]);
}

#define JOIN(name, BACK, ROWS)                \
    KERNEL(name, PassingJoin, THREADS) {      \
        DYNAMIC_SHARED(float, shared);        \
        join<BACK, ROWS>(args, shared);       \
    }

// Name, backward, rows at most.
JOIN(passing_join_128, false, 128)
JOIN(passing_join_256, false, 256)
JOIN(passing_join_back_128, true, 128)
JOIN(passing_join_back_256, true, 256)
