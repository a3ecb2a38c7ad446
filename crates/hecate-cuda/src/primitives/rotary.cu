// Rotary positions.
#include "hecate.cuh"

// `rotary::Turn` is its twin.
struct Turn {
    // [rows, heads, 2 half]
    Array x, y;
    // frequencies [half], shifts and first rows [sequences]
    const u64* table;
    // How far on each sequence is beside its shift [sequences], or null
    const u32* positions;
    u64 rows;
    u32 sequences, heads, half;
};

#define TURN 6.2831855f

// A thread for each row and pair, and a share of the heads: all heads turn by the same angle.
KERNEL(rotary, Turn, 256) {
    const double* frequencies = (const double*)args.table;  // in turns a token, signed
    const u64* shifts = args.table + args.half;              // position minus row, modulo 2⁶⁴
    const u64* starts = shifts + args.sequences;
    for (u64 i = grid_thread(); i < args.rows * args.half; i += grid_threads()) {
        Place at = place(i, args.half);
        // The sequence of the row, by bisection of the first rows.
        u32 low = 0, high = args.sequences;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (starts[middle] <= at.row) low = middle;
            else high = middle;
        }
        // Turns are whole numbers and a rest: what is left for 32 bits is at most half a turn.
        u64 further = args.positions ? args.positions[low] : 0;
        double turns = (double)(at.row + shifts[low] + further) * frequencies[at.column];
        float angle = TURN * (float)(turns - rint(turns));
        // The same for all heads of the token.
        float c = cosf(angle), s = sinf(angle);
        for (u32 head = blockIdx.y; head < args.heads; head += gridDim.y) {
            u64 first = (at.row * args.heads + head) * 2 * args.half + at.column, second = first + args.half;
            float u = load(args.x, first), v = load(args.x, second);
            store(args.y, first, u * c - v * s);
            store(args.y, second, u * s + v * c);
        }
    }
}

// `rotary::Advance` is its twin.
struct Advance {
    // [count]
    const u32* x;
    u32* y;
    u32 count, tokens;
};

// Positions after so many tokens more.
KERNEL(rotary_advance, Advance, 256) {
    u64 i = grid_thread();
    if (i < args.count) args.y[i] = args.x[i] + args.tokens;
}
