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
    {recurrent_forward<float>, recurrent_forward<double>},
    {recurrent_backward<float>, recurrent_backward<double>},
    {prepare_forward<float>, prepare_forward<double>},
    {prepare_backward<float>, prepare_backward<double>},
    {recurrent_vectors<float>, recurrent_vectors<double>},
    norm_forward,
    norm_backward,
};
