// Element by element: maps, sums, products, conversions.
#include "entries.cuh"
#include "follow.cuh"
#include "maps.cuh"
#include "random.cuh"

// `2 √(2/π)`: `½ (1 + tanh u) = σ(2u)`.
#define GELU_SCALE 1.5957691f
#define GELU_CUBIC 0.044715f

// u in gelu(x) = x σ(u).
__device__ __forceinline__ float gelu_argument(float x) { return GELU_SCALE * x * (1.0f + GELU_CUBIC * x * x); }

// In the order of `Map::ALL`.
// Numbers cross the launch as they stand here: a map that is added goes to the end of both lists.
enum { SILU, SIGMOID, LOG_SIGMOID, SOFTPLUS, GELU, EXP, RELU, RELU_SQUARED };

// What is done with MAP, one of them, known while compiling.
// One branch for a run of elements, and none for each of them.
#define BY_MAP(map, ...) \
    switch (map) { \
        case SILU: { constexpr u32 MAP = SILU; __VA_ARGS__; break; } \
        case SIGMOID: { constexpr u32 MAP = SIGMOID; __VA_ARGS__; break; } \
        case LOG_SIGMOID: { constexpr u32 MAP = LOG_SIGMOID; __VA_ARGS__; break; } \
        case SOFTPLUS: { constexpr u32 MAP = SOFTPLUS; __VA_ARGS__; break; } \
        case GELU: { constexpr u32 MAP = GELU; __VA_ARGS__; break; } \
        case RELU: { constexpr u32 MAP = RELU; __VA_ARGS__; break; } \
        case RELU_SQUARED: { constexpr u32 MAP = RELU_SQUARED; __VA_ARGS__; break; } \
        default: { constexpr u32 MAP = EXP; __VA_ARGS__; } \
    }

// max(x, 0), and NaN of NaN.
__device__ __forceinline__ float above_zero(float x) { return x < 0.0f ? 0.0f : x; }

// The function's value, and its derivative below.
template <u32 MAP> __device__ __forceinline__ float mapped(float x) {
    if constexpr (MAP == SILU) return silu(x);
    else if constexpr (MAP == SIGMOID) return sides(x).up;
    // log σ(x) = −log(1 + e⁻ˣ), which does not underflow to log 0.
    else if constexpr (MAP == LOG_SIGMOID) return -softplus(-x);
    else if constexpr (MAP == SOFTPLUS) return softplus(x);
    else if constexpr (MAP == GELU) return x * sides(gelu_argument(x)).up;
    else if constexpr (MAP == RELU) return above_zero(x);
    else if constexpr (MAP == RELU_SQUARED) return above_zero(x) * above_zero(x);
    else return expf(x);
}

// By x, in 32 bits; exact where the map is flat, since σ(x) and σ(−x) are made apart.
template <u32 MAP> __device__ __forceinline__ float slope(float x) {
    if constexpr (MAP == EXP) return expf(x);
    if constexpr (MAP == SILU) return silu_slope(x);
    if constexpr (MAP == RELU) return x > 0.0f ? 1.0f : x <= 0.0f ? 0.0f : x;
    if constexpr (MAP == RELU_SQUARED) return 2.0f * above_zero(x);
    // The others are made of σ(x) and σ(−x).
    Sides at = sides(MAP == GELU ? gelu_argument(x) : x);
    if constexpr (MAP == SIGMOID) return at.up * at.down;
    else if constexpr (MAP == LOG_SIGMOID) return at.down;
    else if constexpr (MAP == SOFTPLUS) return at.up;
    // Where x² would overflow, `up` or `down` has long been 0.
    float near = x > 1e6f ? 1e6f : x < -1e6f ? -1e6f : x;
    return at.up * (1.0f + near * at.down * GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * near * near));
}

// `work.run<N>(i)` for all elements: N at a time, and one at a time after the last N.
template <u32 N, class Work> __device__ __forceinline__ void for_runs(const Work& work) {
    // Arrays begin at multiples of 256 bytes, so runs begin at multiples of 16.
    u64 runs = work.count / N;
    for (u64 i = grid_thread(); i < runs; i += grid_threads()) work.template run<N>(N * i);
    for (u64 i = N * runs + grid_thread(); i < work.count; i += grid_threads()) work.template run<1>(i);
}

// The same in runs of 16 bytes; all arrays are of this type.
template <class Work> __device__ __forceinline__ void for_elements(u32 type, const Work& work) {
    BY_TYPE(type, for_runs<RUN_LENGTH<TYPE>>(work.of_type(TYPE)))
}

// Arrays `[count]` of one type. `run<N>` takes N neighbours from element `i` on, as in all structures here.
struct MapForward {
    Array x, y;
    u64 count;
    u32 map;

    // Returns the same with `type` as a constant, which the compiler can see.
    __device__ __forceinline__ MapForward of_type(u32 type) const {
        return {{x.data, type}, {y.data, type}, count, map};
    }
    // y[i:i+N] = map(x[i:i+N])
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> y = load_run<N>(x, i);
        BY_MAP(map, for (u32 n = 0; n < N; n++) y.x[n] = mapped<MAP>(y.x[n]))
        store_run<N>(this->y, i, y);
    }
};

// A thread has runs of 16 bytes, `grid_threads()` runs from each other; so have all kernels here.
KERNEL(map_forward, MapForward, 256) { for_elements(args.x.type, args); }

// dx = map′(x) dy, arrays `[count]` of one type.
struct MapBackward {
    Array x, dy, dx;
    u64 count;
    u32 map;

    // Returns the same with a constant type.
    __device__ __forceinline__ MapBackward of_type(u32 type) const {
        return {{x.data, type}, {dy.data, type}, {dx.data, type}, count, map};
    }
    // dx[i:i+N] = map′(x[i:i+N]) * dy[i:i+N]
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i), slopes = load_run<N>(dy, i);
        BY_MAP(map, for (u32 n = 0; n < N; n++) slopes.x[n] *= slope<MAP>(x.x[n]))
        store_run<N>(dx, i, slopes);
    }
};

// As the forward, with the derivative.
KERNEL(map_backward, MapBackward, 256) { for_elements(args.x.type, args); }

// y = x map(g), arrays `[count]` of one type.
struct Gated {
    Array x, g, y;
    u64 count;
    u32 map;

    // Returns the same with a constant type.
    __device__ __forceinline__ Gated of_type(u32 type) const {
        return {{x.data, type}, {g.data, type}, {y.data, type}, count, map};
    }
    // y[i:i+N] = x[i:i+N] * map(g[i:i+N])
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> y = load_run<N>(x, i), g = load_run<N>(this->g, i);
        BY_MAP(map, for (u32 n = 0; n < N; n++) y.x[n] *= mapped<MAP>(g.x[n]))
        store_run<N>(this->y, i, y);
    }
};

// One read of each input, one write.
KERNEL(gated, Gated, 256) {
    follow();
    for_elements(args.x.type, args);
}

// dx = map(g) dy and dg = map′(g) x dy, arrays `[count]` of one type.
struct GatedBackward {
    Array x, g, dy, dx, dg;
    u64 count;
    u32 map;

    // Returns the same with a constant type.
    __device__ __forceinline__ GatedBackward of_type(u32 type) const {
        return {{x.data, type}, {g.data, type}, {dy.data, type}, {dx.data, type}, {dg.data, type}, count, map};
    }
    // dx = map(g) * dy and dg = map′(g) * x * dy, for elements i:i+N.
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i), g = load_run<N>(this->g, i), dy = load_run<N>(this->dy, i);
        BY_MAP(map, for (u32 n = 0; n < N; n++) {
            x.x[n] = slope<MAP>(g.x[n]) * (dy.x[n] * x.x[n]);
            dy.x[n] *= mapped<MAP>(g.x[n]);
        })
        store_run<N>(dx, i, dy);
        store_run<N>(dg, i, x);
    }
};

// Two results of three inputs.
KERNEL(gated_backward, GatedBackward, 256) { for_elements(args.x.type, args); }

// Neighbours of an array `b [width]` that serves each row of `[count]`, from element `i` of all on.
template <u32 N> __device__ __forceinline__ Run<N> load_shared_row(const Array& b, u64 i, u64 count, u64 width) {
    // b has all elements itself.
    if (width == count) return load_run<N>(b, i);
    // b repeats every `width` elements.
    u64 column = place(i, width).column;
    if (width % N == 0) return load_run<N>(b, column);
    // Neighbours of a row whose length N does not divide are none in `b`.
    Run<N> run;
    for (u32 n = 0; n < N; n++) {
        run.x[n] = load(b, column);
        column = column + 1 == width ? 0 : column + 1;
    }
    return run;
}

// In the order of `Combine` in Rust.
enum { SUM, PRODUCT, DIFFERENCE, QUOTIENT };

// y = a + b, or what else `how` says; `a [count]`, `b [width]` for each row of `a`.
struct Combine {
    Array a, b, y;
    u64 count, width;
    u32 how;

    // Returns the same with a constant type.
    __device__ __forceinline__ Combine of_type(u32 type) const {
        return {{a.data, type}, {b.data, type}, {y.data, type}, count, width, how};
    }
    // y[i:i+N] = a[i:i+N] op b[(i:i+N) % width], where op is + * - or /
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> a = load_run<N>(this->a, i), b = load_shared_row<N>(this->b, i, count, width);
        switch (how) {
            case SUM: for (u32 n = 0; n < N; n++) a.x[n] += b.x[n]; break;
            case PRODUCT: for (u32 n = 0; n < N; n++) a.x[n] *= b.x[n]; break;
            case DIFFERENCE: for (u32 n = 0; n < N; n++) a.x[n] -= b.x[n]; break;
            default: for (u32 n = 0; n < N; n++) a.x[n] /= b.x[n];
        }
        store_run<N>(y, i, a);
    }
};

// b is read again for every row, out of the cache.
KERNEL(combine, Combine, 256) { for_elements(args.a.type, args); }

// y = map(x + b), `b [width]` for each row of `x [count]`.
struct Biased {
    Array x, b, y;
    u64 count, width;
    u32 map;

    // Returns the same with a constant type.
    __device__ __forceinline__ Biased of_type(u32 type) const {
        return {{x.data, type}, {b.data, type}, {y.data, type}, count, width, map};
    }
    // y[i:i+N] = map(x[i:i+N] + b[(i:i+N) % width])
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i), b = load_shared_row<N>(this->b, i, count, width);
        BY_MAP(map, for (u32 n = 0; n < N; n++) x.x[n] = mapped<MAP>(x.x[n] + b.x[n]))
        store_run<N>(y, i, x);
    }
};

// The sum itself stays in registers, here and in the backward.
KERNEL(biased, Biased, 256) { for_elements(args.x.type, args); }

// dx = map′(x + b) dy
struct BiasedBackward {
    Array x, b, dy, dx;
    u64 count, width;
    u32 map;

    // Returns the same with a constant type.
    __device__ __forceinline__ BiasedBackward of_type(u32 type) const {
        return {{x.data, type}, {b.data, type}, {dy.data, type}, {dx.data, type}, count, width, map};
    }
    // dx[i:i+N] = map′(x[i:i+N] + b[(i:i+N) % width]) * dy[i:i+N]
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i), b = load_shared_row<N>(this->b, i, count, width), slopes = load_run<N>(dy, i);
        BY_MAP(map, for (u32 n = 0; n < N; n++) slopes.x[n] *= slope<MAP>(x.x[n] + b.x[n]))
        store_run<N>(dx, i, slopes);
    }
};

// Of which the gradient of b is the sum over rows.
KERNEL(biased_backward, BiasedBackward, 256) { for_elements(args.x.type, args); }

// y = factor x, arrays `[count]` of any two types.
struct Scale {
    Array x, y;
    u64 count;
    float factor;

    // y[i:i+N] = factor * x[i:i+N]
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i);
        for (u32 n = 0; n < N; n++) x.x[n] *= factor;
        store_run<N>(y, i, x);
    }
};

// From one type to any.
template <u32 FROM> __device__ __forceinline__ void scale_from(const Scale& args) {
    BY_TYPE(args.y.type, for_runs<(FROM == 0 ? 4 : RUN_LENGTH<TYPE>)>(Scale{{args.x.data, FROM}, {args.y.data, TYPE}, args.count, args.factor}))
}

// A conversion is the factor 1 and another type.
KERNEL(scale, Scale, 256) { BY_TYPE(args.x.type, scale_from<TYPE>(args)) }

// y = kept x, or 0 for elements whose word is under `dropped`; arrays `[count]` of one type.
struct Dropout {
    Array x, y;
    u64 count;
    uint2 key;
    u32 dropped;
    float kept;

    // Returns the same with a constant type.
    __device__ __forceinline__ Dropout of_type(u32 type) const {
        return {{x.data, type}, {y.data, type}, count, key, dropped, kept};
    }
    // y[i:i+N] = x[i:i+N] * (word < dropped ? 0 : kept), with a random word for each element.
    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> y = load_run<N>(x, i);
        for (u32 n = 0; n < N; n += 2) {
            // Two neighbours share a block's words; runs of more than one begin at an even element.
            uint2 words = threefry(key, (i + n) / 2);
            y.x[n] *= ((i + n) % 2 ? words.y : words.x) < dropped ? 0.0f : kept;
            if (n + 1 < N) y.x[n + 1] *= words.y < dropped ? 0.0f : kept;
        }
        store_run<N>(this->y, i, y);
    }
};

// A thread makes the mask of its own elements.
KERNEL(dropout, Dropout, 256) { for_elements(args.x.type, args); }

// Arrays `[count]`, of any two types.
struct Cast {
    Array x, y;
    u64 count;
    // Block
    u64 first;
};

// A table of arrays, cast in one launch.
struct Casts {
    // [number], ascending by `first`
    const Cast* casts;
    u32 number;
};

// Runs that a thread asks for at once.
const u32 TOGETHER = 4;

// A block's elements `start .. end`: every thread asks for TOGETHER runs before it writes the first.
template <u32 FROM, u32 TO> __device__ __forceinline__ void cast_block(const Cast& cast, u64 start, u64 end) {
    // Runs that neither array's 16 bytes exceed.
    constexpr u32 N = FROM == 0 ? 4 : RUN_LENGTH<TO>;
    // With types known while compiling.
    const Array x = {cast.x.data, FROM}, y = {cast.y.data, TO};
    const u64 whole = end / N * N, step = N * blockDim.x;
    for (u64 i = start + N * threadIdx.x; i < whole; i += TOGETHER * step) {
        Run<N> run[TOGETHER];
#pragma unroll
        for (u32 t = 0; t < TOGETHER; t++) run[t] = load_run<N>(x, i + t * step < whole ? i + t * step : i);
#pragma unroll
        for (u32 t = 0; t < TOGETHER; t++)
            if (i + t * step < whole) store_run<N>(y, i + t * step, run[t]);
    }
    if (whole + threadIdx.x < end) store(y, whole + threadIdx.x, load(x, whole + threadIdx.x));
}

// From one type to any.
template <u32 FROM> __device__ __forceinline__ void cast_from(const Cast& cast, u64 start, u64 end) {
    BY_TYPE(cast.y.type, cast_block<FROM, TYPE>(cast, start, end))
}

// A block has BLOCK_ELEMENTS elements of one array.
KERNEL(cast_all, Casts, 256) {
    const Cast own = own_entry(args.casts, args.number);
    const u64 start = (blockIdx.x - own.first) * BLOCK_ELEMENTS, end = start + BLOCK_ELEMENTS < own.count ? start + BLOCK_ELEMENTS : own.count;
    BY_TYPE(own.x.type, cast_from<TYPE>(own, start, end))
}
