// Layer norm and RMS norm of M rows of N elements, forward and backward: the counterpart of equations/norms.py.
//
// E is the type of the rows; W the type that they are computed in: float64 for float64, else float32; A that of one pass:
// W, or float64 for rows whose squares leave float32's range. A row is swept twice: for the sums of what is left when a
// rough mean, that of its first elements, has been taken away, and of its squares; then for the result. Sums of few
// numbers are in A, the sums of those float64, and the mean is two numbers of type A, so that a row with
// |mean| >> deviation loses nothing.
#pragma once

#include "elements.h"
#include "scratch.h"
#include "sites.h"

namespace LAYERNORM_ISA {

template <class E> struct Computed { typedef float W; };
template <> struct Computed<double> { typedef double W; };

constexpr int TOGETHER = 4;                // rows at a time: they share the loads of the gain
constexpr int BACKWARD_TOGETHER = 2;       // they share the sums that the gradients of gain and bias are
constexpr i64 SHARED_ELEMENTS = 16 << 10;  // for less a thread does not pay
constexpr i64 GROUP_ELEMENTS = 64 << 10;   // the gain's and bias's gradients are first summed within groups of rows
constexpr i64 NORM_GROUPS = 32;
constexpr i64 STREAMED_BYTES = 8 << 20;    // of a result; one as large is out of the caches when it is read
constexpr i64 FINISHED_COLUMNS = 2048;     // of these gradients, that a thread is worth
constexpr i64 PART_ROWS = 256;             // of so many rows the gain's gradient is summed in W, of all in float64
// Elements of a row that are summed in A: float32 4 in each lane of four sums, as a lane with an outlier rounds what is
// added to it to the outlier's units; float64 64.
template <class A> constexpr i64 ROW_BLOCK = (sizeof(A) == 4 ? 16 : 256) * LANES<A>;

// Whether squares of numbers of this size can be added up in T.
template <class T> INLINE bool in_range(double size) { return sizeof(T) == 8 || (size > 1e-15 && size < 1e15); }

// f(E{}) with the type of this number: 0 float32, 1 float64, 2 bfloat16, 3 float16.
template <class F> static void with_type(i64 type, const F& f) {
    if (type == 0) return f(float{});
    if (type == 1) return f(double{});
    if (type == 2) return f(BFloat16{});
    return f(Float16{});
}

// The gain or the bias, `from`, in T: where it lies, if it is there and of that type, else in `place`.
template <class T> struct Parameter {
    T* place;
    const T* at;

    static bool lies(const Norm& n, const void* from) { return from && n.parameter_type == (sizeof(T) == 8); }
    void lay(Cursor& c, const Norm& n, const void* from) { c.take(place, lies(n, from) ? 0 : n.N); }
    void fetch(const Norm& n, const void* from, T missing) {
        at = lies(n, from) ? static_cast<const T*>(from) : place;
        if (lies(n, from)) return;
        with_type(n.parameter_type, [&](auto kind) {
            using E = decltype(kind);
            over<T>(n.N, [&](i64 j, i64 count) {
                narrow<T>(place + j, from ? widen<T>(static_cast<const E*>(from) + j, count) : all<T>(missing), count);
            });
        });
    }
};

INLINE V<double> doubled(V<float> v) { return Set::add_halves(v); }
INLINE V<double> doubled(V<double> v) { return v; }

// Whether a result, M rows of N, goes past the caches: it is large, and its vectors lie at multiples of their size.
template <class W, class E> static bool streams(const Norm& n, const void* result) {
    const bool aligned = n.N % LANES<W> == 0 && reinterpret_cast<uintptr_t>(result) % VECTOR_BYTES == 0;
    return aligned && sizeof(W) == sizeof(E) && n.M * n.N * i64(sizeof(E)) >= STREAMED_BYTES;
}
// n numbers of a row of such a result.
template <bool STREAM, class A, class E> INLINE void put(E* to, V<A> v, i64 n) {
    if constexpr (STREAM && sizeof(A) == sizeof(E)) Set::stream<A>(to, v);
    else narrow<A>(to, v, n);
}

template <class E> struct NormForward {
    using W = typename Computed<E>::W;
    const Norm& n;
    const double each;  // 1 / N
    Parameter<W> gain, bias;  // each thread fetches them: what another has just written comes slowly

    explicit NormForward(const Norm& n) : n(n), each(1.0 / n.N) {}
    void lay(Cursor& c) {
        gain.lay(c, n, n.gain);
        bias.lay(c, n, n.bias);
    }

    const E* row(const void* rows, i64 m, i64 apart) const { return static_cast<const E*>(rows) + m * apart; }
    E* row(void* rows, i64 m) const { return static_cast<E*>(rows) + m * n.N; }

    // What is normalised: x, or x + residual.
    const E* summands(i64 m) const {
        const E* x = row(n.x, m, n.x_m);
        if (!n.residual) return x;
        const E* residual = row(n.residual, m, n.residual_m);
        E* total = row(n.total, m);
        over<W>(n.N, [=](i64 j, i64 count) {
            narrow<W>(total + j, widen<W>(x + j, count) + widen<W>(residual + j, count), count);
        });
        return total;
    }

    struct Moments { double mean, square; };  // the means of d and of its square

    // Of d = z - centre. Sums of few numbers are in A, those sums' in float64.
    template <class A> Moments moments(const E* z, A centre) const {
        V<double> all = {}, squares = {};
        for (i64 from = 0; from < n.N; from += ROW_BLOCK<A>) {
            V<A> s[4] = {}, q[4] = {};
            over_fours<A>(least(ROW_BLOCK<A>, n.N - from), [&, block = z + from](int k, i64 j) {
                V<A> a, b;
                widen_two<A>(block + j, a, b);
                a -= centre, b -= centre;
                s[k] += a, q[k] += a * a;
                s[k + 1] += b, q[k + 1] += b * b;
            }, [&, block = z + from](i64 j, i64 count) {
                V<A> d = widen<A>(block + j, count) - centre;
                if (count < LANES<A>) d = first<A>(d, count);
                s[0] += d, q[0] += d * d;
            });
            all += doubled((s[0] + s[1]) + (s[2] + s[3]));
            squares += doubled((q[0] + q[1]) + (q[2] + q[3]));
        }
        return {Set::sum<double>(all) * each, Set::sum<double>(squares) * each};
    }

    // The mean of the first elements, so many that no lane is left out. That of equal numbers is exact.
    template <class A> double head(const E* z) const {
        const i64 count = least(n.N, 4 * LANES<A>);
        V<double> total = {};
        over<A>(count, [&](i64 j, i64 few) { total += doubled(widen<A>(z + j, few)); });
        return Set::sum<double>(total) / count;
    }

    // Rows m ... m + R - 1, computed in A; false if sums or squares leave its range.
    template <class A, int R, bool STREAM> bool rows(i64 m) const {
        const i64 N = n.N;
        const E* z[R];
        A mean[R], low[R], r[R], centre[R];
        Moments rest[R];
        for (int i = 0; i < R; ++i) {
            z[i] = summands(m + i);
            centre[i] = n.rms ? A(0) : A(head<A>(z[i]));
        }
        for (int i = 0; i < R; ++i) {
            rest[i] = moments<A>(z[i], centre[i]);
            // with a centre that is off by a third of the deviation or more, squares are the distance's, which cancels
            if (!n.rms && rest[i].mean * rest[i].mean > 0.1 * rest[i].square) {
                centre[i] = A(centre[i] + rest[i].mean);
                rest[i] = moments<A>(z[i], centre[i]);
            }
        }
        for (int i = 0; i < R; ++i) {
            const double exact = n.rms ? 0 : double(centre[i]) + rest[i].mean;
            const double square = n.rms ? rest[i].square : rest[i].square - rest[i].mean * rest[i].mean;
            const double size = sqrt((square > 0 ? square : 0 * square) + n.eps), scale = 1 / size;
            if (!in_range<A>(size)) return false;
            mean[i] = sizeof(A) == 8 ? centre[i] : A(exact);
            low[i] = A((double(centre[i]) - double(mean[i]) + (n.rms ? 0 : rest[i].mean)) * scale);
            r[i] = A(scale);
            if (n.mean) static_cast<double*>(n.mean)[m + i] = exact;
            if (n.r) static_cast<double*>(n.r)[m + i] = scale;
        }
        const W *gain = this->gain.at, *bias = this->bias.at;
        E* y = row(n.y, m);
        over_twos<A>(N, [&, gain, bias, y, N](i64 j) {
            V<A> g = widen<A>(gain + j), h = widen<A>(gain + j + LANES<A>);
            V<A> b = widen<A>(bias + j), c = widen<A>(bias + j + LANES<A>);
            in_twos<A, E>(g, h), in_twos<A, E>(b, c);
            for (int i = 0; i < R; ++i) {
                V<A> v, w;
                widen_two<A>(z[i] + j, v, w);
                v = ((v - mean[i]) * r[i] - low[i]) * g + b;
                w = ((w - mean[i]) * r[i] - low[i]) * h + c;
                E* to = y + i * N + j;
                if constexpr (STREAM) put<STREAM, A>(to, v, LANES<A>), put<STREAM, A>(to + LANES<A>, w, LANES<A>);
                else narrow_two<A>(to, v, w);
            }
        }, [&, gain, bias, y, N](i64 j, i64 count) {
            const V<A> g = widen<A>(gain + j, count), b = widen<A>(bias + j, count);
            for (int i = 0; i < R; ++i) {
                const V<A> z_hat = (widen<A>(z[i] + j, count) - mean[i]) * r[i] - low[i];
                narrow<A>(y + i * N + j, z_hat * g + b, count);
            }
        });
        return true;
    }

    void all_rows(i64 m, i64 end, bool streams) const {
        for (i64 count; m < end; m += count) {
            count = end - m >= TOGETHER && !streams ? TOGETHER : 1;
            if (count > 1 && rows<W, TOGETHER, false>(m)) continue;
            count = 1;  // which of them is out of range?
            if (!(streams ? rows<W, 1, true>(m) : rows<W, 1, false>(m))) rows<double, 1, false>(m);
        }
        if (streams) Set::streamed();
    }
};

template <class E> static int norm_forward(const Norm* call, ParallelFor run) {
    const Norm& n = *call;
    using W = typename Computed<E>::W;
    const bool past = streams<W, E>(n, n.y);
    Failure failed;
    share(run, n.M, [&](i64 from, i64 end) {
        NormForward<E> pass(n);
        if (!of_part.arrange(pass)) return failed.set();
        pass.gain.fetch(n, n.gain, 1);
        pass.bias.fetch(n, n.bias, 0);
        pass.all_rows(from, end, past);
        of_part.release();
    }, SHARED_ELEMENTS / most(1, n.N) + 1);
    return failed;
}

template <class E> struct NormBackward {
    using W = typename Computed<E>::W;
    const Norm& n;
    const i64 groups, Np;  // Np: a row of sums
    const double each;     // 1 / N
    W* part;               // [groups][2][Np]: d gain and d bias of up to PART_ROWS rows
    double* sums;          // [groups][2][Np]: of all rows of the group, if these are more
    Parameter<W> gain;

    NormBackward(const Norm& n, i64 groups) : n(n), groups(groups), Np(round_up(n.N, PAD)), each(1.0 / n.N) {}
    bool in_parts() const { return n.M > groups * PART_ROWS; }
    void lay(Cursor& c) {
        gain.lay(c, n, n.gain);
        c.take(part, groups * 2 * Np);
        c.take(sums, in_parts() ? groups * 2 * Np : 0);
    }

    double r(i64 m) const { return static_cast<const double*>(n.r)[m]; }
    double mean(i64 m) const { return n.rms ? 0 : static_cast<const double*>(n.mean)[m]; }

    // z_hat = (x - mean) * r
    template <class A> struct Unit {
        const E* x;
        A mean, r, low;  // low: what the mean lacks, times r
        Unit() = default;
        Unit(const E* x, double exact, double r) : x(x), mean(A(exact)), r(A(r)), low(A((exact - double(mean)) * r)) {}
        V<A> at(i64 j, i64 count) const { return (widen<A>(x + j, count) - mean) * r - low; }
        // The mean of float64 numbers was rounded when it was saved.
        void find_low(const Norm& n) {
            V<A> rest = {};
            over<A>(n.N, [&](i64 j, i64 count) { rest += first<A>(widen<A>(x + j, count) - mean, count); });
            low = Set::template sum<A>(rest) / n.N * r;
        }
    };

    // Rows m ... m + R - 1: dx = r * (d - mean(d) - z_hat * mean(d * z_hat)) with d = dy * gain, z_hat = (x - mean) * r.
    template <class A, int R, bool SUMS, bool STREAM> void rows(i64 m, W* d_gain, W* d_bias) const {
        const i64 N = n.N;
        const E *dy[R], *more[R];
        Unit<A> z_hat[R];
        for (int i = 0; i < R; ++i) {
            z_hat[i] = {static_cast<const E*>(n.x) + (m + i) * n.x_m, mean(m + i), r(m + i)};
            if (SAME<E, double> && !n.rms) z_hat[i].find_low(n);
            dy[i] = static_cast<const E*>(n.d_y) + (m + i) * n.d_y_m;
            more[i] = static_cast<const E*>(n.d_total) + (m + i) * n.d_total_m;
        }
        const W* gain = this->gain.at;
        V<double> of_d[R] = {}, of_product[R] = {};
        for (i64 from = 0; from < N; from += ROW_BLOCK<A>) {
            V<A> block_d[R] = {}, block_product[R] = {};
            over<A>(least(ROW_BLOCK<A>, N - from), [&, d_gain, d_bias, gain, from](i64 j, i64 count) {
                j += from;
                V<A> to_gain = {}, to_bias = {};
                const V<A> f = widen<A>(gain + j, count);
                for (int i = 0; i < R; ++i) {
                    V<A> z = z_hat[i].at(j, count);
                    if (count < LANES<A>) z = first<A>(z, count);
                    const V<A> g = widen<A>(dy[i] + j, count), d = g * f;
                    to_gain = Set::fused<A>(g, z, to_gain);
                    to_bias += g;
                    block_d[i] += d;
                    block_product[i] = Set::fused<A>(d, z, block_product[i]);
                }
                if (SUMS) {
                    narrow<A>(d_gain + j, widen<A>(d_gain + j) + to_gain);
                    narrow<A>(d_bias + j, widen<A>(d_bias + j) + to_bias);
                }
            });
            for (int i = 0; i < R; ++i) of_d[i] += doubled(block_d[i]), of_product[i] += doubled(block_product[i]);
        }
        A a[R], c[R];
        for (int i = 0; i < R; ++i) {
            a[i] = n.rms ? A(0) : A(Set::sum<double>(of_d[i]) * each);
            c[i] = A(Set::sum<double>(of_product[i]) * each * r(m + i));
        }
        E* dx = static_cast<E*>(n.d_x) + m * N;
        const bool adds = n.d_total;
        over<A>(N, [&, dx, N, gain, adds](i64 j, i64 count) {
            const V<A> f = widen<A>(gain + j, count);
            for (int i = 0; i < R; ++i) {
                V<A> d = widen<A>(dy[i] + j, count) * f;
                Set::keep(d);  // rounded as it was when it was added up: for a row of one d - mean(d) is 0
                V<A> along = z_hat[i].at(j, count) * c[i];
                Set::keep(along);  // which of two products is rounded must not depend on how many rows are together
                V<A> v = z_hat[i].r * (d - a[i]) - along;
                if (adds) v += widen<A>(more[i] + j, count);
                put<STREAM, A>(dx + i * N + j, v, count);
            }
        });
    }

    template <bool SUMS, bool STREAM> void all_rows(i64 m, i64 end, W* d_gain, W* d_bias) const {
        for (i64 count; m < end; m += count) {
            count = end - m >= BACKWARD_TOGETHER ? BACKWARD_TOGETHER : 1;
            for (i64 i = m; i < m + count; ++i)
                if (!in_range<W>(r(i))) count = 1;
            if (count > 1) rows<W, BACKWARD_TOGETHER, SUMS, STREAM>(m, d_gain, d_bias);
            else if (in_range<W>(r(m))) rows<W, 1, SUMS, STREAM>(m, d_gain, d_bias);
            else rows<double, 1, SUMS, false>(m, d_gain, d_bias);
        }
        if (STREAM) Set::streamed();
    }
    template <bool SUMS> void all_rows(i64 m, i64 end, W* d_gain, W* d_bias) const {
        if (streams<W, E>(n, n.d_x)) all_rows<SUMS, true>(m, end, d_gain, d_bias);
        else all_rows<SUMS, false>(m, end, d_gain, d_bias);
    }

    void group(i64 g) const {
        const i64 from = g * n.M / groups, end = (g + 1) * n.M / groups;
        if (!n.d_gain && !n.d_bias) return all_rows<false>(from, end, nullptr, nullptr);
        W* few = part + g * 2 * Np;
        i64 m = from;
        do {  // without rows the sums are 0
            memset(few, 0, 2 * Np * sizeof(W));
            all_rows<true>(m, least(m + PART_ROWS, end), few, few + Np);
            if (in_parts()) add_part(few, sums + g * 2 * Np, m == from);
            m += PART_ROWS;
        } while (m < end);
    }
    void add_part(const W* few, double* all, bool first) const {
        over<double>(2 * Np, [=](i64 j, i64) {
            store<double>(all + j, widen<double>(few + j) + (first ? V<double>{} : load(all + j)));
        });
    }

    // The sum of all groups' sums, in their order: columns [from, end).
    void finish(void* to, i64 which, i64 from, i64 end) const {
        if (!to) return;
        with_type(n.parameter_type, [&](auto kind) {
            using P = decltype(kind);
            over<double>(end - from, [&](i64 j, i64 count) {
                V<double> total = {};
                for (i64 g = 0; g < groups; ++g) {
                    const i64 at = (2 * g + which) * Np + from + j;
                    total += in_parts() ? widen<double>(sums + at, count) : widen<double>(part + at, count);
                }
                narrow<double>(static_cast<P*>(to) + from + j, total, count);
            });
        });
    }
};

template <class E> static int norm_backward(const Norm* call, ParallelFor run) {
    const Norm& n = *call;
    i64 groups = 1;  // a power of two, which threads share evenly
    while (2 * groups <= least(n.M, NORM_GROUPS) && groups * GROUP_ELEMENTS < n.M * n.N) groups *= 2;
    NormBackward<E> pass(n, groups);
    if (!of_call.arrange(pass)) return 1;
    pass.gain.fetch(n, n.gain, 1);
    share(run, groups, [&](i64 from, i64 end) {
        for (; from < end; ++from) pass.group(from);
    });
    share(groups > 1 ? run : nullptr, n.N, [&](i64 from, i64 end) {
        pass.finish(n.d_gain, 0, from, end);
        pass.finish(n.d_bias, 1, from, end);
    }, FINISHED_COLUMNS);
    of_call.release();
    return 0;
}

}  // namespace LAYERNORM_ISA
