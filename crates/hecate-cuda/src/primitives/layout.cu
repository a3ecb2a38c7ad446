// Cutting and joining along an axis: copies of runs of elements.
#include "hecate.cuh"

// All in elements of `size` bytes.
// `runs` runs of `run` elements, from and to places `from_stride` and `to_stride` apart; `layout::CopyRuns` is its twin.
struct CopyRuns {
    const void* from;
    void* to;
    u64 runs, run;
    u64 from_stride, to_stride;
    u32 size;
};

// Sixteen bytes.
struct __align__(16) Wide {
    u64 low, high;
};

// An element of 2 to 16 bytes a thread and step.
template <class T> __device__ __forceinline__ void copy(const CopyRuns& args) {
    for (u64 i = grid_thread(); i < args.runs * args.run; i += grid_threads()) {
        Place at = place(i, args.run);
        ((T*)args.to)[at.row * args.to_stride + at.column] = ((const T*)args.from)[at.row * args.from_stride + at.column];
    }
}

// Threads take elements of all runs in turn.
KERNEL(copy_runs, CopyRuns, 256) {
    switch (args.size) {
        case 2: copy<u16>(args); break;
        case 4: copy<u32>(args); break;
        case 8: copy<u64>(args); break;
        default: copy<Wide>(args);
    }
}

// Several arrays at once, each to another place.
struct Pair {
    const u32* from;
    u32* to;
    u64 words;
};

// As many as the argument of a kernel has room for.
struct CopyArrays {
    Pair pairs[32];
};

// Block y is a pair.
KERNEL(copy_arrays, CopyArrays, 256) {
    const Pair& pair = args.pairs[blockIdx.y];
    for (u64 i = grid_thread(); i < pair.words; i += grid_threads()) pair.to[i] = pair.from[i];
}
