// Recurrent networks in bfloat16, and in float32 with products of numbers that are rounded to it.
#include "kernels.h"

#include "passes.h"

namespace LAYERNORM_ISA {

template <class S> constexpr RecurrentKernels rounded() {
    if constexpr (S::PAIRS) return recurrent_kernels<float, float, Pair>();
    else return {};
}

constexpr RecurrentKernels of_bfloat16 = recurrent_kernels<float, BFloat16>();
constexpr RecurrentKernels of_rounded = rounded<Set>();

}  // namespace LAYERNORM_ISA
