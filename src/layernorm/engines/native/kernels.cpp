// The kernels of one instruction set: compiled once for each, with -DLAYERNORM_ISA=its name.
#include "backward.h"
#include "forward.h"
#include "norms.h"

#define TEXT(name) #name
#define NAME(name) TEXT(name)
#define TABLE_OF(isa) layernorm_##isa
#define TABLE(isa) TABLE_OF(isa)
#ifndef LAYERNORM_NAME
#define LAYERNORM_NAME NAME(LAYERNORM_ISA)
#endif

using namespace LAYERNORM_ISA;

#define RECURRENT(T, E)                                                                                           \
    {recurrent_forward<T, E>, recurrent_backward<T, E>, prepare_forward<T, E>, prepare_backward<T, E>,            \
     recurrent_vectors<T>}

extern "C" const Kernels TABLE(LAYERNORM_ISA) = {
    LAYERNORM_NAME,
#if defined(LAYERNORM_TILES)
    {{}, {}, RECURRENT(float, BFloat16)},
#else
    {RECURRENT(float, float), RECURRENT(double, double), RECURRENT(float, BFloat16)},
    {norm_forward<float>, norm_forward<double>, norm_forward<BFloat16>, norm_forward<Float16>},
    {norm_backward<float>, norm_backward<double>, norm_backward<BFloat16>, norm_backward<Float16>},
#endif
};
