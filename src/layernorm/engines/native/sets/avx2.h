// AVX2 with FMA and F16C: vectors of 8 numbers in float32.
#pragma once

#include <immintrin.h>

namespace LAYERNORM_ISA {
constexpr int VECTOR_BYTES = 32;
}
#include "portable.h"

namespace LAYERNORM_ISA {

struct avx2_set : Portable {
    template <class T> INLINE void stream(T* p, V<T> v) {
        if constexpr (sizeof(T) == 4) _mm256_stream_ps(p, v);
        else _mm256_stream_pd(p, v);
    }
    INLINE void streamed() { _mm_sfence(); }

    template <class Vector> INLINE void keep(Vector& v) { asm("" : "+x"(v)); }

    template <class T> INLINE V<T> fused(V<T> a, V<T> b, V<T> c) {
        if constexpr (sizeof(T) == 4) return _mm256_fmadd_ps(a, b, c);
        else return _mm256_fmadd_pd(a, b, c);
    }

    // Not through memory: a sum that is stored after its loop GCC keeps in memory in the loop.
    INLINE V<double> add_halves(V<float> v) {
        const __m256 w = v;
        return _mm256_cvtps_pd(_mm256_castps256_ps128(w)) + _mm256_cvtps_pd(_mm256_extractf128_ps(w, 1));
    }

    // GCC 12 takes six instructions for what is one.
    template <int N> INLINE Words<N> words(Halves<N> v) {
        if constexpr (N == 8) return same_bits<Words<8>>(_mm256_cvtepu16_epi32(same_bits<__m128i>(v)));
        else return Portable::words<N>(v);
    }

    template <int N> INLINE bool to_float16(Floats<N> f, Halves<N>& h) {
        if constexpr (N == 8) h = same_bits<Halves<N>>(_mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT));
        return N == 8;
    }
    template <int N> INLINE bool from_float16(Halves<N> h, Floats<N>& f) {
        if constexpr (N == 8) f = _mm256_cvtph_ps(same_bits<__m128i>(h));
        return N == 8;
    }

    struct Int8 {
        typedef __m256i Integers;
        static constexpr i64 AT_ONCE = 32;
        static constexpr uint32_t OFFSET = 0;
        INLINE Integers row_at(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
        INLINE Integers weights_at(const int8_t* p) { return row_at(p); }
        // |w| times a with w's sign. A pair's sum is 2 * 128 * 127 at most, as rows have no -128: it fits 16 bits.
        INLINE Integers plus_products(Integers s, Integers w, Integers a) {
            const Integers pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
            return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        INLINE FewOf<int32_t, 4> four_sums(const Integers* v) {
            const __m256i d = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
            const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
            return same_bits<FewOf<int32_t, 4>>(sums);
        }
    };
};

}  // namespace LAYERNORM_ISA
