// NEON with SDOT and BFDOT: products of pairs of bfloat16. Of a pair BFDOT adds up both products first and then adds them to
// the sum; it rounds to odd, and takes subnormal numbers for 0. Its rounding to bfloat16 is the usual one.
#pragma once

#include "neondot.h"

namespace LAYERNORM_ISA {

struct neonbf16_set : neondot_set {
    static constexpr bool PAIRS = true;
    INLINE void add_pairs(V<float>& sum, Words<4> a, Words<4> b) {
        sum = vbfdotq_f32(sum, same_bits<bfloat16x8_t>(a), same_bits<bfloat16x8_t>(b));
    }
    using neondot_set::add_by_lane;
    template <int LANE> INLINE void add_by_lane(V<float>& sum, Words<4> a, Words<4> b) {
        sum = vbfdotq_laneq_f32(sum, same_bits<bfloat16x8_t>(a), same_bits<bfloat16x8_t>(b), LANE);
    }

    template <int N> INLINE bool to_bfloat16(Floats<N> f, Halves<N>& h) {
        if constexpr (N == 4) h = same_bits<Halves<N>>(vcvt_bf16_f32(f));
        return N == 4;
    }
    template <int N> INLINE bool two_to_bfloat16(Floats<N> a, Floats<N> b, Words<N>& w) {
        Halves<N> lower, upper;
        if (!to_bfloat16<N>(a, lower) || !to_bfloat16<N>(b, upper)) return false;
        w = words<N>(lower) | words<N>(upper) << 16;
        return true;
    }
};

}  // namespace LAYERNORM_ISA
