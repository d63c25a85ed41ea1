// Kernels on several threads at once, for ThreadSanitizer, which cannot look into PyTorch's own: `make sanitize`.
// Calls of every kind from four threads, each call shared out among threads of its own.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define LAYERNORM_ISA native
#include "../../src/layernorm/native/kernels.cpp"

static void on_threads(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
    const int64_t size = most(most(1, grain), (end - begin + 2) / 3);
    std::vector<std::thread> threads;
    for (int64_t from = begin; from < end; from += size)
        threads.emplace_back(body, from, least(end, from + size), context);
    for (std::thread& thread : threads) thread.join();
}

using Numbers = std::vector<float>;
static Numbers numbers(size_t count) {
    Numbers v(count);
    unsigned state = 1;
    for (float& x : v) state = state * 1664525u + 1013904223u, x = float(state >> 8) / float(1 << 24) - 0.5f;
    return v;
}

static double recurrent(int64_t T, int64_t B) {
    const int64_t I = 20, H = 33, G = 4, Hp = 48, Z = padded(G * Hp);
    Numbers x = numbers(T * B * I), h0 = numbers(B * H), c0 = numbers(B * H), w_ih = numbers(G * H * I), w_hh = numbers(G * H * H),
            gain = numbers(G * H), y(T * B * H), h(B * H), c(B * H), zx(T * B * Z), zh(T * B * Z), sc(T * B * Hp),
            st(T * B * STATISTICS), so(T * B * H), dy = numbers(T * B * H), dx(T * B * I), dh0(B * H), dc0(B * H),
            d_ih(G * H * I), d_hh(G * H * H), d_vectors(VECTORS * G * H);
    Recurrent n{};
    n.T = T, n.B = B, n.I = I, n.H = n.P = H, n.gates = G, n.split = 1, n.norm = 1, n.cell = 1, n.eps = 1e-5;
    n.x = x.data(), n.x_t = B * I, n.x_b = I, n.h0 = h0.data(), n.c0 = c0.data(), n.w_ih = w_ih.data(), n.w_hh = w_hh.data();
    n.gain_x = n.gain_h = n.outside_x = n.outside_h = gain.data(), n.gain_c = n.bias_c = gain.data();
    n.output = y.data(), n.h_n = h.data(), n.c_n = c.data();
    n.saved_x = zx.data(), n.saved_h = zh.data(), n.saved_c = sc.data(), n.saved_statistics = st.data();
    n.saved_output = so.data();
    if (recurrent_forward<float>(&n, on_threads)) abort();
    n.d_output = dy.data(), n.d_x = dx.data(), n.d_h0 = dh0.data(), n.d_c0 = dc0.data(), n.d_w_ih = d_ih.data();
    n.d_w_hh = d_hh.data(), n.d_vectors = d_vectors.data();
    if (recurrent_backward<float>(&n, on_threads)) abort();
    double sum = 0;
    for (const Numbers* found : {&y, &h, &c, &dx, &dh0, &dc0, &d_ih, &d_hh, &d_vectors})
        for (float number : *found) sum += number;
    return sum;
}

static double norm(int64_t M, int64_t N) {
    Numbers x = numbers(M * N), gain = numbers(N), y(M * N), dx(M * N), d_gain(N), d_bias(N);
    std::vector<double> mean(M), r(M);
    Norm n{};
    n.M = M, n.N = n.x_m = n.d_y_m = N, n.eps = 1e-5, n.x = x.data(), n.gain = n.bias = gain.data(), n.y = y.data();
    n.mean = mean.data(), n.r = r.data();
    if (norm_forward(&n, on_threads)) abort();
    n.d_y = x.data(), n.d_x = dx.data(), n.d_gain = d_gain.data(), n.d_bias = d_bias.data();
    if (norm_backward(&n, on_threads)) abort();
    double sum = 0;
    for (const Numbers* found : {&y, &dx, &d_gain, &d_bias})
        for (float number : *found) sum += number;
    return sum;
}

int main() {
    const double expected = recurrent(9, 70) + recurrent(1, 2) + norm(3000, 70);
    std::vector<std::thread> callers;
    std::vector<double> found(4);
    for (double& result : found)
        callers.emplace_back([&result] { result = recurrent(9, 70) + recurrent(1, 2) + norm(3000, 70); });
    for (std::thread& caller : callers) caller.join();
    for (double result : found)
        if (!(result == expected)) return std::puts("threads: results differ"), 1;
    return std::puts("threads: 4 callers, the same results"), 0;
}
