// The function of slots that Trellis learns through: equations (70) to (74).
#pragma once
#include "activation.cuh"
#include "block.cuh"

// Numbered so on the host too.
enum { L2_SILU, LN_SILU, IDENTITY };

// `φ` at one point `z [m]`: value, first and second derivative, rows `[m]` in scratch, and the norm n. Each element is one
// lane's of those that call, so that no barrier is needed.
struct PhiPoint {
    float *f, *slope, *second;
    float n;
};

// This lane's elements of a row that so many lanes share, a power of two.
#define LANES_OF(lanes, c, columns) for (u32 c = threadIdx.x & (lanes - 1); c < (columns); c += lanes)

// Rows `[m]` of a point, and of the workspace of its second derivative.
#define POINT_ROWS 3
#define WORKSPACE_ROWS 6

// `φ` over `m` slots, by some neighbouring lanes of a warp, a power of two of them.
// All lanes of the warp call every function of it; rows are [m] in scratch, lane by lane.
struct Phi {
    // One of the enumeration; m; the lanes that have a row.
    u32 kind, slots, lanes;
    float epsilon;

    // Sums over the lanes, in each of them: of what each has, of a row, of products of two.
    __device__ float sum(float x) const {
        for (u32 mask = lanes / 2; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
        return x;
    }
    // Returns x.sum() of a row [slots].
    __device__ float total(const float* x) const {
        float own = 0.0f;
        LANES_OF(lanes, i, slots) own += x[i];
        return sum(own);
    }
    // Returns x · y of two rows [slots].
    __device__ float dot(const float* x, const float* y) const {
        float own = 0.0f;
        LANES_OF(lanes, i, slots) own += x[i] * y[i];
        return sum(own);
    }

    // 1/m for the mean of a layer norm; 1 for the length.
    __device__ float share() const { return kind == LN_SILU ? 1.0f / (float)slots : 1.0f; }

    // What `C` takes off.
    __device__ float mean(const float* x) const { return kind == LN_SILU ? total(x) * share() : 0.0f; }

    // (70), in the rows that start at `rows`.
    __device__ PhiPoint at(const float* z, float* rows) const {
        PhiPoint p = {rows, rows + slots, rows + 2 * slots, 1.0f};
        // f(z) and its derivatives, before the norm.
        LANES_OF(lanes, i, slots) {
            if (kind == IDENTITY) {
                p.f[i] = z[i];
                continue;
            }
            // Value and two derivatives of one logistic function.
            Curve s = silu(z[i]);
            p.f[i] = s.value;
            p.slope[i] = s.slope;
            p.second[i] = s.second;
        }
        if (kind == IDENTITY) return p;
        // Then the mean is taken off, where φ has one, and the length is divided by.
        float centre = mean(p.f), square = 0.0f;
        LANES_OF(lanes, i, slots) {
            p.f[i] -= centre;
            square += p.f[i] * p.f[i];
        }
        // n of (70); ε keeps it over 0 where all of s is.
        p.n = sqrtf(share() * sum(square) + epsilon);
        LANES_OF(lanes, i, slots) p.f[i] /= p.n;
        return p;
    }

    // `out = N e` of (71); they may be the same.
    __device__ void norm_vjp(const PhiPoint& p, const float* e, float* out) const {
        // The part of e along φ(z), which the norm takes away.
        float centre = mean(e), along = share() * dot(p.f, e);
        LANES_OF(lanes, i, slots) out[i] = (e[i] - centre - along * p.f[i]) / p.n;
    }

    // `e ← J(z)ᵀ e` of (71).
    __device__ void pullback(const PhiPoint& p, float* e) const {
        if (kind == IDENTITY) return;
        norm_vjp(p, e, e);
        LANES_OF(lanes, i, slots) e[i] *= p.slope[i];
    }

    // `u` of (72).
    __device__ void inner_grad(const PhiPoint& p, const float* code, float* u) const {
        // The error of the code; back through φ it is u.
        LANES_OF(lanes, i, slots) u[i] = p.f[i] - code[i];
        pullback(p, u);
    }

    // (73), (74): `du` becomes `dz`, and `dcode` is set; `room` holds 6 rows.
    __device__ void second_derivative(const PhiPoint& p, const float* code, float* du, float* dcode, float* workspace) const {
        if (kind == IDENTITY) {
            LANES_OF(lanes, i, slots) dcode[i] = -du[i];
            return;
        }
        float *e = workspace, *g = e + slots, *w = g + slots, *nw = w + slots, *df = nw + slots, *ds = df + slots;
        LANES_OF(lanes, i, slots) {
            e[i] = p.f[i] - code[i];
            w[i] = p.slope[i] * du[i];
        }
        // N of the error, and of σ′ du.
        norm_vjp(p, e, g);
        norm_vjp(p, w, nw);
        // What the direction φ(z) of the norm gives to f.
        // f̄ of (73), with e = f − c and w = silu′ ∘ du.
        float factor = -share() / p.n, fe = dot(p.f, e), fw = dot(p.f, w);
        LANES_OF(lanes, i, slots) {
            dcode[i] = -nw[i];
            df[i] = factor * (fe * w[i] + fw * e[i]);
        }
        // What the length n gives.
        // n̄ of (73).
        float dn = -(dot(w, g) + dot(df, p.f)) / p.n;
        norm_vjp(p, nw, ds);
        float centre = mean(df);
        LANES_OF(lanes, i, slots) {
            float s = ds[i] + (df[i] - centre) / p.n + share() * dn * p.f[i];
            du[i] = p.second[i] * g[i] * du[i] + p.slope[i] * s;
        }
    }
};
