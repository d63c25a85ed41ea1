// Vectors, and what every instruction set can do with them. A set is one header of this folder, named like the set. It says
// VECTOR_BYTES, the size of its vectors, includes this file, and declares a structure NAME_set, made from `Portable` or from
// another set. What it declares there again takes the place of the function here: what it has instructions for. A new set is
// such a header, a line in CMakeLists.txt with the compiler's flags, at its rank, and one in `runs` of processor.h: when a
// processor has it.
//
// Everything is in the namespace LAYERNORM_ISA, since the kernels are compiled once for each instruction set into one
// library. For the same reason no function template of the standard library is used: the linker would keep one copy of
// it, perhaps one that the processor cannot run.
#pragma once

#include <stdint.h>
#include <string.h>

#include "../tiles.h"

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define LAYERNORM_SHUFFLES
#endif
#endif

#define INLINED inline __attribute__((always_inline))
#define INLINE static INLINED

namespace LAYERNORM_ISA {

using i64 = int64_t;

// A whole vector of float32 or float64.
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

template <class T> INLINE V<T> load(const T* p) { return *reinterpret_cast<const typename VectorOf<T>::anywhere*>(p); }
template <class T> INLINE void store(T* p, V<T> v) { *reinterpret_cast<typename VectorOf<T>::anywhere*>(p) = v; }
template <class T> INLINE V<T> all(T a) { return a - V<T>{}; }  // a - 0 is a, of either sign, and costs nothing

// N numbers in a vector that may be smaller than a register.
template <class X, int N> struct Few { typedef X type __attribute__((vector_size(N * sizeof(X)))); };
template <class X, int N> using FewOf = typename Few<X, N>::type;
template <int N> using Floats = FewOf<float, N>;
template <int N> using Words = FewOf<uint32_t, N>;
template <int N> using Halves = FewOf<uint16_t, N>;
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

struct Portable {
    static constexpr int REGISTERS = 16;  // vectors that the processor holds
    static constexpr int TILE = 6;        // rows of a tile of a product: TILE * 2 sums and 3 operands fill the registers

    // Whether tiles read A by vectors and multiply by one lane of these; the portable set only declares the function.
    static constexpr bool BY_LANE = false;
    template <int LANE, class Sum, class A> static void add_by_lane(Sum& sum, A a, A b);  // sum += a * b[LANE]

    // Writes past the caches, to a place at a multiple of VECTOR_BYTES; `streamed` before another thread may read it.
    template <class T> INLINE void stream(T* p, V<T> v) { store<T>(p, v); }
    INLINE void streamed() {}

    // Keeps v in a register, where the compiler would read it from memory again at each use.
    template <class Vector> INLINE void keep(Vector&) {}

    // The sum of all lanes, by halves.
    template <class T> INLINE T sum(V<T> v) {
        T lane[LANES<T>];
        memcpy(lane, &v, sizeof v);
        for (int half = LANES<T> / 2; half >= 1; half /= 2)
            for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
        return lane[0];
    }

    // a * b + c, rounded once if the set can. Compilers make one instruction of the plain expression, too, but not
    // always: Clang only if nothing branches between the product and the sum.
    template <class T> INLINE V<T> fused(V<T> a, V<T> b, V<T> c) { return a * b + c; }

    // 1 / b and a / b for finite b >= 1.
    template <class T> INLINE V<T> reciprocal(V<T> b) { return T(1) / b; }
    template <class T> INLINE V<T> quotient(V<T> a, V<T> b) { return a / b; }

    // The smaller and the larger of a and each lane of y. Where y is NaN, so is the result.
    template <class T> INLINE V<T> at_most(T a, V<T> y) { return all(a) < y ? all(a) : y; }
    template <class T> INLINE V<T> at_least(T a, V<T> y) { return all(a) > y ? all(a) : y; }

    // Conversions of N lanes.
    template <int N> INLINE FewOf<double, N> doubles(Floats<N> v) { return __builtin_convertvector(v, FewOf<double, N>); }
    template <int N> INLINE Floats<N> floats(FewOf<double, N> v) { return __builtin_convertvector(v, Floats<N>); }
    template <int N> INLINE Words<N> words(Halves<N> v) { return __builtin_convertvector(v, Words<N>); }
    template <int N> INLINE Halves<N> halves(Words<N> v) { return __builtin_convertvector(v, Halves<N>); }
    template <class T> INLINE FewOf<int8_t, LANES<T>> lowest_bytes(Bits<T> v) {
        return __builtin_convertvector(v, FewOf<int8_t, LANES<T>>);
    }

    // The two halves of a vector of float32 added up in float64.
    INLINE V<double> add_halves(V<float> v) {
        float lane[LANES<float>];
        memcpy(lane, &v, sizeof v);
        constexpr int N = LANES<double>;
        const auto half = [](const float* p) { return same_bits<V<double>>(doubles<N>(few<float, N>(p))); };
        return half(lane) + half(lane + N);
    }

    // bfloat16 is the upper half of these bits: f rounded to nearest, ties to even. A NaN keeps its sign and the first
    // bits of its payload.
    template <int N> INLINE Words<N> rounded(Floats<N> f) {
        const Words<N> w = same_bits<Words<N>>(f), up = 0x7fff + ((w >> 16) & 1), quiet = w | 0x400000;
        const Words<N> nan = same_bits<Words<N>>(f != f);
        return (nan & quiet) | (~nan & (w + up));
    }

    // Conversions for which a set may have an instruction; false: it has none for these numbers, and h, f or w is as it was.
    template <int N> INLINE bool to_bfloat16(Floats<N>, Halves<N>&) { return false; }
    template <int N> INLINE bool to_float16(Floats<N>, Halves<N>&) { return false; }
    template <int N> INLINE bool from_float16(Halves<N>, Floats<N>&) { return false; }
    // Lane i of w has a[i] in its lower half and b[i] in its upper one, rounded to bfloat16.
    template <int N> INLINE bool two_to_bfloat16(Floats<N>, Floats<N>, Words<N>&) { return false; }

    // Copies the first n of N elements, and zeros the others; copies n of N elements.
    template <int N, class E> INLINE void copy_padded(E* to, const E* from, i64 n) {
        memset(static_cast<void*>(to), 0, N * sizeof(E));
        memcpy(to, from, n * sizeof(E));
    }
    template <int N, class E> INLINE void copy_first(E* to, const E* from, i64 n) { memcpy(to, from, n * sizeof(E)); }

    // Whether products of bfloat16 are made of pairs of neighbours along the sum, two in each lane of 32 bits. Of a pair
    // the second product is added first, then the first one, each with one rounding.
    static constexpr bool PAIRS = false;
    INLINE void add_pairs(V<float>& sum, Words<LANES<float>> a, Words<LANES<float>> b) {
        sum += same_bits<V<float>>(a & 0xffff0000) * same_bits<V<float>>(b & 0xffff0000);
        sum += same_bits<V<float>>(a << 16) * same_bits<V<float>>(b << 16);
    }

    // Products of int8, AT_ONCE weights and as many numbers of a row at a time. OFFSET: what `weights_at` adds to each
    // weight. The portable set has no vectors for them (AT_ONCE is 0), and declares the functions only.
    struct Int8 {
        typedef Bits<float> Integers;
        static constexpr i64 AT_ONCE = 0;
        static constexpr uint32_t OFFSET = 0;
        static Integers weights_at(const int8_t*);
        static Integers row_at(const int8_t*);
        static Integers plus_products(Integers sums, Integers weights, Integers row);
        static FewOf<int32_t, 4> four_sums(const Integers*);  // of the lanes of each of four vectors
    };

    // Whether products of pairs are made on tiles (tiles.h), and the functions of these, which the portable set only declares.
    static constexpr bool TILES = false;
    // Whether the set has kernels of bfloat16 and none of other types.
    static constexpr bool BFLOAT16_ALONE = false;
    struct Tiles {
        static void shape(const TileShapes&);  // gives the tiles their shapes, and zeros
        static void release();
        template <int N> static void zero();
        template <int N> static void load(const void* from, i64 apart);  // rows are so many bytes apart
        template <int N> static void store(void* to, i64 apart);
        // C += A B: A has a row of pairs for each row of C, B a row of pairs for each pair of A's.
        template <int C, int A, int B> static void multiply();
    };
};

}  // namespace LAYERNORM_ISA
