// What every processor of a kind has: on x86-64 SSE2.
#pragma once

namespace LAYERNORM_ISA {
constexpr int VECTOR_BYTES = 16;
}
#include "portable.h"

namespace LAYERNORM_ISA {

struct baseline_set : Portable {
#if defined(__aarch64__)
    static constexpr int REGISTERS = 32, TILE = 12;
#endif
    template <class T> INLINE void keep([[maybe_unused]] V<T>& v) {
#if defined(__x86_64__)
        asm("" : "+x"(v));
#elif defined(__aarch64__)
        asm("" : "+w"(v));
#endif
    }
};

}  // namespace LAYERNORM_ISA
