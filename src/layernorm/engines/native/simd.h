// The instruction set that is being compiled, LAYERNORM_ISA, and the functions of a vector that the kernels need.
#pragma once

#include "engine.h"

#define LAYERNORM_TEXT(name) #name
#define LAYERNORM_HEADER(name) LAYERNORM_TEXT(sets/name.h)
#define LAYERNORM_JOIN(a, b) a##b
#define LAYERNORM_SET(name) LAYERNORM_JOIN(name, _set)

#include LAYERNORM_HEADER(LAYERNORM_ISA)

namespace LAYERNORM_ISA {

using Set = LAYERNORM_SET(LAYERNORM_ISA);

template <int... LANE> struct Lanes {};
template <int N, int... LANE> struct Count : Count<N - 1, N - 1, LANE...> {};
template <int... LANE> struct Count<0, LANE...> { typedef Lanes<LANE...> type; };
template <int N> using AllLanes = typename Count<N>::type;

template <int N> struct Number { static constexpr int value = N; };
// Calls f(Number<0>{}), f(Number<1>{}), ... N times.
template <int N, class G> INLINE void counted(const G& f) {
    if constexpr (N > 0) {
        counted<N - 1>(f);
        f(Number<N - 1>{});
    }
}

INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }

// Returns v with its first n lanes, and zeros in the others.
template <class T> INLINE V<T> first(V<T> v, i64 n) {
    Bits<T> lane;
    for (int i = 0; i < LANES<T>; ++i) lane[i] = i;
    return lane < (Bits<T>{} + static_cast<decltype(+lane[0])>(n)) ? v : V<T>{};
}

template <class T> struct Exponential;
template <> struct Exponential<float> {
    static constexpr float MOST = 87.0f, ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    static constexpr int BIAS = 127, SHIFT = 23, DEGREE = 7;
};
template <> struct Exponential<double> {
    static constexpr double MOST = 708.0, ROUND = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double LN2_HIGH = 6.93145751953125e-1, LN2_LOW = 1.42860682030941723212e-6;
    static constexpr int BIAS = 1023, SHIFT = 52, DEGREE = 13;
};

constexpr double INVERSE_FACTORIAL[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
    1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};

// With y = n ln 2 + r, |r| <= ln(2) / 2: returns exp(r) - 1 to its full relative precision (Taylor), and 2^n in `scale`. So
// exp(y) = scale * (1 + what is returned). y is no larger than MOST.
template <class T> INLINE V<T> reduced(V<T> y, V<T>& scale) {
    using E = Exponential<T>;
    y = Set::at_least<T>(-E::MOST, y);
    const V<T> shifted = y * T(1.44269504088896340736) + E::ROUND, n = shifted - E::ROUND;
    const V<T> r = (y - n * E::LN2_HIGH) - n * E::LN2_LOW;
    Bits<T> bits, zero;
    const V<T> round = all<T>(E::ROUND);
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &round, sizeof zero);
    bits = (bits - zero + E::BIAS) << E::SHIFT;
    memcpy(&scale, &bits, sizeof bits);
    V<T> q = all<T>(T(INVERSE_FACTORIAL[E::DEGREE]));
#pragma GCC unroll 16
    for (int k = E::DEGREE - 1; k >= 2; --k) q = q * r + T(INVERSE_FACTORIAL[k]);
    return q * (r * r) + r;
}

// 1 / (1 + exp(-x))
template <class T> INLINE V<T> sigmoid(V<T> x) {
    V<T> scale;
    const V<T> p = reduced<T>(Set::at_most<T>(Exponential<T>::MOST, -x), scale);
    return Set::reciprocal<T>(T(1) + (scale * p + scale));
}

// tanh|x| = -e / (e + 2) with e = exp(-2|x|) - 1: keeps its relative precision near 0.
template <class T> INLINE V<T> tanh(V<T> x) {
    const V<T> magnitude = x < V<T>{} ? -x : x;
    V<T> scale;
    const V<T> p = reduced<T>(T(-2) * magnitude, scale), e = scale * p + (scale - T(1)), y = Set::quotient<T>(-e, e + T(2));
    return x < V<T>{} ? -y : y;
}

template <class T> INLINE V<T> relu(V<T> x) { return x < V<T>{} ? V<T>{} : x; }

}  // namespace LAYERNORM_ISA
