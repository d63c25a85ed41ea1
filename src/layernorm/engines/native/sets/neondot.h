// NEON with SDOT: four products of int8 in each lane of 32 bits.
#pragma once

#include "neon.h"

namespace LAYERNORM_ISA {

struct neondot_set : neon_set {
    struct Int8 : neon_set::Int8 {
        INLINE Integers plus_products(Integers s, Integers w, Integers a) {
            return vdotq_s32(s, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(a));
        }
    };
};

}  // namespace LAYERNORM_ISA
