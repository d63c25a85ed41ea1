// Layer norm and RMS norm, of every type.
#include "kernels.h"

#include "norms.h"

namespace LAYERNORM_ISA {
constexpr NormKernels of_norms = {
    {norm_forward<float>, norm_forward<double>, norm_forward<BFloat16>, norm_forward<Float16>},
    {norm_backward<float>, norm_backward<double>, norm_backward<BFloat16>, norm_backward<Float16>},
};
}
