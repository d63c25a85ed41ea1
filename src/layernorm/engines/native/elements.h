// The types that tensors may have, and their way to the type that is computed in and back.
#pragma once

#include "simd.h"

namespace LAYERNORM_ISA {

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

// N numbers in a vector that may be smaller than a register.
template <class X, int N> struct Few { typedef X type __attribute__((vector_size(N * sizeof(X)))); };
template <class X, int N> using FewOf = typename Few<X, N>::type;
template <class X, int N> INLINE FewOf<X, N> few(const void* p) {
    FewOf<X, N> v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class To, class From> INLINE To same_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "");
    To w;
    memcpy(&w, &v, sizeof w);
    return w;
}

// Numbers of N lanes converted to a type of the same kind. GCC 12 takes a conversion between vectors of two sizes apart.
template <int N> INLINE FewOf<double, N> doubles(FewOf<float, N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 8) return same_bits<FewOf<double, N>>(_mm512_maskz_cvtps_pd(0xff, same_bits<__m256>(v)));
#endif
    return __builtin_convertvector(v, FewOf<double, N>);
}
template <int N> INLINE FewOf<float, N> floats(FewOf<double, N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 8) return same_bits<FewOf<float, N>>(_mm512_maskz_cvtpd_ps(0xff, same_bits<__m512d>(v)));
#endif
    return __builtin_convertvector(v, FewOf<float, N>);
}
template <int N> INLINE FewOf<uint32_t, N> words(FewOf<uint16_t, N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return same_bits<FewOf<uint32_t, N>>(_mm512_maskz_cvtepu16_epi32(0xffff, same_bits<__m256i>(v)));
    if constexpr (N == 8) return same_bits<FewOf<uint32_t, N>>(_mm256_cvtepu16_epi32(same_bits<__m128i>(v)));
#endif
    return __builtin_convertvector(v, FewOf<uint32_t, N>);
}
template <int N> INLINE FewOf<uint16_t, N> halves(FewOf<uint32_t, N> v) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return same_bits<FewOf<uint16_t, N>>(_mm512_maskz_cvtepi32_epi16(0xffff, same_bits<__m512i>(v)));
#endif
    return __builtin_convertvector(v, FewOf<uint16_t, N>);
}

// --- float32 and the two 16-bit types: round to nearest, ties to even ---

template <int N> using Floats = FewOf<float, N>;
template <int N> using Words = FewOf<uint32_t, N>;
template <int N> using Halves = FewOf<uint16_t, N>;

template <int N> INLINE Floats<N> wide_of(Halves<N> h, BFloat16) {
    return same_bits<Floats<N>>(words<N>(h) << 16);
}
// Rounded to bfloat16, whose bits are the upper half; a NaN keeps its sign and the first bits of its payload.
template <int N> INLINE Words<N> rounded(Floats<N> f) {
    const Words<N> w = same_bits<Words<N>>(f), up = 0x7fff + ((w >> 16) & 1), quiet = w | 0x400000;
#if defined(__AVX512F__)
    if constexpr (N == 16) {
        const __mmask16 number = _mm512_cmp_ps_mask(same_bits<__m512>(f), same_bits<__m512>(f), _CMP_ORD_Q);
        return same_bits<Words<N>>(_mm512_mask_add_epi32(
            same_bits<__m512i>(quiet), number, same_bits<__m512i>(w), same_bits<__m512i>(up)));
    }
#endif
    const Words<N> nan = same_bits<Words<N>>(f != f);
    return (nan & quiet) | (~nan & (w + up));
}
#if defined(__AVX512BF16__)
// Whether no number is subnormal or 0: subnormal ones the processor's own rounding to bfloat16 takes for 0.
INLINE bool all_normal(Floats<16> f) {
    return !_mm512_testn_epi32_mask(same_bits<__m512i>(f), _mm512_set1_epi32(0x7f800000));
}
#endif
template <int N> INLINE Halves<N> narrow_of(Floats<N> f, BFloat16) {
#if defined(__AVX512BF16__)
    if constexpr (N == 16)
        if (all_normal(f)) return same_bits<Halves<N>>(_mm512_cvtneps_pbh(same_bits<__m512>(f)));
#endif
    return halves<N>(rounded<N>(f) >> 16);
}

// With a hidden bit of their own subnormals become normal numbers, so that no setting of the processor flushes them.
template <int N> INLINE Floats<N> wide_of(Halves<N> h, Float16) {
#if defined(__F16C__)
    if constexpr (N == 8) return same_bits<Floats<N>>(_mm256_cvtph_ps(same_bits<__m128i>(h)));
#endif
#if defined(__AVX512F__)
    if constexpr (N == 16) return same_bits<Floats<N>>(_mm512_maskz_cvtph_ps(0xffff, same_bits<__m256i>(h)));
#endif
    const Words<N> w = words<N>(h), magnitude = (w & 0x7fff) << 13;
    const Words<N> exponent = magnitude & 0x0f800000, hidden = Words<N>{} + (113u << 23);
    const Words<N> subnormal = same_bits<Words<N>>(exponent == 0), special = same_bits<Words<N>>(exponent == 0x0f800000);
    const Floats<N> small = same_bits<Floats<N>>(magnitude + hidden) - same_bits<Floats<N>>(hidden);
    const Words<N> large = magnitude + (112u << 23) + (special & (112u << 23));
    return same_bits<Floats<N>>((subnormal & same_bits<Words<N>>(small)) | (~subnormal & large) | (w & 0x8000) << 16);
}
template <int N> INLINE Halves<N> narrow_of(Floats<N> f, Float16) {
#if defined(__F16C__)
    if constexpr (N == 8) return same_bits<Halves<N>>(_mm256_cvtps_ph(same_bits<__m256>(f), _MM_FROUND_TO_NEAREST_INT));
#endif
#if defined(__AVX512F__)
    if constexpr (N == 16)
        return same_bits<Halves<N>>(
            _mm512_maskz_cvtps_ph(0xffff, same_bits<__m512>(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    const Words<N> w = same_bits<Words<N>>(f), magnitude = w & 0x7fffffff, hidden = Words<N>{} + (126u << 23);
    const Words<N> overflows = same_bits<Words<N>>(magnitude >= 0x47800000), nan = same_bits<Words<N>>(magnitude > 0x7f800000);
    const Words<N> subnormal = same_bits<Words<N>>(magnitude < 0x38800000);
    const Words<N> special = 0x7c00 | (nan & 0x200);
    const Words<N> small =
        same_bits<Words<N>>(same_bits<Floats<N>>(magnitude) + same_bits<Floats<N>>(hidden)) - hidden;
    const Words<N> large = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const Words<N> found = (overflows & special) | (~overflows & ((subnormal & small) | (~subnormal & large)));
    return halves<N>(found | (w >> 16 & 0x8000));
}

// --- LANES<T> elements of type E as a vector of T, and back ---

template <class T, class E> INLINE V<T> widen(const E* p) {
    constexpr int N = LANES<T>;
    if constexpr (sizeof(E) == sizeof(T)) return load(p);
    else if constexpr (sizeof(E) == 4) return same_bits<V<T>>(doubles<N>(few<float, N>(p)));
    else if constexpr (sizeof(E) == 8) return same_bits<V<T>>(__builtin_convertvector((few<double, N>(p)), Floats<N>));
    else if constexpr (sizeof(T) == 4) return same_bits<V<T>>(wide_of<N>(few<uint16_t, N>(p), E{}));
    else return same_bits<V<T>>(doubles<N>(wide_of<N>(few<uint16_t, N>(p), E{})));
}
template <class T, class E> INLINE void narrow(E* p, V<T> v) {
    constexpr int N = LANES<T>;
    if constexpr (sizeof(E) == sizeof(T)) {
        store(p, v);
    } else if constexpr (sizeof(E) == 4) {
        const Floats<N> f = floats<N>(same_bits<FewOf<double, N>>(v));
        memcpy(p, &f, sizeof f);
    } else {
        Floats<N> f;
        if constexpr (sizeof(T) == 4) f = same_bits<Floats<N>>(v);
        else f = floats<N>(same_bits<FewOf<double, N>>(v));
        const Halves<N> h = narrow_of<N>(f, E{});
        memcpy(p, &h, sizeof h);
    }
}

// --- Two vectors of elements at a time, in the order that is cheapest. That of bfloat16 in float32 is the elements at
// even places, then those at odd ones: the lower and upper halves of 32 bits ---

template <class T, class E> constexpr bool HALVES = false;
#if defined(LAYERNORM_SHUFFLES)
template <> constexpr bool HALVES<float, BFloat16> = true;
#endif

#if defined(__AVX512BF16__)
// Of 32 numbers, 16 and then 16, the places that take turns.
constexpr FewOf<uint16_t, 32> EVEN_AND_ODD = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#endif
template <class T, class E> INLINE void widen_two(const E* p, V<T>& a, V<T>& b) {
    if constexpr (HALVES<T, E>) {
        const Words<LANES<T>> w = few<uint32_t, LANES<T>>(p);
        a = same_bits<V<T>>(w << 16), b = same_bits<V<T>>(w & 0xffff0000);
    } else {
        a = widen<T>(p), b = widen<T>(p + LANES<T>);
    }
}
template <class T, class E> INLINE void narrow_two(E* p, V<T> a, V<T> b) {
    if constexpr (HALVES<T, E>) {
        constexpr int N = LANES<T>;
#if defined(__AVX512BF16__)
        if (all_normal(a) && all_normal(b)) {
            const __m512i both = same_bits<__m512i>(_mm512_cvtne2ps_pbh(same_bits<__m512>(b), same_bits<__m512>(a)));
            const __m512i w = _mm512_permutexvar_epi16(same_bits<__m512i>(EVEN_AND_ODD), both);
            memcpy(p, &w, sizeof w);
            return;
        }
#endif
        const Words<N> lower = rounded<N>(same_bits<Floats<N>>(a)) >> 16, upper = rounded<N>(same_bits<Floats<N>>(b));
        const Words<N> w = lower | (upper & 0xffff0000);
        memcpy(p, &w, sizeof w);
    } else {
        narrow<T>(p, a), narrow<T>(p + LANES<T>, b);
    }
}
// Two vectors that follow each other, brought into that order.
#if defined(LAYERNORM_SHUFFLES)
template <class T, int... LANE> INLINE void even_and_odd(V<T>& a, V<T>& b, const Lanes<LANE...>&) {
    const V<T> even = __builtin_shufflevector(a, b, (2 * LANE)...);
    b = __builtin_shufflevector(a, b, (2 * LANE + 1)...);
    a = even;
}
#endif
template <class T, class E> INLINE void in_twos([[maybe_unused]] V<T>& a, [[maybe_unused]] V<T>& b) {
#if defined(LAYERNORM_SHUFFLES)
    if constexpr (HALVES<T, E>) even_and_odd<T>(a, b, AllLanes<LANES<T>>{});
#endif
}

// The first n of N elements to where there is room for N, zeros after them; and the first n of N to where there is room
// for n. AVX-512 does it without a call of memcpy, across which no vector stays in a register.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
INLINE uint64_t first_bits(i64 n) { return (uint64_t(1) << n) - 1; }  // n < 64
#endif
template <int N, class E> INLINE void first_of(E* to, const E* from, i64 n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (N * sizeof(E) == 64) {
        _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(first_bits(n * sizeof(E)), from));
        return;
    } else if constexpr (N * sizeof(E) == 32) {
        const __m256i some = _mm256_maskz_loadu_epi8(__mmask32(first_bits(n * sizeof(E))), from);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), some);
        return;
    }
#endif
    memset(static_cast<void*>(to), 0, N * sizeof(E));
    memcpy(to, from, n * sizeof(E));
}
template <int N, class E> INLINE void no_more_of(E* to, const E* from, i64 n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (N * sizeof(E) == 64) {
        _mm512_mask_storeu_epi8(to, first_bits(n * sizeof(E)), _mm512_loadu_si512(from));
        return;
    } else if constexpr (N * sizeof(E) == 32) {
        const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        _mm256_mask_storeu_epi8(to, __mmask32(first_bits(n * sizeof(E))), some);
        return;
    }
#endif
    memcpy(to, from, n * sizeof(E));
}

// The first n < LANES of them; the lanes beyond are 0.
template <class T, class E> INLINE V<T> widen(const E* p, i64 n) {
    if (n == LANES<T>) return widen<T>(p);
    E some[LANES<T>];
    first_of<LANES<T>>(some, p, n);
    return widen<T>(some);
}
template <class T, class E> INLINE void narrow(E* p, V<T> v, i64 n) {
    if (n == LANES<T>) return narrow<T>(p, v);
    E some[LANES<T>];
    narrow<T>(some, v);
    no_more_of<LANES<T>>(p, some, n);
}

// f(j, n) for each n <= LANES elements from j on, of N; and f(k, j, n) with k one of four sums that are under way.
template <class T, class F> INLINE void over(i64 N, const F& f) {
    i64 j = 0;
    for (; j + LANES<T> <= N; j += LANES<T>) f(j, LANES<T>);
    if (j < N) f(j, N - j);
}
// two(j) for each two vectors from j on, then f(j, n) for what is left.
template <class T, class G, class F> INLINE void over_twos(i64 N, const G& two, const F& f) {
    i64 j = 0;
    for (; j + 2 * LANES<T> <= N; j += 2 * LANES<T>) two(j);
    for (; j + LANES<T> <= N; j += LANES<T>) f(j, LANES<T>);
    if (j < N) f(j, N - j);
}
// The same, with k = 0 or 2: the first of two of four sums that are under way.
template <class T, class G, class F> INLINE void over_fours(i64 N, const G& two, const F& f) {
    i64 j = 0;
    for (; j + 4 * LANES<T> <= N; j += 4 * LANES<T>) two(0, j), two(2, j + 2 * LANES<T>);
    for (; j + LANES<T> <= N; j += LANES<T>) f(j, LANES<T>);
    if (j < N) f(j, N - j);
}
template <class A, class B> constexpr bool SAME = false;
template <class A> constexpr bool SAME<A, A> = true;

// One of them, a T or a bfloat16.
template <class T> INLINE T widened(T x) { return x; }
template <class T> INLINE T widened(BFloat16 x) { return same_bits<float>(uint32_t(x.bits) << 16); }
// n elements as another type: between two of the same, or between one that is computed in and a narrower one.
template <class To, class From> INLINE void convert(To* to, const From* from, i64 n) {
    if constexpr (SAME<To, From>) {
        memcpy(to, from, n * sizeof(To));
    } else if constexpr (sizeof(To) > sizeof(From)) {
        over<To>(n, [&](i64 j, i64 k) { narrow<To>(to + j, widen<To>(from + j, k), k); });
    } else {
        over<From>(n, [&](i64 j, i64 k) { narrow<From>(to + j, widen<From>(from + j, k), k); });
    }
}

// --- What the products multiply. Their sum is a T; the factors of bfloat16 are pairs of neighbours along it where the
// processor has an instruction for these, and numbers of the type T elsewhere ---

struct Pair { BFloat16 first, second; };
template <> struct VectorOf<Pair> {
    typedef uint32_t type __attribute__((vector_size(VECTOR_BYTES)));
    typedef uint32_t anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(BFloat16)), may_alias));
};

template <class F> struct Factor { typedef F Element, Sum; static constexpr int DEPTH = 1; };
template <> struct Factor<Pair> { typedef BFloat16 Element; typedef float Sum; static constexpr int DEPTH = 2; };
template <class F> using ElementOf = typename Factor<F>::Element;
template <class F> using SumOf = typename Factor<F>::Sum;
template <class F> constexpr int DEPTH = Factor<F>::DEPTH;  // numbers in a factor

template <class T, class E> struct FactorFor { typedef T type; };
#if defined(__AVX512BF16__) || defined(LAYERNORM_PAIRS)  // LAYERNORM_PAIRS: a test, where the processor lacks it
#define LAYERNORM_PAIRED
template <> struct FactorFor<float, BFloat16> { typedef Pair type; };
#endif

INLINE V<Pair> all(Pair a) {
    uint32_t word;
    memcpy(&word, &a, sizeof word);
    return word + V<Pair>{};
}

// sum += a b. Of a pair the second product is added first, then the first one, each with one rounding.
template <class F> INLINE void add_product(V<SumOf<F>>& sum, V<F> a, V<F> b) {
    if constexpr (SAME<F, Pair>) {
#if defined(__AVX512BF16__)
        sum = same_bits<V<float>>(_mm512_dpbf16_ps(same_bits<__m512>(sum), same_bits<__m512bh>(a), same_bits<__m512bh>(b)));
#else
        sum += same_bits<V<float>>(a & 0xffff0000) * same_bits<V<float>>(b & 0xffff0000);
        sum += same_bits<V<float>>(a << 16) * same_bits<V<float>>(b << 16);
#endif
    } else {
        sum += a * b;
    }
}

// LANES factors of the numbers from p on, or of the first n of them; and one of the first n.
template <class F, class E> INLINE V<F> factors(const E* p) {
    if constexpr (!SAME<F, Pair>) {
        return widen<F>(p);
    } else if constexpr (SAME<E, BFloat16>) {
        return load(reinterpret_cast<const Pair*>(p));
    } else {
        BFloat16 rounded[LANES<F> * DEPTH<F>];
        convert(rounded, p, LANES<F> * DEPTH<F>);
        return factors<F>(rounded);
    }
}
template <class F, class E> INLINE V<F> factors(const E* p, i64 n) {
    E some[LANES<F> * DEPTH<F>] = {};
    memcpy(some, p, n * sizeof(E));
    return factors<F>(some);
}
template <class F, class E> INLINE F factor(const E* p, i64 n) {
    F made{};
    convert(reinterpret_cast<ElementOf<F>*>(&made), p, least(n, DEPTH<F>));
    return made;
}

// n <= 32 factors, each of the numbers at one place of DEPTH rows; a null row is zeros.
template <class F, class E> INLINE void join(F* to, const E* const* rows, i64 n) {
    if constexpr (SAME<F, Pair> && !SAME<E, BFloat16>) {
        BFloat16 rounded[DEPTH<F>][32];
        const BFloat16* here[DEPTH<F>] = {};
        for (int i = 0; i < DEPTH<F>; ++i)
            if (rows[i]) convert(rounded[i], rows[i], n), here[i] = rounded[i];
        join(to, here, n);
    } else if constexpr (SAME<F, Pair>) {
        i64 j = 0;
        for (; j + 8 <= n; j += 8) {
            const Words<8> lower = rows[0] ? words<8>(few<uint16_t, 8>(rows[0] + j)) : Words<8>{};
            const Words<8> upper = rows[1] ? words<8>(few<uint16_t, 8>(rows[1] + j)) : Words<8>{};
            const Words<8> both = lower | upper << 16;
            memcpy(to + j, &both, sizeof both);
        }
        for (; j < n; ++j) to[j] = {rows[0] ? rows[0][j] : E{}, rows[1] ? rows[1][j] : E{}};
    } else if (rows[0]) {
        convert(to, rows[0], n);
    } else {
        memset(to, 0, n * sizeof(F));
    }
}

}  // namespace LAYERNORM_ISA
