// Linear memories that forget by key channel, token by token: equations (110) to (118).
#include "recurrent.cuh"

// The keys of the erase and of the rewrite; where gates begin that are not there.
enum { ERASE_NOTHING, ERASE_KEY, ERASE_SCALED, ERASE_GATED, ERASE_OWN };
enum { REWRITE_KEY, REWRITE_ERASED, REWRITE_OWN };
#define NONE 0xffffffffu

// Rows of a token: [K] each, then [V] each. `dk` and `da` are sums along rows of the state.
struct Terms {
    float *a, *e, *b, *de, *db, *dk, *da, *spare, *w, *dp, *dw;

    // Divides `scratch` into eight rows [K] and three rows [V].
    __device__ Terms(float* scratch, u32 key, u32 value) {
        float** rows[] = {&a, &e, &b, &de, &db, &dk, &da, &spare};
        for (float** row : rows) {
            *row = scratch;
            scratch += key;
        }
        w = scratch;
        dp = w + value;
        dw = dp + value;
    }
};

// The state is K rows of V elements. A token leaves what it erased, p [V], for its backward.
struct Channel {
    u32 by_channel, erase, rewrite, undecayed;
    u32 theta_at, erase_at, rewrite_at, factors_at;
    u32 key, value;

    // `recurrent.cuh` says what both mean: there is no other gradient point, and an element is written after its last read.
    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    // True if the rule erases before it writes.
    __device__ bool erases() const { return erase != ERASE_NOTHING; }
    // Returns θ of the token; 1 if the rule has no such gate.
    __device__ float theta(const Token& token) const { return theta_at == NONE ? 1.0f : token.gates[theta_at]; }

    // e[i], of k [K] and its gate
    __device__ float erase_key(const Token& token, u32 i) const {
        switch (erase) {
            case ERASE_NOTHING: return 0.0f;
            case ERASE_KEY: return token.k[i];
            case ERASE_SCALED: return token.gates[erase_at] * token.k[i];
            case ERASE_GATED: return token.gates[erase_at + i] * token.k[i];
            default: return token.gates[erase_at + i];
        }
    }

    // b[i], of k [K], e [K] and its gate
    __device__ float rewrite_key(const Token& token, float e, u32 i) const {
        if (rewrite == REWRITE_KEY) return -token.k[i];
        return rewrite == REWRITE_ERASED ? -token.gates[rewrite_at + i] * e : token.gates[rewrite_at + i];
    }

    // a = exp(log_a), e, b: [K]; w = omega * v: [V]
    __device__ void open(const Token& token, const Terms& terms) const {
        EACH(i, key) {
            terms.a[i] = expf(token.gates[by_channel ? i : 0]);
            terms.e[i] = erase_key(token, i);
            terms.b[i] = rewrite_key(token, terms.e[i], i);
        }
        EACH(j, value) terms.w[j] = factors_at == NONE ? token.v[j] : token.gates[factors_at + j] * token.v[j];
        __syncthreads();
    }

    // What row i of the memory is multiplied by as the erase reads it.
    __device__ float reads(const Terms& terms, u32 i) const { return undecayed ? terms.e[i] : terms.e[i] * terms.a[i]; }

    // p = e @ (a[:, None] * M); M = a[:, None] * M + theta * (outer(b, p) + outer(k, w)); out = q @ M
    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* p, float* scratch, float* out
    ) const {
        Terms terms(scratch, key, value);
        open(token, terms);
        if (erases()) {
            column_sums(
                key, value, [&](u32 i, u32 j) { return reads(terms, i) * old[(u64)i * value + j]; },
                [&](u32 j, float sum) { p[j] = sum; });
        }
        float size = theta(token);
        // A thread reads an element and writes it, then adds up what the query reads of its column.
        auto write = [&](u32 i, u32 j) {
            u64 at = (u64)i * value + j;
            float more = token.k[i] * terms.w[j];
            if (erases()) more += terms.b[i] * p[j];
            next[at] = terms.a[i] * old[at] + size * more;
            return token.q[i] * next[at];
        };
        column_sums(key, value, write, [&](u32 j, float sum) { out[j] = sum; });
    }

    // (115), (116): dM += outer(q, dy); dq = M @ dy; dk = theta * dM @ w; db = theta * dM @ p; terms of dtheta to `spare`
    __device__ void rows_vjp(
        const Token& token, const States& states, const float* p, const float* dout, float* dstate, const Terms& terms,
        float* dq
    ) const {
        float size = theta(token);
        ROWS(i, key) {
            const float* next = states.next + (u64)i * value;
            float* d = dstate + (u64)i * value;
            float read = 0.0f, written = 0.0f, erased = 0.0f;
            LANES(j, value) {
                float own = d[j] + token.q[i] * dout[j];
                d[j] = own;
                read += next[j] * dout[j];
                written += own * terms.w[j];
                if (erases()) erased += own * p[j];
            }
            read = warp_sum(read);
            written = warp_sum(written);
            erased = warp_sum(erased);
            if (first_lane()) {
                dq[i] = read;
                terms.dk[i] = size * written;
                terms.db[i] = size * erased;
                terms.spare[i] = token.k[i] * written + terms.b[i] * erased;
            }
        }
        __syncthreads();
    }

    // (117), (118): de = a * M @ dp; da = a * ((dM + outer(e, dp)) * M).sum(1); dM = a[:, None] * (dM + outer(e, dp))
    __device__ void decay_vjp(const States& states, float* dstate, const Terms& terms) const {
        ROWS(i, key) {
            const float* old = states.old + (u64)i * value;
            float* d = dstate + (u64)i * value;
            float a = terms.a[i], factor = reads(terms, i), kept = 0.0f, read = 0.0f;
            LANES(j, value) {
                kept += d[j] * old[j];
                d[j] *= a;
                if (erases()) {
                    read += terms.dp[j] * old[j];
                    d[j] += factor * terms.dp[j];
                }
            }
            kept = warp_sum(kept);
            read = warp_sum(read);
            if (first_lane()) {
                terms.de[i] = undecayed ? read : a * read;
                terms.da[i] = a * (undecayed ? kept : kept + terms.e[i] * read);
            }
        }
        __syncthreads();
    }

    // From the gradients of b[i] and e[i] to those of k[i] and of gates of [K].
    __device__ void keys_vjp(const Token& token, const Terms& terms, const TokenGrads& grads, u32 i) const {
        float dk = terms.dk[i], db = terms.db[i], de = terms.de[i];
        if (rewrite == REWRITE_KEY) dk -= db;
        if (rewrite == REWRITE_ERASED) {
            grads.gates[rewrite_at + i] = -terms.e[i] * db;
            de -= token.gates[rewrite_at + i] * db;
        }
        if (rewrite == REWRITE_OWN) grads.gates[rewrite_at + i] = db;
        if (erase == ERASE_KEY) dk += de;
        if (erase == ERASE_SCALED) {
            terms.de[i] = token.k[i] * de;
            dk += token.gates[erase_at] * de;
        }
        if (erase == ERASE_GATED) {
            grads.gates[erase_at + i] = token.k[i] * de;
            dk += token.gates[erase_at + i] * de;
        }
        if (erase == ERASE_OWN) grads.gates[erase_at + i] = de;
        grads.k[i] = dk;
    }

    // Takes gradients back through one token: to its arguments, and in place from the state after it to the state before it.
    __device__ void backward(
        const Token& token, const States& states, const float* p, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        Terms terms(scratch, key, value);
        open(token, terms);
        rows_vjp(token, states, p, dout, adjoint.state, terms, grads.q);
        float size = theta(token);
        const float* d = adjoint.state;
        // dw = theta * k @ dM; dp = theta * b @ dM
        column_sums(
            key, value, [&](u32 i, u32 j) { return token.k[i] * d[(u64)i * value + j]; },
            [&](u32 j, float sum) { terms.dw[j] = size * sum; });
        if (erases()) {
            column_sums(
                key, value, [&](u32 i, u32 j) { return terms.b[i] * d[(u64)i * value + j]; },
                [&](u32 j, float sum) { terms.dp[j] = size * sum; });
        }
        decay_vjp(states, adjoint.state, terms);
        EACH(i, key) {
            if (by_channel) grads.gates[i] = terms.da[i];
            if (erases()) keys_vjp(token, terms, grads, i);
            else grads.k[i] = terms.dk[i];
        }
        EACH(j, value) {
            grads.v[j] = factors_at == NONE ? terms.dw[j] : token.gates[factors_at + j] * terms.dw[j];
            if (factors_at != NONE) grads.gates[factors_at + j] = token.v[j] * terms.dw[j];
        }
        __syncthreads();
        // Gates of one number a head add up over channels.
        if (first_warp()) {
            float dtheta = warp_total(terms.spare, key), da = warp_total(terms.da, key), dscale = warp_total(terms.de, key);
            if (first_lane()) {
                if (theta_at != NONE) grads.gates[theta_at] = dtheta;
                if (!by_channel) grads.gates[0] = da;
                if (erase == ERASE_SCALED) grads.gates[erase_at] = dscale;
            }
        }
        __syncthreads();
    }
};

// `channel.rs`: what the launch hands over.
struct ChannelCall {
    RecurrentCall call;
    Channel cell;
};

// All sequences and heads forward, token by token.
KERNEL(channel_forward, ChannelCall, MOST_THREADS) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

// All sequences and heads backward, from gradients of outputs and of the final states.
KERNEL(channel_backward, ChannelCall, MOST_THREADS) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
