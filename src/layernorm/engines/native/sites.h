// The places in one step where a normalisation may sit, for one row: the counterpart of equations/sites.py.
//
// A row of summed inputs is G blocks of Hp units, H of them real. In the other Hp - H units z, gains and biases are 0, and
// gradients meet zero weights, so that only the statistics have to leave them out.
#pragma once

#include <math.h>

#include "engine.h"
#include "product.h"

namespace LAYERNORM_ISA {

struct Span {  // `gates` neighbouring blocks that are normalised together
    i64 gates, H, Hp;
    i64 units() const { return gates * H; }
    i64 end() const { return gates * Hp; }
};

struct Norming {
    bool rms, deviation;
    double eps;
};

// The sums over the units of what f makes of each vector of z, two at most; four of each under way at a time.
template <class T> struct Sums {
    V<T> first[4] = {}, second[4] = {};
    V<T> one() const { return (first[0] + first[1]) + (first[2] + first[3]); }
    V<T> two() const { return (second[0] + second[1]) + (second[2] + second[3]); }
};
template <class T, class F> INLINE void over_units(const T* z, const Span& s, const F& f) {
    const i64 blocks = s.H == s.Hp ? 1 : s.gates, units = s.units() / blocks;  // blocks without a gap are one
    const i64 whole = units / LANES<T>, rest = units % LANES<T>;
    for (i64 g = 0; g < blocks; ++g, z += s.Hp) {
        i64 j = 0;
        for (; j + 4 <= whole; j += 4)
            for (int k = 0; k < 4; ++k) f(k, load(z + (j + k) * LANES<T>), LANES<T>);
        for (; j < whole; ++j) f(0, load(z + j * LANES<T>), LANES<T>);
        if (rest) f(1, load(z + j * LANES<T>), rest);
    }
}
template <class T> INLINE V<T> total(const T* z, const Span& s) {
    Sums<T> sums;
    over_units(z, s, [&](int k, V<T> v, i64 n) { sums.first[k] += n < LANES<T> ? first<T>(v, n) : v; });
    return sums.one();
}
// Of z - centre: the sum, and the sum of squares.
template <class T> INLINE Sums<T> moments(const T* z, T centre, const Span& s) {
    Sums<T> sums;
    over_units(z, s, [&](int k, V<T> v, i64 n) {
        const V<T> d = n < LANES<T> ? first<T>(v - centre, n) : v - centre;
        sums.first[k] += d;
        sums.second[k] += d * d;
    });
    return sums;
}

template <class T> INLINE T reciprocal_of(T mean_square, const Norming& n) {
    return n.deviation ? T(1) / (sqrt(mean_square) + T(n.eps)) : T(1) / sqrt(mean_square + T(n.eps));
}

// Calls f(first, count) for some rows, four at a time: so many sums over the lanes of a vector take little more than one.
constexpr i64 FOUR = 4;
template <class F> INLINE void by_fours(i64 rows, const F& f) {
    for (i64 i = 0; i < rows; i += FOUR) f(i, least(FOUR, rows - i));
}

// What normalises a span: z_hat = (z - mean) * r.
template <class T> struct Statistics {
    T mean, r;
};

// The statistics of a span in each of some rows: row(r) is where it begins, found(r, statistics) takes them. What a row
// waits for, the sums over a vector's lanes and the roots, is done for several rows at once.
//
// The mean of what is left when the mean has been taken away is its rounding error: with that a constant row's mean is
// exact, and one with |mean| >> deviation loses no more than a rounding of the mean.
template <class T, class Row, class Found>
INLINE void statistics(i64 rows, const Span& s, const Norming& n, const Row& row, const Found& found) {
    constexpr i64 AT_ONCE = 16;
    const T each = T(1) / T(s.units());
    for (i64 begin = 0; begin < rows; begin += AT_ONCE) {
        const i64 count = least(AT_ONCE, rows - begin);
        T mean[AT_ONCE] = {}, error[AT_ONCE] = {}, r[AT_ONCE] = {};
        if (!n.rms)
            by_fours(count, [&](i64 i, i64 four) {
                V<T> sums[FOUR] = {};
                for (i64 k = 0; k < four; ++k) sums[k] = total(row(begin + i + k), s);
                store_sums<T>(mean + i, sums, four);
            });
        for (T& m : mean) m *= each;
        by_fours(count, [&](i64 i, i64 four) {
            V<T> sums[FOUR] = {}, squares[FOUR] = {};
            for (i64 k = 0; k < four; ++k) {
                const Sums<T> rest = moments(row(begin + i + k), mean[i + k], s);
                sums[k] = rest.one(), squares[k] = rest.two();
            }
            if (!n.rms) store_sums<T>(error + i, sums, four);
            store_sums<T>(r + i, squares, four);
        });
        for (i64 i = 0; i < AT_ONCE; ++i) {
            const T e = error[i] * each, square = r[i] * each;
            const T spread = square - square == 0 ? square - e * e : square;  // infinite: z_hat is 0
            r[i] = reciprocal_of(spread > 0 ? spread : T(0) * spread, n);
            mean[i] += e;
        }
        for (i64 i = 0; i < count; ++i) found(begin + i, Statistics<T>{mean[i], r[i]});
    }
}

// Sums over the units, by lanes: of d, the gradient of z_hat, and of d * z_hat.
template <class T> struct GradientSums {
    V<T> d = {}, product = {};
};
template <class T> struct StandardizedRow {
    T* d;
    const T* z;
    Statistics<T> statistics;
};

// The gradient of z from d in place, in FOUR rows at most:  r * (d - mean(d) - z_hat * mean(d * z_hat)).  Where eps is added
// to the deviation, more than z_hat * mean(d * z_hat) flows back. row(k): a StandardizedRow.
template <class T, class Row>
INLINE void standardize_backward(i64 rows, const Span& s, const Norming& n, const GradientSums<T>* of, const Row& row) {
    const T each = T(1) / T(s.units());
    V<T> sums[FOUR] = {}, products[FOUR] = {};
    for (i64 k = 0; k < rows; ++k) sums[k] = of[k].d, products[k] = of[k].product;
    T of_d[FOUR], of_product[FOUR];
    store_sums<T>(of_d, sums, rows);
    store_sums<T>(of_product, products, rows);
    for (i64 k = 0; k < rows; ++k) {
        const StandardizedRow<T> w = row(k);
        const T r = w.statistics.r, mean = w.statistics.mean, product = of_product[k] * each;
        const T square = n.deviation ? Set::sum<T>(moments(w.z, mean, s).two()) * each * r * r : T(1);
        const T slope = square > 0 ? product / sqrt(square) : T(0) * product;
        const T r_mean = n.rms ? T(0) : r * of_d[k] * each, r_slope = r * slope;
        for (i64 j = 0; j < s.end(); j += LANES<T>)  // not r * r, which may be too small or too large for the type
            store<T>(w.d + j, (r * load(w.d + j) - r_mean) - (load(w.z + j) - mean) * r * r_slope);
    }
}

}  // namespace LAYERNORM_ISA
