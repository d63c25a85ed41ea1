// Vectors of one instruction set, and the functions of a vector that the kernels need.
//
// Everything is in the namespace LAYERNORM_ISA, since this source is compiled once for each instruction set into one
// library. For the same reason no function template of the standard library is used: the linker would keep one copy of
// it, perhaps one that the processor cannot run.
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include "engine.h"

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define LAYERNORM_SHUFFLES
#endif
#endif

namespace LAYERNORM_ISA {

using i64 = int64_t;

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

template <class T> struct VectorOf;
template <> struct VectorOf<float> {
    typedef float type __attribute__((vector_size(VECTOR_BYTES)));
    typedef float anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float))));
    typedef int32_t bits __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct VectorOf<double> {
    typedef double type __attribute__((vector_size(VECTOR_BYTES)));
    typedef double anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double))));
    typedef int64_t bits __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using V = typename VectorOf<T>::type;
template <class T> using Bits = typename VectorOf<T>::bits;
template <class T> constexpr int LANES = VECTOR_BYTES / sizeof(T);

template <int... LANE> struct Lanes {};
template <int N, int... LANE> struct Count : Count<N - 1, N - 1, LANE...> {};
template <int... LANE> struct Count<0, LANE...> { typedef Lanes<LANE...> type; };
template <int N> using AllLanes = typename Count<N>::type;

#define INLINE static inline __attribute__((always_inline))

template <class T> INLINE V<T> load(const T* p) { return *reinterpret_cast<const typename VectorOf<T>::anywhere*>(p); }
template <class T> INLINE void store(T* p, V<T> v) { *reinterpret_cast<typename VectorOf<T>::anywhere*>(p) = v; }
template <class T> INLINE V<T> all(T a) { return a - V<T>{}; }  // a - 0 is a, of either sign, and costs nothing

// Past the caches, to a place at a multiple of VECTOR_BYTES; `streamed` before another thread may read it.
template <class T> INLINE void stream(T* p, V<T> v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
    else _mm512_stream_pd(p, reinterpret_cast<__m512d>(v));
#elif defined(__AVX__) && defined(__F16C__)
    if constexpr (sizeof(T) == 4) _mm256_stream_ps(p, reinterpret_cast<__m256>(v));
    else _mm256_stream_pd(p, reinterpret_cast<__m256d>(v));
#else
    store<T>(p, v);
#endif
}
INLINE void streamed() {
#if defined(__AVX512F__) || defined(__F16C__)
    _mm_sfence();
#endif
}

INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }

// The sum of all lanes, by halves.
template <class T> INLINE T sum(V<T> v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
    else return _mm512_reduce_add_pd(reinterpret_cast<__m512d>(v));
#else
    T lane[LANES<T>];
    memcpy(lane, &v, sizeof v);
    for (int half = LANES<T> / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    return lane[0];
#endif
}

// The first n lanes of v, zero in the others.
template <class T> INLINE V<T> first(V<T> v, i64 n) {
    Bits<T> lane;
    for (int i = 0; i < LANES<T>; ++i) lane[i] = i;
    return lane < (Bits<T>{} + static_cast<decltype(+lane[0])>(n)) ? v : V<T>{};
}

// Keeps v in a register, where the compiler would read it from memory again at each use.
template <class T> INLINE void keep(V<T>& v) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#elif defined(__x86_64__)
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
}

// a * b + c, rounded once if the instruction set can. Compilers make one instruction of the plain expression, too, but
// not always: Clang only if nothing branches between the product and the sum.
template <class T> INLINE V<T> fused(V<T> a, V<T> b, V<T> c) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        return reinterpret_cast<V<T>>(_mm512_fmadd_ps(
            reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
    else
        return reinterpret_cast<V<T>>(_mm512_fmadd_pd(
            reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(__FMA__)
    if constexpr (sizeof(T) == 4)
        return reinterpret_cast<V<T>>(_mm256_fmadd_ps(
            reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
    else
        return reinterpret_cast<V<T>>(_mm256_fmadd_pd(
            reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#else
    return a * b + c;
#endif
}

// 1 / b and a / b for finite b >= 1. AVX-512's division takes 16 cycles; its estimate of 1/b, refined, 4.
template <class T> INLINE V<T> reciprocal(V<T> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const V<T> rough = reinterpret_cast<V<T>>(_mm512_maskz_rcp14_ps(0xffff, reinterpret_cast<__m512>(b)));
        return rough + rough * (T(1) - b * rough);
    }
#endif
    return T(1) / b;
}
template <class T> INLINE V<T> quotient(V<T> a, V<T> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const V<T> r = reciprocal<T>(b), q = a * r;
        return q + r * (a - b * q);
    }
#endif
    return a / b;
}

// The smaller and the larger; of a and a NaN in y, y.
template <class T> INLINE V<T> at_most(T a, V<T> y) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return reinterpret_cast<V<T>>(_mm512_maskz_min_ps(0xffff, reinterpret_cast<__m512>(all(a)), reinterpret_cast<__m512>(y)));
#endif
    return all(a) < y ? all(a) : y;
}
template <class T> INLINE V<T> at_least(T a, V<T> y) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return reinterpret_cast<V<T>>(_mm512_maskz_max_ps(0xffff, reinterpret_cast<__m512>(all(a)), reinterpret_cast<__m512>(y)));
#endif
    return all(a) > y ? all(a) : y;
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

// y = n ln 2 + r, |r| <= ln(2)/2, y no larger than MOST:  scale = 2^n, and exp(r) - 1 is returned, to its full relative precision (Taylor).
template <class T> INLINE V<T> reduced(V<T> y, V<T>& scale) {
    using E = Exponential<T>;
    y = at_least<T>(-E::MOST, y);
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
    const V<T> p = reduced<T>(at_most<T>(Exponential<T>::MOST, -x), scale);
    return reciprocal<T>(T(1) + (scale * p + scale));
}

// tanh|x| = -e / (e + 2) with e = exp(-2|x|) - 1: keeps its relative precision near 0.
template <class T> INLINE V<T> tanh(V<T> x) {
    const V<T> magnitude = x < V<T>{} ? -x : x;
    V<T> scale;
    const V<T> p = reduced<T>(T(-2) * magnitude, scale), e = scale * p + (scale - T(1)), y = quotient<T>(-e, e + T(2));
    return x < V<T>{} ? -y : y;
}

template <class T> INLINE V<T> relu(V<T> x) { return x < V<T>{} ? V<T>{} : x; }

}  // namespace LAYERNORM_ISA
