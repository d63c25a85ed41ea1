// Kernels on several threads at once, for ThreadSanitizer, which cannot look into PyTorch's own: `make sanitize`.
// Calls of every kind from four threads, each call shared out among threads of its own.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "norms.h"
#include "passes.h"
#include "processor.h"

using namespace LAYERNORM_ISA;

static int on_threads(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
    const int64_t size = most(most(1, grain), (end - begin + 2) / 3);
    std::vector<std::thread> threads;
    for (int64_t from = begin; from < end; from += size)
        threads.emplace_back(body, from, least(end, from + size), context);
    for (std::thread& thread : threads) thread.join();
    return 0;
}

using Numbers = std::vector<float>;
template <class Type = float> static std::vector<Type> numbers(size_t count) {
    Numbers v(count);
    unsigned state = 1;
    for (float& x : v) state = state * 1664525u + 1013904223u, x = float(state >> 8) / float(1 << 24) - 0.5f;
    std::vector<Type> as(count);
    convert(as.data(), v.data(), int64_t(count));
    return as;
}

// PREPARED: parameters packed by another call, gradients left for a product of several calls. BETWEEN: lengths, cuts,
// restarts, dropout and zoneout. CASES: the same under batch norm.
enum Kind { PLAIN, PREPARED, BETWEEN, CASES };
template <class Type> static double recurrent(int64_t T, int64_t B, Kind kind = PLAIN) {
    const bool prepared = kind == PREPARED;
    const int64_t I = 20, H = 33, G = 4;
    Recurrent n{};
    Numbers dropout = numbers(B * H), kept_h = numbers(T * B * H), kept_c = kept_h;
    std::vector<int64_t> lengths(B);
    std::vector<uint8_t> reset(T * B);
    for (int64_t b = 0; b < B; ++b) lengths[b] = T - b % 3;
    for (int64_t q = 0; q < T * B; ++q) reset[q] = q % 5 == 0;
    n.T = T, n.B = B, n.I = I, n.H = n.P = H, n.gates = G, n.together = G, n.split = 1, n.norm = NORMS_X | NORMS_H, n.cell = 1, n.eps = 1e-5;
    const int64_t Z = row_of_summed_inputs(n), Hp = round_up(H, PAD);
    const auto drawn = numbers<Type>;
    std::vector<Type> x = drawn(T * B * I), h0 = drawn(B * H), c0 = drawn(B * H), w_ih = drawn(G * H * I),
                      w_hh = drawn(G * H * H), y(T * B * H), h(B * H), c(B * H), so(T * B * H), dy = drawn(T * B * H),
                      dx(T * B * I), dh0(B * H), dc0(B * H), d_ih(G * H * I), d_hh(G * H * H);
    Numbers gain = numbers(G * H), zx(T * B * Z), zh(T * B * Z), sc(T * B * Hp), st(T * B * STATISTICS),
            sk(T * B * Hp), d_vectors(VECTORS * G * H);
    std::vector<Type> restart_h = drawn(B * H), restart_c = drawn(B * H), d_restart_h(B * H), d_restart_c(B * H);
    n.x = x.data(), n.x_t = B * I, n.x_b = I, n.h0 = h0.data(), n.c0 = c0.data(), n.w_ih = w_ih.data(), n.w_hh = w_hh.data();
    n.gain_x = n.gain_h = n.outside_x = n.outside_h = gain.data(), n.gain_c = n.bias_c = gain.data();
    n.output = y.data(), n.h_n = h.data(), n.c_n = c.data();
    n.saved_x = zx.data(), n.saved_h = zh.data(), n.saved_c = sc.data(), n.saved_statistics = st.data();
    n.saved_output = so.data();
    Numbers moments(PLACES * 2 * T * G * H);
    if (kind == CASES) {
        n.batch_norm = MADE_WITH_ENDED;
        n.saved_statistics = nullptr;
        for (int64_t k = 0; k < PLACES; ++k) {
            n.mean[k] = moments.data() + 2 * k * T * G * H;
            n.var[k] = moments.data() + (2 * k + 1) * T * G * H;
        }
    }
    if (kind >= BETWEEN) {
        n.lengths = lengths.data(), n.reset = reset.data(), n.restart_h = restart_h.data(), n.restart_c = restart_c.data();
        n.dropout = dropout.data(), n.kept_h = kept_h.data(), n.kept_c = kept_c.data(), n.saved_kept = sk.data();
        n.d_restart_h = d_restart_h.data(), n.d_restart_c = d_restart_c.data();
    }
    std::vector<char> for_forward, for_backward;
    std::vector<double> totals(VECTORS * Z);
    Numbers dzx(T * B * G * H), dzh(T * B * G * H);
    if (prepared) {
        n.prepares = 1;
        for_forward.resize(prepare_forward<float, Type>(&n, on_threads) + 64);
        for_backward.resize(prepare_backward<float, Type>(&n, on_threads) + 64);
        void* place = reinterpret_cast<void*>(round_up(reinterpret_cast<int64_t>(for_backward.data()), 64));
        n.prepared = place;
        prepare_backward<float, Type>(&n, on_threads);
        n.prepared = reinterpret_cast<void*>(round_up(reinterpret_cast<int64_t>(for_forward.data()), 64));
        prepare_forward<float, Type>(&n, on_threads);
        if (recurrent_forward<float, Type>(&n, on_threads)) abort();
        n.prepared = place, n.totals = totals.data(), n.d_zx = dzx.data(), n.d_zh = dzh.data();
    } else if (recurrent_forward<float, Type>(&n, on_threads)) abort();
    n.d_output = dy.data(), n.d_x = dx.data(), n.d_h0 = dh0.data(), n.d_c0 = dc0.data(), n.d_w_ih = d_ih.data();
    n.d_w_hh = d_hh.data();
    for (int64_t v = 0; v < VECTORS; ++v) n.d_vectors[v] = d_vectors.data() + v * G * H;
    if (recurrent_backward<float, Type>(&n, on_threads)) abort();
    if (prepared) recurrent_vectors<float>(&n);
    double sum = 0;
    for (const auto* found : {&y, &h, &c, &dx, &dh0, &dc0, &d_ih, &d_hh, &d_restart_h, &d_restart_c}) {
        Numbers wide(found->size());
        convert(wide.data(), found->data(), int64_t(wide.size()));
        for (float number : wide) sum += number;
    }
    for (const Numbers* found : {&d_vectors, &dzx, &dzh, &moments})
        for (float number : *found) sum += number;
    return sum;
}

static double norm(int64_t M, int64_t N) {
    Numbers x = numbers(M * N), gain = numbers(N), y(M * N), dx(M * N), d_gain(N), d_bias(N);
    std::vector<double> mean(M), r(M);
    Norm n{};
    n.M = M, n.N = n.x_m = n.d_y_m = N, n.eps = 1e-5, n.x = x.data(), n.gain = n.bias = gain.data(), n.y = y.data();
    n.mean = mean.data(), n.r = r.data();
    if (norm_forward<float>(&n, on_threads)) abort();
    n.d_y = x.data(), n.d_x = dx.data(), n.d_gain = d_gain.data(), n.d_bias = d_bias.data();
    if (norm_backward<float>(&n, on_threads)) abort();
    double sum = 0;
    for (const Numbers* found : {&y, &dx, &d_gain, &d_bias})
        for (float number : *found) sum += number;
    return sum;
}

template <class Type> static double sequences() {
    double sum = 0;
    for (Kind kind : {PLAIN, PREPARED, BETWEEN, CASES}) sum += recurrent<Type>(9, 70, kind) + recurrent<Type>(1, 2, kind);
    return sum;
}
static double all() { return sequences<float>() + sequences<BFloat16>() + norm(3000, 70); }

#define EXPANDED(name) LAYERNORM_TEXT(name)

int main() {
    if (!runs(EXPANDED(LAYERNORM_ISA)))  // it asks the system for tiles, too
        return std::puts("threads: this processor does not run " EXPANDED(LAYERNORM_ISA)), 1;
    const double expected = all();
    std::vector<std::thread> callers;
    std::vector<double> found(4);
    for (double& result : found)
        callers.emplace_back([&result] { result = all(); });
    for (std::thread& caller : callers) caller.join();
    for (double result : found)
        if (!(result == expected)) return std::puts("threads: results differ"), 1;
    return std::puts("threads: 4 callers, the same results with " EXPANDED(LAYERNORM_ISA)), 0;
}
