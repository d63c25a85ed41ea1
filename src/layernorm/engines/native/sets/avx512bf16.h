// AVX-512 with BF16 and VNNI: products of pairs of bfloat16, and of int8.
#pragma once

#include "avx512.h"

namespace LAYERNORM_ISA {

struct avx512bf16_set : avx512_set {
    // Whether no number is subnormal or 0: subnormal ones the processor's own rounding to bfloat16 takes for 0.
    INLINE bool all_normal(Floats<16> f) {
        return !_mm512_testn_epi32_mask(same_bits<__m512i>(f), _mm512_set1_epi32(0x7f800000));
    }
    template <int N> INLINE bool to_bfloat16(Floats<N> f, Halves<N>& h) {
        if constexpr (N == 16)
            if (all_normal(f)) {
                h = same_bits<Halves<N>>(_mm512_cvtneps_pbh(f));
                return true;
            }
        return false;
    }
    template <int N> INLINE bool two_to_bfloat16(Floats<N> a, Floats<N> b, Words<N>& w) {
        // Of 32 numbers, 16 and then 16, the places that take turns.
        constexpr Halves<32> EVEN_AND_ODD = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        if (!all_normal(a) || !all_normal(b)) return false;
        const __m512i both = same_bits<__m512i>(_mm512_cvtne2ps_pbh(b, a));
        w = same_bits<Words<N>>(_mm512_permutexvar_epi16(same_bits<__m512i>(EVEN_AND_ODD), both));
        return true;
    }

    static constexpr bool PAIRS = true;
    INLINE void add_pairs(V<float>& sum, Words<16> a, Words<16> b) {
        sum = _mm512_dpbf16_ps(sum, same_bits<__m512bh>(a), same_bits<__m512bh>(b));
    }

    // The instruction multiplies unsigned bytes with signed ones: OFFSET is added to the weights.
    struct Int8 : avx512_set::Int8 {
        static constexpr i64 AT_ONCE = 64;
        static constexpr uint32_t OFFSET = 128;
        INLINE Integers weights_at(const int8_t* p) {
            return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
        }
        INLINE Integers row_at(const int8_t* p) { return _mm512_loadu_si512(p); }
        INLINE Integers plus_products(Integers s, Integers w, Integers a) { return _mm512_dpbusd_epi32(s, w, a); }
    };
};

}  // namespace LAYERNORM_ISA
