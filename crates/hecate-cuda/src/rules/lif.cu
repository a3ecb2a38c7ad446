// Leaky integrate-and-fire neurons, token by token: equations (100) to (107).
#include "recurrent.cuh"
#include "lif.cuh"

// The state is K rows of V potentials. A token leaves nothing: potentials before the reset are computed again.
struct Lif {
    Neuron neuron;
    u32 key, value;

    // `recurrent.cuh` says what both mean: there is no other gradient point, and a potential is one thread's.
    static constexpr bool IN_PLACE = true;
    static constexpr bool OVERWRITES = true;

    // A thread has columns of neurons, and adds up the spikes that a query reads of them.
    __device__ void forward(
        const Token& token, const float* old, const float* point, float* next, float* record, float* scratch, float* out
    ) const {
        float a = expf(token.gates[0]), theta = token.gates[1];
        EACH(j, value) {
            float read = 0.0f;
            for (u32 i = 0; i < key; i++) {
                u64 at = (u64)i * value + j;
                float h = charge(a, old[at], theta * token.k[i], token.v[j]), s = neuron.fire(h);
                next[at] = neuron.reset(h, s);
                read += token.q[i] * s;
            }
            out[j] = read;
        }
        __syncthreads();
    }

    // Rows go first, a warp a row, since keys, queries and gates take sums along them. `scratch` has two sums a row, [2,K].
    __device__ void backward(
        const Token& token, const States& states, const float* record, const float* dout, const Adjoint& adjoint,
        float* scratch, const TokenGrads& grads
    ) const {
        float a = expf(token.gates[0]), theta = token.gates[1];
        float *written = scratch, *kept = scratch + key;
        ROWS(i, key) {
            const float* old = states.old + (u64)i * value;
            float* d = adjoint.state + (u64)i * value;
            float along_v = 0.0f, along_u = 0.0f, dq = 0.0f;
            LANES(j, value) {
                float h = charge(a, old[j], theta * token.k[i], token.v[j]), s = neuron.fire(h);
                float dh = neuron.charge_vjp(h, s, d[j], token.q[i] * dout[j]);
                d[j] = dh;
                along_v += dh * token.v[j];
                along_u += dh * old[j];
                dq += s * dout[j];
            }
            along_v = warp_sum(along_v);
            along_u = warp_sum(along_u);
            dq = warp_sum(dq);
            if (first_lane()) {
                grads.q[i] = dq;
                grads.k[i] = theta * along_v;
                written[i] = token.k[i] * along_v;
                kept[i] = along_u;
            }
        }
        __syncthreads();
        // Then columns, which currents take sums down.
        EACH(j, value) {
            float dv = 0.0f;
            for (u32 i = 0; i < key; i++) {
                u64 at = (u64)i * value + j;
                float dh = adjoint.state[at];
                dv += token.k[i] * dh;
                adjoint.state[at] = a * dh;
            }
            grads.v[j] = theta * dv;
        }
        if (first_warp()) {
            float da = warp_total(kept, key), dtheta = warp_total(written, key);
            if (first_lane()) {
                grads.gates[0] = a * da;
                grads.gates[1] = dtheta;
            }
        }
        __syncthreads();
    }
};

// `lif.rs`: what the launch hands over.
struct LifCall {
    RecurrentCall call;
    Lif cell;
};

// All sequences and heads forward, token by token.
KERNEL(lif_forward, LifCall, MOST_THREADS) {
    DYNAMIC_SHARED(float, near);
    run_forward(args.cell, args.call, near);
}

// All sequences and heads backward, from gradients of outputs and of the final states.
KERNEL(lif_backward, LifCall, MOST_THREADS) {
    DYNAMIC_SHARED(float, near);
    run_backward(args.cell, args.call, near);
}
