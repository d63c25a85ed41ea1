// Recurrent networks in float32.
#include "kernels.h"

#include "passes.h"

namespace LAYERNORM_ISA {
constexpr RecurrentKernels of_float32 = recurrent_kernels<float, float>();
}
