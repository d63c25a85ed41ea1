// The kernels of one instruction set: compiled once for each, with -DLAYERNORM_ISA=its name.
#include "backward.h"
#include "forward.h"
#include "norms.h"

#define TEXT(name) #name
#define NAME(name) TEXT(name)
#define TABLE_OF(isa) layernorm_##isa
#define TABLE(isa) TABLE_OF(isa)

using namespace LAYERNORM_ISA;

extern "C" const Kernels TABLE(LAYERNORM_ISA) = {
    NAME(LAYERNORM_ISA),
    {recurrent_forward<float, float>, recurrent_forward<double, double>, recurrent_forward<float, BFloat16>},
    {recurrent_backward<float, float>, recurrent_backward<double, double>, recurrent_backward<float, BFloat16>},
    {prepare_forward<float, float>, prepare_forward<double, double>, prepare_forward<float, BFloat16>},
    {prepare_backward<float, float>, prepare_backward<double, double>, prepare_backward<float, BFloat16>},
    {recurrent_vectors<float>, recurrent_vectors<double>, recurrent_vectors<float>},
    {norm_forward<float>, norm_forward<double>, norm_forward<BFloat16>, norm_forward<Float16>},
    {norm_backward<float>, norm_backward<double>, norm_backward<BFloat16>, norm_backward<Float16>},
};
