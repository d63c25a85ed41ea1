// AMX beside AVX-512: products of bfloat16 on tiles. A program asks the system for them, once (processor.h).
//
// The instructions are written out: GCC's functions for them do not say that they read and write memory.
#pragma once

#include "avx512bf16.h"

namespace LAYERNORM_ISA {

struct amx_set : avx512bf16_set {
    static constexpr bool TILES = true, BFLOAT16_ALONE = true;
    struct Tiles {
        INLINE void shape(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
        INLINE void release() { asm volatile("tilerelease" : : : "memory"); }
        template <int N> INLINE void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(N)); }
        template <int N> INLINE void load(const void* from, i64 apart) {
            asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(apart), "i"(N) : "memory");
        }
        template <int N> INLINE void store(void* to, i64 apart) {
            asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(apart), "i"(N) : "memory");
        }
        template <int C, int A, int B> INLINE void multiply() {
            asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
        }
    };
};

}  // namespace LAYERNORM_ISA
