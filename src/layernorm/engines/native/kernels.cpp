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

#define RECURRENT(...)                                                                                            \
    {recurrent_forward<__VA_ARGS__>, recurrent_backward<__VA_ARGS__>, prepare_forward<__VA_ARGS__>,               \
     prepare_backward<__VA_ARGS__>, VECTORS_OF(__VA_ARGS__, )}
#define VECTORS_OF(T, ...) recurrent_vectors<T>
#if defined(LAYERNORM_PAIRED)
#define OF_PAIRS RECURRENT(float, float, Pair)
#else
#define OF_PAIRS {}
#endif

extern "C" const Kernels TABLE(LAYERNORM_ISA) = {
    LAYERNORM_NAME,
#if defined(LAYERNORM_TILES)
    {{}, {}, RECURRENT(float, BFloat16), OF_PAIRS},
#else
    {RECURRENT(float, float), RECURRENT(double, double), RECURRENT(float, BFloat16), OF_PAIRS},
    {norm_forward<float>, norm_forward<double>, norm_forward<BFloat16>, norm_forward<Float16>},
    {norm_backward<float>, norm_backward<double>, norm_backward<BFloat16>, norm_backward<Float16>},
#endif
};
