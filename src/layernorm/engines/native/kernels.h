// The kernels of one instruction set. Each is compiled for itself, on as many cores as there are: float32.cpp ... norms.cpp.
#pragma once

#include "engine.h"

namespace LAYERNORM_ISA {
extern const RecurrentKernels of_float32, of_float64, of_bfloat16, of_rounded;
extern const NormKernels of_norms;
}
