// Frozen Atlas with Newton-Schulz by pieces of a group: equations (80) to (87), for matrices of 64 by 64.
//
// The errors of a window depend on the gradient point alone: they are made for all tokens of a piece at once. Momentum and
// memory then stay in registers from token to token, laid out as products on tensor cores leave their results.
//
// Phases are functions of their own, so that each has all registers: with all in one the kernel would spill. Products of
// groups are in the kernel itself, since the compiler waits for each of them by itself where calls stand between.
#include "atlas_pieces_reverse.cuh"

// One block a multiprocessor: its arrays fill shared memory.
// Two warps a scheduler: all registers are theirs.
#define ALONE SQUARE_THREADS, 1

// `atlas.rs`: what the launch hands over, the same bytes to both passes.
template <class Cell> struct AtlasCall {
    RecurrentCall call;
    Cell cell;
};

// A block has one sequence and head at a time, or a cluster of two has.
#define RUN(declared, run) \
    declared { \
        DYNAMIC_SHARED(float, near); \
        run(args.cell, args.call, near); \
    }
RUN(KERNEL(atlas_pieces_forward_1, AtlasCall<AtlasPieces>, ALONE), run_pieces)
RUN(KERNEL(atlas_pieces_backward_1, AtlasCall<AtlasPiecesReverse>, ALONE), run_pieces_backward)
RUN(CLUSTER_KERNEL(atlas_pieces_forward_2, AtlasCall<AtlasPieces>, SQUARE_THREADS, 2), run_pieces)
RUN(CLUSTER_KERNEL(atlas_pieces_backward_2, AtlasCall<AtlasPiecesReverse>, SQUARE_THREADS, 2), run_pieces_backward)
