// What every processor of a kind has: on x86-64 SSE2.
#pragma once

namespace LAYERNORM_ISA {
constexpr int VECTOR_BYTES = 16;
}
#include "portable.h"

namespace LAYERNORM_ISA {

struct baseline_set : Portable {
    template <class Vector> INLINE void keep([[maybe_unused]] Vector& v) {
#if defined(__x86_64__)
        asm("" : "+x"(v));
#endif
    }
};

}  // namespace LAYERNORM_ISA
