// Recurrent networks in float64.
#include "kernels.h"

#include "passes.h"

namespace LAYERNORM_ISA {
constexpr RecurrentKernels of_float64 = recurrent_kernels<double, double>();
}
