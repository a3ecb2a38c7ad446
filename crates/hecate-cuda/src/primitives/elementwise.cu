// Element by element: maps, sums, products, conversions.
#include "hecate.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// `log(1 + eˣ)`; NaN goes through the comparison.
__device__ __forceinline__ float softplus(float x) { return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x))); }

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

struct MapForward {
    Array x, y;
    u64 count;
    u32 map;
};

KERNEL(map_forward, MapForward, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) store(args.y, i, mapped(args.map, load(args.x, i)));
}

struct MapBackward {
    Array x, dy, dx;
    u64 count;
    u32 map;
};

KERNEL(map_backward, MapBackward, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads())
        store(args.dx, i, slope(args.map, load(args.x, i)) * load(args.dy, i));
}

// `a [count]`, `b [width]` for each row of `a`.
struct Combine {
    Array a, b, y;
    u64 count, width;
    u32 product;
};

KERNEL(combine, Combine, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) {
        float a = load(args.a, i), b = load(args.b, args.width == args.count ? i : place(i, args.width).column);
        store(args.y, i, args.product ? a * b : a + b);
    }
}

struct Scale {
    Array x, y;
    u64 count;
    float factor;
};

// A conversion is the factor 1 and another type.
KERNEL(scale, Scale, 256) {
    for (u64 i = grid_thread(); i < args.count; i += grid_threads()) store(args.y, i, args.factor * load(args.x, i));
}
