// What an instruction set must do, without Python: products bit by bit against fused sums in the same order, int8 against
// whole numbers, every number of bfloat16 and float16 there and back. For processors that are not at hand: tests/arm.sh.
#include <cmath>
#include <cstdio>
#include <vector>

#include "quantized.h"

using namespace LAYERNORM_ISA;

static int wrong = 0;
static void check(bool right, const char* what, i64 a = 0, i64 b = 0, i64 c = 0) {
    if (!right && wrong++ < 20) std::printf("wrong: %s (%ld, %ld, %ld)\n", what, long(a), long(b), long(c));
}

static uint32_t state = 1;
static uint32_t draw() { return state = state * 1664525u + 1013904223u; }
static double number() { return double(draw() >> 8) / (1 << 24) - 0.5; }
template <class T> static std::vector<T> numbers(i64 count) {
    std::vector<T> v(count);
    for (T& x : v) x = T(number());
    return v;
}

// a[M][K] times w[C][K], each sum over k in order.
template <class T> static std::vector<T> plain(const std::vector<T>& a, const std::vector<T>& w, i64 M, i64 K, i64 C) {
    std::vector<T> c(M * C);
    for (i64 r = 0; r < M; ++r)
        for (i64 j = 0; j < C; ++j)
            for (i64 k = 0; k < K; ++k) c[r * C + j] = std::fma(a[r * K + k], w[j * K + k], c[r * C + j]);
    return c;
}

template <class T> static void products() {
    for (i64 M = 1; M <= 17; ++M)
        for (i64 K : {1, 2, 3, 4, 5, 7, 8, 16, 33})
            for (i64 C : {3, 8, 16, 20, 48}) {
                const auto a = numbers<T>(M * K), w = numbers<T>(C * K), expected = plain(a, w, M, K, C);
                const i64 columns = round_up(C, PANEL<T>);
                std::vector<T> packed(columns * K), c(M * C);
                for (i64 j = 0; j < C; ++j)
                    for (i64 k = 0; k < K; ++k)
                        packed[j / PANEL<T> * PANEL<T> * K + k * PANEL<T> + j % PANEL<T>] = w[j * K + k];
                const Rows<T> rows{a.data(), 1, 0, M, K};
                product<T>(rows, Panels<T>{packed.data(), K, columns}, c.data(), 0, C, C);
                check(c == expected, "product", M, K, C);
                dense<T>(FewRows<T, T>(rows, c.data(), 0, C), w.data(), K, C, 0);
                for (i64 i = 0; i < M * C; ++i)  // in another order: K roundings of sums below 10
                    check(std::fabs(double(c[i] - expected[i])) < 1e-4, "unpacked product", M, K, C);
            }
}

// A by columns, as for the gradients of weights.
template <class T, int VECTORS> static void products_by_columns() {
    constexpr int U = Set::REGISTERS == 32 ? 8 : 4, C = VECTORS * LANES<T>, P = PANEL<T>;
    for (i64 K : {1, 5, 16}) {
        const auto a = numbers<T>(U * K), b = numbers<T>(K * P);
        std::vector<T> c(U * C);
        tile<T, U, VECTORS, false>(a.data(), 1, U, b.data(), K, c.data(), C);
        for (i64 r = 0; r < U; ++r)
            for (i64 j = 0; j < C; ++j) {
                T sum = 0;
                for (i64 k = 0; k < K; ++k) sum = std::fma(a[k * U + r], b[k * P + j], sum);
                check(sum == c[r * C + j], "product by columns", K, r, j);
            }
    }
}

static BFloat16 bfloat16() { return BFloat16{uint16_t(same_bits<uint32_t>(float(number())) >> 16)}; }

// The sets differ in how they round the sum of a pair: float64 within 1e-5, some 10 roundings of sums below 10.
static void products_of_pairs() {
    if constexpr (Set::PAIRS && !Set::TILES)
        for (i64 M = 1; M <= 13; ++M)
            for (i64 K : {1, 2, 5, 9, 16}) {
                const i64 C = PANEL<Pair>;
                std::vector<BFloat16> a(M * K * 2);
                std::vector<Pair> b(C * K);
                std::vector<float> c(M * C);
                for (BFloat16& x : a) x = bfloat16();
                for (Pair& x : b) x = {bfloat16(), bfloat16()};
                product<Pair>(Rows<BFloat16>{a.data(), 1, 0, M, 2 * K}, Panels<Pair>{b.data(), K, C}, c.data(), 0, C, C);
                for (i64 r = 0; r < M; ++r)
                    for (i64 j = 0; j < C; ++j) {
                        double sum = 0;
                        for (i64 k = 0; k < K; ++k) {
                            const BFloat16* left = &a[(r * K + k) * 2];
                            const Pair right = b[k * C + j];
                            sum += double(widened<float>(left[0])) * widened<float>(right.first);
                            sum += double(widened<float>(left[1])) * widened<float>(right.second);
                        }
                        check(std::fabs(sum - c[r * C + j]) < 1e-5, "product of pairs", M, K, j);
                    }
            }
}

template <class E> static double value(uint16_t bits) {
    if (SAME<E, BFloat16>) return same_bits<float>(uint32_t(bits) << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent                     ? std::ldexp(1024 + fraction, exponent - 25)
                                       : std::ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

// Every number of 16 bits widened and back; then drawn numbers of float32: the result is the nearest, at a tie the even one.
template <class E> static void sixteen_bits() {
    constexpr int N = LANES<float>;
    for (uint32_t first = 0; first < 65536; first += N) {
        E e[N], back[N];
        float f[N];
        for (int i = 0; i < N; ++i) e[i].bits = uint16_t(first + i);
        store(f, widen<float>(e));
        narrow<float>(back, load(f));
        for (int i = 0; i < N; ++i) {
            const double expected = value<E>(e[i].bits);
            const bool nan = expected != expected;
            check(nan ? f[i] != f[i] : f[i] == expected, "widened", e[i].bits);
            check(nan ? value<E>(back[i].bits) != value<E>(back[i].bits) : back[i].bits == e[i].bits, "back", e[i].bits);
        }
    }
    for (int n = 0; n < 200000; ++n) {
        float f[N];
        E e[N];
        for (float& x : f) x = float(number() * std::ldexp(1, int(draw() >> 8) % 40 - 25));
        narrow<float>(e, load(f));
        for (int i = 0; i < N; ++i) {
            const uint16_t bits = e[i].bits;
            const double off = std::fabs(value<E>(bits) - f[i]);
            for (int step : {-1, 1}) {  // a neighbour, in bits
                const uint16_t other = uint16_t((bits & 0x7fff) + step) | (bits & 0x8000);
                if ((bits & 0x7fff) == 0 && step < 0) continue;
                const double its = std::fabs(value<E>(other) - f[i]);
                check(off < its || (off == its && bits % 2 == 0), "narrowed", same_bits<uint32_t>(f[i]), bits);
            }
        }
    }
}

static void int8() {
    const i64 N = 7;
    for (i64 K : {1, 15, 16, 17, 64, 100, 200})
        for (i64 M : {1, 2, 5}) {
            std::vector<int8_t> w(N * K), memory(M * round_up(K, BYTES));
            const auto x = numbers<float>(M * K);
            std::vector<float> scale(N, 0.5f), c(M * N);
            for (int8_t& v : w) v = int8_t(draw() >> 24);
            w[0] = w[K - 1] = -128;
            RoundedRows<float> rows;
            for (i64 r = 0; r < M; ++r) rows.take(memory.data(), x.data() + r * K, K, c.data() + r * N);
            rows.multiply(w.data(), scale.data(), K, N, 0);
            for (i64 r = 0; r < M; ++r) {
                float most = 0;
                for (i64 k = 0; k < K; ++k) most = std::fmax(most, std::fabs(x[r * K + k]));
                check(rows.scale[r] == most / 127, "scale", K, r);
                for (i64 k = 0; k < K; ++k)  // the quotient has one rounding, too
                    check(std::fabs(rows.q[r][k] - x[r * K + k] / rows.scale[r]) <= 0.5001, "rounded", K, k);
                for (i64 j = 0; j < N; ++j) {
                    int sum = 0;
                    for (i64 k = 0; k < K; ++k) sum += rows.q[r][k] * w[j * K + k];
                    check(c[r * N + j] == float(sum) * (rows.scale[r] * 0.5f), "int8", K, r, j);
                }
            }
        }
}

static void sums() {
    float f[LANES<float>];
    double sum = 0;
    for (float& x : f) x = float(number()), sum += x;
    check(std::fabs(Set::sum<float>(load(f)) - sum) < 1e-6, "sum");
    check(std::fabs(Set::sum<double>(Set::add_halves(load(f))) - sum) < 1e-12, "sum of the halves");
}

int main() {
    products<float>(), products<double>();
    products_by_columns<float, 1>(), products_by_columns<float, 2>(), products_by_columns<double, 1>(), products_by_columns<double, 2>();
    products_of_pairs();
    sixteen_bits<BFloat16>(), sixteen_bits<Float16>();
    int8();
    sums();
    std::printf("%d wrong\n", wrong);
    return wrong != 0;
}
