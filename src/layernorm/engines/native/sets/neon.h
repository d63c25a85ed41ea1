// NEON, which every 64-bit Arm processor has: vectors of 4 numbers in float32. GCC 12 makes scalars of conversions between
// vectors of two sizes; so they are written out here.
#pragma once

#include <arm_neon.h>

namespace LAYERNORM_ISA {
constexpr int VECTOR_BYTES = 16;
}
#include "portable.h"

namespace LAYERNORM_ISA {

struct neon_set : Portable {
    // Of the 32 registers 16 are sums, 8 hold A by vectors.
    static constexpr int REGISTERS = 32, TILE = 8;
    static constexpr bool BY_LANE = true;
    template <int LANE> INLINE void add_by_lane(V<float>& sum, V<float> a, V<float> b) {
        sum = vfmaq_laneq_f32(sum, a, b, LANE);
    }
    template <int LANE> INLINE void add_by_lane(V<double>& sum, V<double> a, V<double> b) {
        sum = vfmaq_laneq_f64(sum, a, b, LANE);
    }

    template <class Vector> INLINE void keep(Vector& v) { asm("" : "+w"(v)); }

    template <class T> INLINE T sum(V<T> v) {
        if constexpr (sizeof(T) == 8) return v[0] + v[1];
        else {
            const float32x2_t half = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
        }
    }

    template <class T> INLINE V<T> fused(V<T> a, V<T> b, V<T> c) {
        if constexpr (sizeof(T) == 4) return vfmaq_f32(c, a, b);
        else return vfmaq_f64(c, a, b);
    }

    template <int N> INLINE FewOf<double, N> doubles(Floats<N> v) {
        if constexpr (N == 2) return vcvt_f64_f32(same_bits<float32x2_t>(v));
        else return Portable::doubles<N>(v);
    }
    template <int N> INLINE Floats<N> floats(FewOf<double, N> v) {
        if constexpr (N == 2) return same_bits<Floats<N>>(vcvt_f32_f64(v));
        else return Portable::floats<N>(v);
    }
    template <int N> INLINE Words<N> words(Halves<N> v) {
        if constexpr (N == 4) return same_bits<Words<N>>(vmovl_u16(same_bits<uint16x4_t>(v)));
        else if constexpr (N == 8) {
            const uint16x8_t h = same_bits<uint16x8_t>(v);
            return same_bits<Words<N>>(uint32x4x2_t{{vmovl_u16(vget_low_u16(h)), vmovl_high_u16(h)}});
        } else return Portable::words<N>(v);
    }
    template <int N> INLINE Halves<N> halves(Words<N> v) {
        if constexpr (N == 4) return same_bits<Halves<N>>(vmovn_u32(same_bits<uint32x4_t>(v)));
        else return Portable::halves<N>(v);
    }
    template <class T> INLINE FewOf<int8_t, LANES<T>> lowest_bytes(Bits<T> v) {
        if constexpr (sizeof(T) == 8) return Portable::lowest_bytes<T>(v);
        else {
            const int16x4_t h = vmovn_s32(same_bits<int32x4_t>(v));
            const int8x8_t bytes = vmovn_s16(vcombine_s16(h, h));
            return few<int8_t, LANES<T>>(&bytes);
        }
    }

    INLINE V<double> add_halves(V<float> v) { return vcvt_f64_f32(vget_low_f32(v)) + vcvt_high_f64_f32(v); }

    template <int N> INLINE bool to_float16(Floats<N> f, Halves<N>& h) {
        if constexpr (N == 4) h = same_bits<Halves<N>>(vcvt_f16_f32(f));
        return N == 4;
    }
    template <int N> INLINE bool from_float16(Halves<N> h, Floats<N>& f) {
        if constexpr (N == 4) f = vcvt_f32_f16(same_bits<float16x4_t>(h));
        return N == 4;
    }

    struct Int8 {
        typedef int32x4_t Integers;
        static constexpr i64 AT_ONCE = 16;
        static constexpr uint32_t OFFSET = 0;
        INLINE Integers row_at(const int8_t* p) { return vreinterpretq_s32_s8(vld1q_s8(p)); }
        INLINE Integers weights_at(const int8_t* p) { return row_at(p); }
        INLINE Integers plus_products(Integers s, Integers w, Integers a) {
            const int8x16_t weights = vreinterpretq_s8_s32(w), row = vreinterpretq_s8_s32(a);
            s = vpadalq_s16(s, vmull_s8(vget_low_s8(weights), vget_low_s8(row)));
            return vpadalq_s16(s, vmull_high_s8(weights, row));
        }
        INLINE FewOf<int32_t, 4> four_sums(const Integers* v) {
            return same_bits<FewOf<int32_t, 4>>(vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])));
        }
    };
};

}  // namespace LAYERNORM_ISA
