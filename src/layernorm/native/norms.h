// Layer norm and RMS norm of M rows of N elements, forward and backward: the counterpart of reference/_norms.py.
//
// E is the type of the rows, W the type that is computed in: float64 for float32 and float64 rows, so that a result is
// rounded once; float32 for the 16-bit types, whose own rounding is 2^13 times as coarse, but for rows whose squares
// leave its range.
#pragma once

#include "elements.h"
#include "scratch.h"
#include "sites.h"

namespace LAYERNORM_ISA {

template <class E> struct Computed { typedef float W; };
template <> struct Computed<float> { typedef double W; };
template <> struct Computed<double> { typedef double W; };

// What the statistics and results are computed from: the row itself; of a 16-bit type, widened once. The first, rough mean
// is taken in this type, too.
template <class E> struct Read { typedef float type; };
template <> struct Read<double> { typedef double type; };

constexpr int TOGETHER = 4;                // rows at a time: they share the loads of the gain
constexpr i64 SHARED_ELEMENTS = 16 << 10;  // for less a thread does not pay
constexpr i64 GROUP_ELEMENTS = 64 << 10;   // the gain's and bias's gradients are first summed within groups of rows
constexpr i64 NORM_GROUPS = 32;

// Whether squares of numbers of this size can be added up in T.
template <class T> INLINE bool in_range(double size) { return sizeof(T) == 8 || (size > 1e-15 && size < 1e15); }

// f(E{}) with the type of this number: 0 float32, 1 float64, 2 bfloat16, 3 float16.
template <class F> static int with_type(i64 type, const F& f) {
    if (type == 0) return f(float{});
    if (type == 1) return f(double{});
    if (type == 2) return f(BFloat16{});
    return f(Float16{});
}

// The gain or the bias in T, whole vectors of it.
template <class T> static void fetch(T* to, const void* from, i64 type, i64 N, T missing) {
    with_type(type, [&](auto kind) {
        using E = decltype(kind);
        over<T>(N, [&](i64 j, i64 n) {
            store<T>(to + j, from ? widen<T>(static_cast<const E*>(from) + j, n) : all<T>(missing));
        });
        return 0;
    });
}

template <class E> struct NormForward {
    using W = typename Computed<E>::W;
    using Z = typename Read<E>::type;
    const Norm& n;
    W *gain, *bias;

    void lay(Cursor& c) {
        c.take(gain, round_up(n.N, PAD));
        c.take(bias, round_up(n.N, PAD));
    }
    struct Widened {
        i64 size;
        Z* rows;
        void lay(Cursor& c) { c.take(rows, size); }
    };

    const E* row(const void* rows, i64 m, i64 apart) const { return static_cast<const E*>(rows) + m * apart; }
    E* row(void* rows, i64 m) const { return static_cast<E*>(rows) + m * n.N; }

    // What is normalised: x, or x + residual; `to` has room for it.
    const Z* summands(i64 m, Z* to) const {
        const E* x = row(n.x, m, n.x_m);
        if (n.residual) {
            const E* residual = row(n.residual, m, n.residual_m);
            E* total = row(n.total, m);
            over<W>(n.N, [=](i64 j, i64 count) {
                narrow<W>(total + j, widen<W>(x + j, count) + widen<W>(residual + j, count), count);
            });
            x = total;
        }
        if constexpr (sizeof(Z) == sizeof(E)) return x;
        else {
            over<Z>(n.N, [=](i64 j, i64 count) { store<Z>(to + j, widen<Z>(x + j, count)); });
            return to;
        }
    }

    template <class S> S sum_of(const Z* z) const {
        Sums<S> sums;
        over_sums<S>(n.N, [z, &sums](int k, i64 j, i64 count) { sums.first[k] += widen<S>(z + j, count); });
        return sums.one();
    }
    // Of z - centre: the sum, and the sum of squares.
    template <class A> Sums<A> moments(const Z* z, A centre) const {
        Sums<A> sums;
        over_sums<A>(n.N, [z, centre, &sums](int k, i64 j, i64 count) {
            V<A> d = widen<A>(z + j, count) - centre;
            if (count < LANES<A>) d = first<A>(d, count);
            sums.first[k] += d;
            sums.second[k] += d * d;
        });
        return sums;
    }

    // Rows m ... m + R - 1, computed in A, their rough means in S; false if sums or squares leave the range.
    //
    // The mean of what is left when the rough mean has been taken away is its error: with that a constant row's mean is
    // exact, and a row with |mean| >> deviation loses nothing. mean + low is the mean to twice A's precision.
    template <class S, class A, int R> bool rows(i64 m, Z* widened) const {
        const i64 N = n.N;
        const Z* z[R];
        A rough[R], mean[R], low[R], r[R];
        for (int i = 0; i < R; ++i) {
            z[i] = summands(m + i, widened + i * round_up(N, PAD));
            rough[i] = n.rms ? A(0) : A(sum_of<S>(z[i]) / S(N));
        }
        for (int i = 0; i < R; ++i) {
            const Sums<A> rest = moments<A>(z[i], rough[i]);
            const A error = n.rms ? A(0) : rest.one() / A(N);
            const double square = double(rest.two() / A(N)) - double(error) * double(error);
            if (!in_range<A>(sqrt(square)) || (sizeof(S) == 4 && square - square != 0)) return false;
            mean[i] = rough[i] + error, low[i] = (rough[i] - mean[i]) + error;
            const double exact = 1 / sqrt((square > 0 ? square : 0 * square) + n.eps);
            r[i] = A(exact);
            if (n.mean) static_cast<double*>(n.mean)[m + i] = double(mean[i]) + double(low[i]);
            if (n.r) static_cast<double*>(n.r)[m + i] = exact;
        }
        const W *gain = this->gain, *bias = this->bias;
        E* y = row(n.y, m);
        over<A>(N, [&, gain, bias, y, N](i64 j, i64 count) {
            const V<A> g = widen<A>(gain + j), b = widen<A>(bias + j);
            for (int i = 0; i < R; ++i) {
                V<A> d = widen<A>(z[i] + j, count) - mean[i];
                if (sizeof(Z) == sizeof(A)) d -= low[i];  // otherwise 0 in all digits that count
                narrow<A>(y + i * N + j, d * r[i] * g + b, count);
            }
        });
        return true;
    }

    bool all_rows(i64 m, i64 end) const {
        Widened widened{sizeof(Z) == sizeof(E) ? 0 : TOGETHER * round_up(n.N, PAD), nullptr};
        if (!of_part.arrange(widened)) return false;
        Z* z = widened.rows;
        for (i64 count; m < end; m += count) {
            count = end - m >= TOGETHER ? TOGETHER : 1;
            if (count > 1 && rows<Z, W, TOGETHER>(m, z)) continue;
            count = 1;  // which of them is out of range?
            if (!rows<Z, W, 1>(m, z)) rows<double, double, 1>(m, z);
        }
        of_part.release();
        return true;
    }
};

template <class E> static int norm_forward_of(const Norm& n, ParallelFor run) {
    using W = typename Computed<E>::W;
    NormForward<E> pass{n, nullptr, nullptr};
    if (!of_call.arrange(pass)) return 1;
    fetch<W>(pass.gain, n.gain, n.parameter_type, n.N, 1);
    fetch<W>(pass.bias, n.bias, n.parameter_type, n.N, 0);
    Failure failed;
    share(run, n.M, [&](i64 from, i64 end) { if (!pass.all_rows(from, end)) failed.set(); },
        SHARED_ELEMENTS / most(1, n.N) + 1);
    of_call.release();
    return failed;
}

template <class E> struct NormBackward {
    using W = typename Computed<E>::W;
    const Norm& n;
    i64 groups, Np;  // Np: a row of sums
    W* gain;
    W* sums;         // [groups][2][Np]: of d gain and of d bias

    void lay(Cursor& c) {
        c.take(gain, Np);
        c.take(sums, groups * 2 * Np);
    }

    double r(i64 m) const { return static_cast<const double*>(n.r)[m]; }
    double mean(i64 m) const { return n.rms ? 0 : static_cast<const double*>(n.mean)[m]; }

    // (x - mean) * r
    template <class A> struct Standardized {
        const E* x;
        A mean, low, r;
        Standardized() = default;
        Standardized(const E* x, double exact, double r) : x(x), mean(A(exact)), low(A(exact - double(mean))), r(A(r)) {}
        V<A> at(i64 j, i64 count) const {
            V<A> d = widen<A>(x + j, count) - mean;
            if (sizeof(A) == 4) d -= low;
            if (count < LANES<A>) d = first<A>(d, count);
            return d * r;
        }
    };

    // Rows m ... m + R - 1: dx = r * (d - mean(d) - z_hat * mean(d * z_hat)) with d = dy * gain.
    template <class A, int R, bool SUMS> void rows(i64 m, W* d_gain, W* d_bias) const {
        const i64 N = n.N;
        const E *dy[R], *more[R];
        Standardized<A> hat[R];
        for (int i = 0; i < R; ++i) {
            hat[i] = {static_cast<const E*>(n.x) + (m + i) * n.x_m, mean(m + i), r(m + i)};
            dy[i] = static_cast<const E*>(n.d_y) + (m + i) * n.d_y_m;
            more[i] = static_cast<const E*>(n.d_total) + (m + i) * n.d_total_m;
        }
        const W* gain = this->gain;
        V<A> of_d[R] = {}, of_product[R] = {};
        over<A>(N, [&, d_gain, d_bias, gain](i64 j, i64 count) {
            V<A> to_gain = {}, to_bias = {};
            const V<A> f = widen<A>(gain + j);
            for (int i = 0; i < R; ++i) {
                const V<A> z = hat[i].at(j, count), g = widen<A>(dy[i] + j, count), d = g * f;
                to_gain += g * z;
                to_bias += g;
                of_d[i] += d;
                of_product[i] += d * z;
            }
            if (SUMS) {
                narrow<A>(d_gain + j, widen<A>(d_gain + j) + to_gain);
                narrow<A>(d_bias + j, widen<A>(d_bias + j) + to_bias);
            }
        });
        A a[R], c[R];
        for (int i = 0; i < R; ++i) a[i] = n.rms ? A(0) : sum<A>(of_d[i]) / A(N), c[i] = sum<A>(of_product[i]) / A(N);
        E* dx = static_cast<E*>(n.d_x) + m * N;
        const bool adds = n.d_total;
        over<A>(N, [&, dx, N, gain, adds](i64 j, i64 count) {
            const V<A> f = widen<A>(gain + j);
            for (int i = 0; i < R; ++i) {
                V<A> d = widen<A>(dy[i] + j, count) * f;
                keep<A>(d);  // rounded as it was when it was added up: for a row of one d - mean(d) is 0
                V<A> v = hat[i].r * ((d - a[i]) - hat[i].at(j, count) * c[i]);
                if (adds) v += widen<A>(more[i] + j, count);
                narrow<A>(dx + i * N + j, v, count);
            }
        });
    }

    template <bool SUMS> void all_rows(i64 m, i64 end, W* d_gain, W* d_bias) const {
        for (i64 count; m < end; m += count) {
            count = end - m >= TOGETHER ? TOGETHER : 1;
            for (i64 i = m; i < m + count; ++i)
                if (!in_range<W>(r(i))) count = 1;
            if (count > 1) rows<W, TOGETHER, SUMS>(m, d_gain, d_bias);
            else if (in_range<W>(r(m))) rows<W, 1, SUMS>(m, d_gain, d_bias);
            else rows<double, 1, SUMS>(m, d_gain, d_bias);
        }
    }

    void group(i64 g) const {
        W *d_gain = sums + g * 2 * Np, *d_bias = d_gain + Np;
        const i64 from = g * n.M / groups, end = (g + 1) * n.M / groups;
        if (!n.d_gain && !n.d_bias) return all_rows<false>(from, end, d_gain, d_bias);
        memset(d_gain, 0, 2 * Np * sizeof(W));
        all_rows<true>(from, end, d_gain, d_bias);
    }

    // The sum of all groups' sums, in their order.
    void finish(void* to, i64 which) const {
        if (!to) return;
        with_type(n.parameter_type, [&](auto kind) {
            using P = decltype(kind);
            over<double>(n.N, [&](i64 j, i64 count) {
                V<double> total = {};
                for (i64 g = 0; g < groups; ++g) total += widen<double>(sums + (2 * g + which) * Np + j);
                narrow<double>(static_cast<P*>(to) + j, total, count);
            });
            return 0;
        });
    }
};

template <class E> static int norm_backward_of(const Norm& n, ParallelFor run) {
    const i64 groups = most(1, least(least(n.M, NORM_GROUPS), n.M * n.N / GROUP_ELEMENTS));
    NormBackward<E> pass{n, groups, round_up(n.N, PAD), nullptr, nullptr};
    if (!of_call.arrange(pass)) return 1;
    fetch(pass.gain, n.gain, n.parameter_type, n.N, typename Computed<E>::W(1));
    share(run, groups, [&](i64 from, i64 end) {
        for (; from < end; ++from) pass.group(from);
    });
    pass.finish(n.d_gain, 0);
    pass.finish(n.d_bias, 1);
    of_call.release();
    return 0;
}

static int norm_forward(const Norm* call, ParallelFor run) {
    return with_type(call->type, [&](auto kind) { return norm_forward_of<decltype(kind)>(*call, run); });
}
static int norm_backward(const Norm* call, ParallelFor run) {
    return with_type(call->type, [&](auto kind) { return norm_backward_of<decltype(kind)>(*call, run); });
}

}  // namespace LAYERNORM_ISA
