// AVX-512 (F, DQ, BW, VL): vectors of 16 numbers in float32. GCC 12 takes conversions between vectors of two sizes apart;
// so they are written out here.
#pragma once

#include <immintrin.h>

namespace LAYERNORM_ISA {
constexpr int VECTOR_BYTES = 64;
}
#include "portable.h"

namespace LAYERNORM_ISA {

struct avx512_set : Portable {
    static constexpr int REGISTERS = 32, TILE = 12;

    template <class T> INLINE void stream(T* p, V<T> v) {
        if constexpr (sizeof(T) == 4) _mm512_stream_ps(p, v);
        else _mm512_stream_pd(p, v);
    }
    INLINE void streamed() { _mm_sfence(); }

    template <class Vector> INLINE void keep(Vector& v) { asm("" : "+v"(v)); }

    template <class T> INLINE T sum(V<T> v) {
        if constexpr (sizeof(T) == 4) return _mm512_reduce_add_ps(v);
        else return _mm512_reduce_add_pd(v);
    }

    template <class T> INLINE V<T> fused(V<T> a, V<T> b, V<T> c) {
        if constexpr (sizeof(T) == 4) return _mm512_fmadd_ps(a, b, c);
        else return _mm512_fmadd_pd(a, b, c);
    }

    // The division takes 16 cycles; the processor's estimate of 1 / b, refined, 3 and 4 instructions.
    template <class T> INLINE V<T> reciprocal(V<T> b) {
        if constexpr (sizeof(T) == 8) return Portable::reciprocal<T>(b);
        else {
            const V<T> rough = _mm512_maskz_rcp14_ps(0xffff, b);
            return rough + rough * (T(1) - b * rough);
        }
    }
    template <class T> INLINE V<T> quotient(V<T> a, V<T> b) {
        if constexpr (sizeof(T) == 8) return Portable::quotient<T>(a, b);
        else {
            const V<T> rough = _mm512_maskz_rcp14_ps(0xffff, b), q = a * rough;
            return q + rough * (a - b * q);
        }
    }

    template <class T> INLINE V<T> at_most(T a, V<T> y) {
        if constexpr (sizeof(T) == 8) return Portable::at_most<T>(a, y);
        else return _mm512_maskz_min_ps(0xffff, all(a), y);
    }
    template <class T> INLINE V<T> at_least(T a, V<T> y) {
        if constexpr (sizeof(T) == 8) return Portable::at_least<T>(a, y);
        else return _mm512_maskz_max_ps(0xffff, all(a), y);
    }

    template <int N> INLINE FewOf<double, N> doubles(Floats<N> v) {
        if constexpr (N == 8) return _mm512_maskz_cvtps_pd(0xff, v);
        else return Portable::doubles<N>(v);
    }
    template <int N> INLINE Floats<N> floats(FewOf<double, N> v) {
        if constexpr (N == 8) return _mm512_maskz_cvtpd_ps(0xff, v);
        else return Portable::floats<N>(v);
    }
    template <int N> INLINE Words<N> words(Halves<N> v) {
        if constexpr (N == 16) return same_bits<Words<N>>(_mm512_maskz_cvtepu16_epi32(0xffff, same_bits<__m256i>(v)));
        else if constexpr (N == 8) return same_bits<Words<N>>(_mm256_cvtepu16_epi32(same_bits<__m128i>(v)));
        else return Portable::words<N>(v);
    }
    template <int N> INLINE Halves<N> halves(Words<N> v) {
        if constexpr (N == 16) return same_bits<Halves<N>>(_mm512_maskz_cvtepi32_epi16(0xffff, same_bits<__m512i>(v)));
        else return Portable::halves<N>(v);
    }
    template <class T> INLINE FewOf<int8_t, LANES<T>> lowest_bytes(Bits<T> v) {
        if constexpr (sizeof(T) == 8) return Portable::lowest_bytes<T>(v);
        else return same_bits<FewOf<int8_t, 16>>(_mm512_maskz_cvtepi32_epi8(0xffff, same_bits<__m512i>(v)));
    }

    INLINE V<double> add_halves(V<float> v) {
        const __m512 w = v;
        const __m256 upper = _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(w), 1));
        return _mm512_maskz_cvtps_pd(0xff, _mm512_castps512_ps256(w)) + _mm512_maskz_cvtps_pd(0xff, upper);
    }

    template <int N> INLINE Words<N> rounded(Floats<N> f) {
        if constexpr (N == 16) {
            const Words<N> w = same_bits<Words<N>>(f), up = 0x7fff + ((w >> 16) & 1), quiet = w | 0x400000;
            const __mmask16 number = _mm512_cmp_ps_mask(f, f, _CMP_ORD_Q);
            return same_bits<Words<N>>(_mm512_mask_add_epi32(
                same_bits<__m512i>(quiet), number, same_bits<__m512i>(w), same_bits<__m512i>(up)));
        } else {
            return Portable::rounded<N>(f);
        }
    }

    template <int N> INLINE bool to_float16(Floats<N> f, Halves<N>& h) {
        constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT;
        if constexpr (N == 8) h = same_bits<Halves<N>>(_mm256_cvtps_ph(f, NEAREST));
        if constexpr (N == 16)
            h = same_bits<Halves<N>>(_mm512_maskz_cvtps_ph(0xffff, f, NEAREST | _MM_FROUND_NO_EXC));
        return N == 8 || N == 16;
    }
    template <int N> INLINE bool from_float16(Halves<N> h, Floats<N>& f) {
        if constexpr (N == 8) f = _mm256_cvtph_ps(same_bits<__m128i>(h));
        if constexpr (N == 16) f = _mm512_maskz_cvtph_ps(0xffff, same_bits<__m256i>(h));
        return N == 8 || N == 16;
    }

    // Without a call of memcpy, across which no vector stays in a register.
    INLINE uint64_t first_bits(i64 n) { return (uint64_t(1) << n) - 1; }  // n < 64
    template <int N, class E> INLINE void copy_padded(E* to, const E* from, i64 n) {
        if constexpr (N * sizeof(E) == 64) {
            _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(first_bits(n * sizeof(E)), from));
        } else if constexpr (N * sizeof(E) == 32) {
            const __m256i some = _mm256_maskz_loadu_epi8(__mmask32(first_bits(n * sizeof(E))), from);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), some);
        } else {
            Portable::copy_padded<N>(to, from, n);
        }
    }
    template <int N, class E> INLINE void copy_first(E* to, const E* from, i64 n) {
        if constexpr (N * sizeof(E) == 64) {
            _mm512_mask_storeu_epi8(to, first_bits(n * sizeof(E)), _mm512_loadu_si512(from));
        } else if constexpr (N * sizeof(E) == 32) {
            const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
            _mm256_mask_storeu_epi8(to, __mmask32(first_bits(n * sizeof(E))), some);
        } else {
            Portable::copy_first<N>(to, from, n);
        }
    }

    struct Int8 {
        typedef __m512i Integers;
        static constexpr i64 AT_ONCE = 32;
        static constexpr uint32_t OFFSET = 0;
        INLINE Integers row_at(const int8_t* p) {
            return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        }
        INLINE Integers weights_at(const int8_t* p) { return row_at(p); }
        INLINE Integers plus_products(Integers s, Integers w, Integers a) {
            return _mm512_add_epi32(s, _mm512_madd_epi16(w, a));
        }
        INLINE FewOf<int32_t, 4> four_sums(const Integers* v) {
            const auto half = [](__m512i w) __attribute__((always_inline)) {
                return _mm256_add_epi32(_mm512_castsi512_si256(w), _mm512_maskz_extracti64x4_epi64(0xf, w, 1));
            };
            const __m256i d = _mm256_hadd_epi32(
                _mm256_hadd_epi32(half(v[0]), half(v[1])), _mm256_hadd_epi32(half(v[2]), half(v[3])));
            const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
            return same_bits<FewOf<int32_t, 4>>(sums);
        }
    };
};

}  // namespace LAYERNORM_ISA
