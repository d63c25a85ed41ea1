// The places in one step where a normalisation may sit, for one row: the counterpart of equations/sites.py.
//
// A row of summed inputs is G blocks of Hp units, H of them real. In the other Hp - H units z is 0, and gains, biases
// and gradients are 0, so that only the statistics have to leave them out.
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
    T one() const { return Set::sum<T>((first[0] + first[1]) + (first[2] + first[3])); }
    T two() const { return Set::sum<T>((second[0] + second[1]) + (second[2] + second[3])); }
};
template <class T, class F> INLINE void over_units(const T* z, const Span& s, const F& f) {
    const i64 whole = s.H / LANES<T>, rest = s.H % LANES<T>;
    for (i64 g = 0; g < s.gates; ++g, z += s.Hp) {
        i64 j = 0;
        for (; j + 4 <= whole; j += 4)
            for (int k = 0; k < 4; ++k) f(k, load(z + (j + k) * LANES<T>), LANES<T>);
        for (; j < whole; ++j) f(0, load(z + j * LANES<T>), LANES<T>);
        if (rest) f(1, load(z + j * LANES<T>), rest);
    }
}
template <class T> INLINE T total(const T* z, const Span& s) {
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

// What normalises a span: z_hat = (z - mean) * r.
template <class T> struct Statistics {
    T mean, r;
};

// The mean of what is left when the mean has been taken away is its rounding error: with that a constant row's mean is
// exact, and one with |mean| >> deviation loses nothing.
template <class T> INLINE Statistics<T> statistics(const T* z, const Span& s, const Norming& n) {
    const T each = T(1) / T(s.units());
    if (n.rms) return {0, reciprocal_of(moments(z, T(0), s).two() * each, n)};
    const T rough = total(z, s) * each;
    const Sums<T> rest = moments(z, rough, s);
    const T error = rest.one() * each, square = rest.two() * each;
    const T spread = square - square == 0 ? square - error * error : square;  // infinite: z_hat is 0
    return {rough + error, reciprocal_of(spread > 0 ? spread : T(0) * spread, n)};
}

// The gradient of z from d, that of z_hat, in place:  r * (d - mean(d) - z_hat * mean(d * z_hat)), the two means given.
// Where eps is added to the deviation, more than z_hat * mean(d * z_hat) flows back.
template <class T>
INLINE void standardize_backward(
    T* d, T of_d, T of_product, const T* z, const Statistics<T>& k, const Span& s, const Norming& n) {
    const T square = n.deviation ? moments(z, k.mean, s).two() / T(s.units()) * k.r * k.r : T(1);
    const T mean = n.rms ? T(0) : of_d, slope = square > 0 ? of_product / sqrt(square) : T(0) * of_product;
    for (i64 j = 0; j < s.end(); j += LANES<T>)
        store<T>(d + j, k.r * (load(d + j) - mean - (load(z + j) - k.mean) * k.r * slope));
}

}  // namespace LAYERNORM_ISA
