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

// exp(r) - 1 - r = r^2 * q(r). FACTORS: q's, the highest first; in float32 the polynomial of degree 4 that fits best for
// |r| <= ln(2) / 2, 7e-8 at most, in float64 Taylor's. WHOLE: adding it rounds to an integer, half to even. ROUND: the same,
// and the integer stands in the lowest bits with the exponent's bias added.
template <class T> struct Exponential;
template <> struct Exponential<float> {
    static constexpr float MOST = 87.0f, WHOLE = 12582912.0f, ROUND = WHOLE + 127;  // 1.5 * 2^23
    static constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    static constexpr float FACTORS[] = {1.3926183587713494e-3f, 8.363179052722578e-3f, 4.1666554617204574e-2f,
        1.6666576989698775e-1f, 0.5f};
    static constexpr int MANTISSA = 23;
};
template <> struct Exponential<double> {
    static constexpr double MOST = 708.0, WHOLE = 6755399441055744.0, ROUND = WHOLE + 1023;  // 1.5 * 2^52
    static constexpr double LN2_HIGH = 6.93145751953125e-1, LN2_LOW = 1.42860682030941723212e-6;
    static constexpr double FACTORS[] = {1.0 / 6227020800.0, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
        1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2};
    static constexpr int MANTISSA = 52;
};

// With y = n ln 2 + r, |r| <= ln(2) / 2: returns exp(r) - 1 to its full relative precision, and 2^n in `scale`. So
// exp(y) = scale * (1 + what is returned). |y| <= MOST.
template <class T> INLINE V<T> reduced(V<T> y, V<T>& scale) {
    using E = Exponential<T>;
    const V<T> shifted = y * T(1.44269504088896340736) + E::ROUND, n = shifted - E::ROUND;
    const V<T> r = (y - n * E::LN2_HIGH) - n * E::LN2_LOW;
    scale = same_bits<V<T>>(same_bits<Bits<T>>(shifted) << E::MANTISSA);
    V<T> q = all<T>(E::FACTORS[0]);
    counted<sizeof E::FACTORS / sizeof(T) - 1>([&](auto k) __attribute__((always_inline)) {
        q = q * r + E::FACTORS[decltype(k)::value + 1];
    });
    return q * (r * r) + r;
}

// 1 / (1 + exp(-x))
template <class T> INLINE V<T> sigmoid(V<T> x) {
    constexpr T MOST = Exponential<T>::MOST;
    V<T> scale;
    const V<T> p = reduced<T>(-Set::at_least<T>(-MOST, Set::at_most<T>(MOST, x)), scale);
    return Set::reciprocal<T>(scale * p + (scale + T(1)));
}

// tanh|x| = e / (e + 2) with e = exp(2|x|) - 1: keeps its relative precision near 0.
template <class T> INLINE V<T> tanh(V<T> x) {
    const Bits<T> sign = same_bits<Bits<T>>(x) & same_bits<Bits<T>>(all<T>(T(-0.0)));
    const V<T> magnitude = same_bits<V<T>>(same_bits<Bits<T>>(x) ^ sign);
    V<T> scale;
    const V<T> p = reduced<T>(Set::at_most<T>(Exponential<T>::MOST, magnitude + magnitude), scale);
    const V<T> e = scale * p + (scale - T(1)), y = Set::quotient<T>(e, e + T(2));
    return same_bits<V<T>>(same_bits<Bits<T>>(y) | sign);
}

template <class T> INLINE V<T> relu(V<T> x) { return x < V<T>{} ? V<T>{} : x; }

}  // namespace LAYERNORM_ISA
