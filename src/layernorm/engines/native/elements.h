// The types that tensors may have, and their way to the type that is computed in and back.
#pragma once

#include "simd.h"

namespace LAYERNORM_ISA {

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

// --- float32 and the two 16-bit types: round to nearest, ties to even ---

template <int N> INLINE Floats<N> wide_of(Halves<N> h, BFloat16) {
    return same_bits<Floats<N>>(Set::words<N>(h) << 16);
}
template <int N> INLINE Halves<N> narrow_of(Floats<N> f, BFloat16) {
    Halves<N> h;
    if (Set::to_bfloat16<N>(f, h)) return h;
    return Set::halves<N>(Set::rounded<N>(f) >> 16);
}

// With a hidden bit of their own subnormals become normal numbers, so that no setting of the processor flushes them.
template <int N> INLINE Floats<N> wide_of(Halves<N> h, Float16) {
    Floats<N> f;
    if (Set::from_float16<N>(h, f)) return f;
    const Words<N> w = Set::words<N>(h), magnitude = (w & 0x7fff) << 13;
    const Words<N> exponent = magnitude & 0x0f800000, hidden = Words<N>{} + (113u << 23);
    const Words<N> subnormal = same_bits<Words<N>>(exponent == 0), special = same_bits<Words<N>>(exponent == 0x0f800000);
    const Floats<N> small = same_bits<Floats<N>>(magnitude + hidden) - same_bits<Floats<N>>(hidden);
    const Words<N> large = magnitude + (112u << 23) + (special & (112u << 23));
    return same_bits<Floats<N>>((subnormal & same_bits<Words<N>>(small)) | (~subnormal & large) | (w & 0x8000) << 16);
}
template <int N> INLINE Halves<N> narrow_of(Floats<N> f, Float16) {
    Halves<N> h;
    if (Set::to_float16<N>(f, h)) return h;
    const Words<N> w = same_bits<Words<N>>(f), magnitude = w & 0x7fffffff, hidden = Words<N>{} + (126u << 23);
    const Words<N> overflows = same_bits<Words<N>>(magnitude >= 0x47800000), nan = same_bits<Words<N>>(magnitude > 0x7f800000);
    const Words<N> subnormal = same_bits<Words<N>>(magnitude < 0x38800000);
    const Words<N> special = 0x7c00 | (nan & 0x200);
    const Words<N> small =
        same_bits<Words<N>>(same_bits<Floats<N>>(magnitude) + same_bits<Floats<N>>(hidden)) - hidden;
    const Words<N> large = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const Words<N> found = (overflows & special) | (~overflows & ((subnormal & small) | (~subnormal & large)));
    return Set::halves<N>(found | (w >> 16 & 0x8000));
}

// --- LANES<T> elements of type E as a vector of T, and back ---

template <class T, class E> INLINE V<T> widen(const E* p) {
    constexpr int N = LANES<T>;
    if constexpr (sizeof(E) == sizeof(T)) return load(p);
    else if constexpr (sizeof(E) == 4) return same_bits<V<T>>(Set::doubles<N>(few<float, N>(p)));
    else if constexpr (sizeof(E) == 8) return same_bits<V<T>>(__builtin_convertvector((few<double, N>(p)), Floats<N>));
    else if constexpr (sizeof(T) == 4) return same_bits<V<T>>(wide_of<N>(few<uint16_t, N>(p), E{}));
    else return same_bits<V<T>>(Set::doubles<N>(wide_of<N>(few<uint16_t, N>(p), E{})));
}
template <class T, class E> INLINE void narrow(E* p, V<T> v) {
    constexpr int N = LANES<T>;
    if constexpr (sizeof(E) == sizeof(T)) {
        store(p, v);
    } else if constexpr (sizeof(E) == 4) {
        const Floats<N> f = Set::floats<N>(same_bits<FewOf<double, N>>(v));
        memcpy(p, &f, sizeof f);
    } else {
        Floats<N> f;
        if constexpr (sizeof(T) == 4) f = same_bits<Floats<N>>(v);
        else f = Set::floats<N>(same_bits<FewOf<double, N>>(v));
        const Halves<N> h = narrow_of<N>(f, E{});
        memcpy(p, &h, sizeof h);
    }
}

// --- Two vectors of elements at a time, where their order does not matter: in the cheapest one. Example: eight numbers
// 0 1 2 ... 7 in bfloat16 become the vectors 0 2 4 6 and 1 3 5 7, which are the lower and the upper halves of 32 bits ---

template <class T, class E> constexpr bool HALVES = false;
#if defined(LAYERNORM_SHUFFLES)
template <> inline constexpr bool HALVES<float, BFloat16> = true;
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
        Words<N> w;
        if (!Set::two_to_bfloat16<N>(a, b, w)) {
            const Words<N> lower = Set::rounded<N>(same_bits<Floats<N>>(a)) >> 16;
            w = lower | (Set::rounded<N>(same_bits<Floats<N>>(b)) & 0xffff0000);
        }
        memcpy(p, &w, sizeof w);
    } else {
        narrow<T>(p, a), narrow<T>(p + LANES<T>, b);
    }
}
// Brings two vectors that follow each other into that order.
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

// `widen` and `narrow` for n <= LANES elements. Lanes beyond the n-th are 0.
template <class T, class E> INLINE V<T> widen(const E* p, i64 n) {
    if (n == LANES<T>) return widen<T>(p);
    E some[LANES<T>];
    Set::copy_padded<LANES<T>>(some, p, n);
    return widen<T>(some);
}
template <class T, class E> INLINE void narrow(E* p, V<T> v, i64 n) {
    if (n == LANES<T>) return narrow<T>(p, v);
    E some[LANES<T>];
    narrow<T>(some, v);
    Set::copy_first<LANES<T>>(p, some, n);
}

// Calls f(j, n) for the elements j ... j + n - 1, a vector at a time. Example: N = 20 and 8 lanes give f(0, 8), f(8, 8),
// f(16, 4).
template <class T, class F> INLINE void over(i64 N, const F& f) {
    i64 j = 0;
    for (; j + LANES<T> <= N; j += LANES<T>) f(j, LANES<T>);
    if (j < N) f(j, N - j);
}
// Calls two(j) for two vectors at a time, then f(j, n), as `over`, for what is left.
template <class T, class G, class F> INLINE void over_twos(i64 N, const G& two, const F& f) {
    i64 j = 0;
    for (; j + 2 * LANES<T> <= N; j += 2 * LANES<T>) two(j);
    for (; j + LANES<T> <= N; j += LANES<T>) f(j, LANES<T>);
    if (j < N) f(j, N - j);
}
// The same for two vectors with sums of their own: two(0, j) adds to the sums 0 and 1, two(2, j) to 2 and 3. So four sums
// are under way, and none waits for the one before.
template <class T, class G, class F> INLINE void over_fours(i64 N, const G& two, const F& f) {
    i64 j = 0;
    for (; j + 4 * LANES<T> <= N; j += 4 * LANES<T>) two(0, j), two(2, j + 2 * LANES<T>);
    for (; j + LANES<T> <= N; j += LANES<T>) f(j, LANES<T>);
    if (j < N) f(j, N - j);
}
template <class A, class B> constexpr bool SAME = false;
template <class A> constexpr bool SAME<A, A> = true;
template <bool FIRST, class A, class B> struct Choice { typedef A type; };
template <class A, class B> struct Choice<false, A, B> { typedef B type; };

// Returns one number, a T or a bfloat16, as a T.
template <class T> INLINE T widened(T x) { return x; }
template <class T> INLINE T widened(BFloat16 x) { return same_bits<float>(uint32_t(x.bits) << 16); }
// Copies n elements into another type: into the same, or between one that is computed in and a narrower one.
template <class To, class From> INLINE void convert(To* to, const From* from, i64 n) {
    if constexpr (SAME<To, From> && sizeof(To) == 2) {
        memcpy(to, from, n * sizeof(To));
    } else if constexpr (sizeof(To) >= sizeof(From)) {
        over<To>(n, [&](i64 j, i64 k) { narrow<To>(to + j, widen<To>(from + j, k), k); });
    } else {
        over<From>(n, [&](i64 j, i64 k) { narrow<From>(to + j, widen<From>(from + j, k), k); });
    }
}

// --- What the products multiply: numbers of the type T that their sums have. Of bfloat16 it is pairs of neighbours along
// the sum where the set has an instruction for these: a sum over 100 numbers is one over 50 pairs ---

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
template <> struct FactorFor<float, BFloat16> : Choice<Set::PAIRS, Pair, float> {};

// Whether products of these factors are made on tiles.
template <class F> constexpr bool TILED = Set::TILES && SAME<F, Pair>;

INLINE V<Pair> all(Pair a) {
    uint32_t word;
    memcpy(&word, &a, sizeof word);
    return word + V<Pair>{};
}

// sum += a b
template <class F> INLINE void add_product(V<SumOf<F>>& sum, V<F> a, V<F> b) {
    if constexpr (SAME<F, Pair>) Set::add_pairs(sum, a, b);
    else sum += a * b;
}

// Returns LANES factors: of the numbers from p on, or of the first n of them, with zeros behind. `factor` returns one.
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

// Makes n <= 32 factors. Factor j has the j-th number of each of DEPTH rows, 0 of a null row.
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
            const Words<8> lower = rows[0] ? Set::words<8>(few<uint16_t, 8>(rows[0] + j)) : Words<8>{};
            const Words<8> upper = rows[1] ? Set::words<8>(few<uint16_t, 8>(rows[1] + j)) : Words<8>{};
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
