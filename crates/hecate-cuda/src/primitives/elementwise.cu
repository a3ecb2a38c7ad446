// Element by element: maps, sums, products, conversions.
#include "hecate.cuh"
#include "maps.cuh"

// `2 √(2/π)`: `½ (1 + tanh u) = σ(2u)`.
#define GELU_SCALE 1.5957691f
#define GELU_CUBIC 0.044715f

__device__ __forceinline__ float gelu_argument(float x) { return GELU_SCALE * x * (1.0f + GELU_CUBIC * x * x); }

// In the order of `Map::ALL`.
enum { SILU, SIGMOID, LOG_SIGMOID, SOFTPLUS, GELU, EXP };

__device__ __forceinline__ float mapped(u32 map, float x) {
    switch (map) {
        case SILU: return x * sigmoid(x);
        case SIGMOID: return sigmoid(x);
        case LOG_SIGMOID: return -softplus(-x);
        case SOFTPLUS: return softplus(x);
        case GELU: return x * sigmoid(gelu_argument(x));
        default: return expf(x);
    }
}

__device__ __forceinline__ float slope(u32 map, float x) {
    switch (map) {
        case SILU: return sigmoid(x) * (1.0f + x * sigmoid(-x));
        case SIGMOID: return sigmoid(x) * sigmoid(-x);
        case LOG_SIGMOID: return sigmoid(-x);
        case SOFTPLUS: return sigmoid(x);
        case GELU: {
            float up = sigmoid(gelu_argument(x)), down = sigmoid(-gelu_argument(x));
            // Where x² would overflow, `up` or `down` has long been 0.
            float near = x > 1e6f ? 1e6f : x < -1e6f ? -1e6f : x;
            return up * (1.0f + near * down * GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * near * near));
        }
        default: return expf(x);
    }
}

// `work.run<N>(i)` for all elements: four at a time, and one at a time behind the last four.
template <class Work> __device__ __forceinline__ void for_elements(u64 count, Work work) {
    u64 fours = count / 4;
    for (u64 i = grid_thread(); i < fours; i += grid_threads()) work.template run<4>(4 * i);
    for (u64 i = 4 * fours + grid_thread(); i < count; i += grid_threads()) work.template run<1>(i);
}

struct MapForward {
    Array x, y;
    u64 count;
    u32 map;

    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> y = load_run<N>(x, i);
        for (u32 n = 0; n < N; n++) y.x[n] = mapped(map, y.x[n]);
        store_run<N>(this->y, i, y);
    }
};

KERNEL(map_forward, MapForward, 256) { for_elements(args.count, args); }

struct MapBackward {
    Array x, dy, dx;
    u64 count;
    u32 map;

    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i), slopes = load_run<N>(dy, i);
        for (u32 n = 0; n < N; n++) slopes.x[n] *= slope(map, x.x[n]);
        store_run<N>(dx, i, slopes);
    }
};

KERNEL(map_backward, MapBackward, 256) { for_elements(args.count, args); }

struct Gated {
    Array x, g, y;
    u64 count;
    u32 map;

    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> y = load_run<N>(x, i), g = load_run<N>(this->g, i);
        for (u32 n = 0; n < N; n++) y.x[n] *= mapped(map, g.x[n]);
        store_run<N>(this->y, i, y);
    }
};

KERNEL(gated, Gated, 256) { for_elements(args.count, args); }

struct GatedBackward {
    Array x, g, dy, dx, dg;
    u64 count;
    u32 map;

    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i), g = load_run<N>(this->g, i), dy = load_run<N>(this->dy, i);
        for (u32 n = 0; n < N; n++) {
            x.x[n] = slope(map, g.x[n]) * (dy.x[n] * x.x[n]);
            dy.x[n] *= mapped(map, g.x[n]);
        }
        store_run<N>(dx, i, dy);
        store_run<N>(dg, i, x);
    }
};

KERNEL(gated_backward, GatedBackward, 256) { for_elements(args.count, args); }

// `a [count]`, `b [width]` for each row of `a`.
struct Combine {
    Array a, b, y;
    u64 count, width;
    u32 product;

    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> a = load_run<N>(this->a, i);
        u64 column = width == count ? i : place(i, width).column;
        // Four of a row whose length four does not divide are no neighbours in `b`.
        bool whole = N == 1 || width == count || width % 4 == 0;
        Run<N> b;
        if (whole) b = load_run<N>(this->b, column);
        else for (u32 n = 0; n < N; n++) b.x[n] = load(this->b, place(column + n, width).column);
        for (u32 n = 0; n < N; n++) a.x[n] = product ? a.x[n] * b.x[n] : a.x[n] + b.x[n];
        store_run<N>(y, i, a);
    }
};

KERNEL(combine, Combine, 256) { for_elements(args.count, args); }

struct Scale {
    Array x, y;
    u64 count;
    float factor;

    template <u32 N> __device__ __forceinline__ void run(u64 i) const {
        Run<N> x = load_run<N>(this->x, i);
        for (u32 n = 0; n < N; n++) x.x[n] *= factor;
        store_run<N>(y, i, x);
    }
};

// A conversion is the factor 1 and another type.
KERNEL(scale, Scale, 256) { for_elements(args.count, args); }
