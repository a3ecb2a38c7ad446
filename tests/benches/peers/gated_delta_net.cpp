// ggml's gated delta rule on the processor, forward alone: ggml has no backward of it.
//
//     g++ -O3 -march=native -fopenmp -o peer gated_delta_net.cpp -I GGML/include -L BUILD/src -lggml-cpu -lggml-base
//     ./peer [THREADS [SECONDS]]
//
// GGML is the folder ggml of llama.cpp's sources, BUILD a build of it with `-DBUILD_SHARED_LIBS=OFF` for this processor.
// Prints a line of JSON a size: the best of all calls, in milliseconds. Each result is held to the equations first.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

// Arguments as ggml has them, the fastest index first.
struct Arguments {
    int64_t tokens, heads, width;
    ggml_tensor *q, *k, *v, *log_a, *beta, *state;
};

static ggml_tensor *drawn(ggml_context *context, std::mt19937 &random, int64_t width, int64_t rows, int64_t tokens) {
    ggml_tensor *x = ggml_new_tensor_4d(context, GGML_TYPE_F32, width, rows, tokens, 1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < ggml_nelements(x); i++) ggml_get_data_f32(x)[i] = normal(random);
    return x;
}

static Arguments arguments(ggml_context *context, int64_t t, int64_t h, int64_t d) {
    std::mt19937 random(1);
    auto make = [&](int64_t width) { return drawn(context, random, width, h, t); };
    Arguments x = {t, h, d, make(d), make(d), make(d), make(1), make(1), nullptr};
    x.state = ggml_set_zero(ggml_new_tensor_4d(context, GGML_TYPE_F32, d, d, h, 1));
    float *k = ggml_get_data_f32(x.k), *log_a = ggml_get_data_f32(x.log_a), *beta = ggml_get_data_f32(x.beta);
    for (int64_t row = 0; row < t * h; row++) {
        log_a[row] = -std::log1p(std::exp(-log_a[row]));
        beta[row] = 1 / (1 + std::exp(-beta[row]));
        float square = 0;
        for (int64_t i = 0; i < d; i++) square += k[row * d + i] * k[row * d + i];
        for (int64_t i = 0; i < d; i++) k[row * d + i] /= std::sqrt(square);
    }
    return x;
}

// What the first head's last token reads, in 64 bits; ggml divides it by the root of the width.
static std::vector<double> expected(const Arguments &x) {
    const int64_t d = x.width;
    std::vector<double> m(d * d), out(d);
    for (int64_t t = 0; t < x.tokens; t++) {
        auto row = [&](ggml_tensor *of, int64_t width) { return ggml_get_data_f32(of) + t * x.heads * width; };
        const double a = std::exp(row(x.log_a, 1)[0]), beta = row(x.beta, 1)[0];
        const float *q = row(x.q, d), *k = row(x.k, d), *v = row(x.v, d);
        for (int64_t j = 0; j < d; j++) {
            double seen = 0;
            for (int64_t i = 0; i < d; i++) seen += (m[j * d + i] *= a) * k[i];
            const double error = (v[j] - seen) * beta;
            out[j] = 0;
            for (int64_t i = 0; i < d; i++) out[j] += (m[j * d + i] += error * k[i]) * q[i] / std::sqrt(double(d));
        }
    }
    return out;
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void measure(int64_t t, int64_t h, int64_t d, int threads, double seconds) {
    ggml_context *context = ggml_init({size_t(1) << 30, nullptr, false});
    const Arguments x = arguments(context, t, h, d);
    ggml_tensor *out = ggml_gated_delta_net(context, x.q, x.k, x.v, x.log_a, x.beta, x.state, 1);
    ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, out);
    ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
    ggml_cplan plan = ggml_graph_plan(graph, threads, ggml_threadpool_new(&pool));
    std::vector<uint8_t> work(plan.work_size);
    plan.work_data = work.data();
    ggml_graph_compute(graph, &plan);
    const std::vector<double> truth = expected(x);
    for (int64_t i = 0; i < d; i++) {
        if (!(std::abs(ggml_get_data_f32(out)[(t - 1) * h * d + i] - truth[i]) < 1e-5)) {
            std::fprintf(stderr, "ggml's result differs from the equations\n");
            std::exit(1);
        }
    }
    double best = INFINITY;
    for (const double start = now(); now() - start < seconds;) {
        const double before = now();
        ggml_graph_compute(graph, &plan);
        best = std::fmin(best, now() - before);
    }
    std::printf("{\"shape\": [1, %d, %d, %d], \"pass\": \"%s\", \"ms\": %.4f}\n", int(t), int(h), int(d),
                t == 1 ? "decode" : "forward", best * 1e3);
    ggml_threadpool_free(plan.threadpool);
    ggml_free(context);
}

int main(int count, char **words) {
    const int threads = count > 1 ? std::atoi(words[1]) : 2;
    const double seconds = count > 2 ? std::atof(words[2]) : 3;
    measure(1024, 32, 128, threads, seconds);
    measure(1024, 16, 64, threads, seconds);
    measure(1, 32, 128, threads, seconds);
}
