// Element by element: maps, sums, products, conversions.
#include "hecate.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))) + 0.0f * x; }

// In the order of `Map::ALL`.
enum { SILU, SIGMOID, LOG_SIGMOID, SOFTPLUS, GELU, EXP };

__device__ float mapped(u32 map, float x) {
    switch (map) {
        case SILU: return x * sigmoid(x);
        case SIGMOID: return sigmoid(x);
        case LOG_SIGMOID: return -softplus(-x);
        case SOFTPLUS: return softplus(x);
        case GELU: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
        default: return expf(x);
    }
}

__device__ float slope(u32 map, float x) {
    float s = sigmoid(x);
    switch (map) {
        case SILU: return s * (1.0f + x * sigmoid(-x));
        case SIGMOID: return s * sigmoid(-x);
        case LOG_SIGMOID: return sigmoid(-x);
        case SOFTPLUS: return s;
        case GELU: {
            const float c = 0.7978845608028654f;
            float t = tanhf(c * (x + 0.044715f * x * x * x));
            return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * c * (1.0f + 3.0f * 0.044715f * x * x);
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
