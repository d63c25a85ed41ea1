// The table of one instruction set's kernels. Compiled once for each set, with -DLAYERNORM_ISA=its name, which is its
// header's in sets/.
#include "kernels.h"

#include "simd.h"

#define LAYERNORM_TABLE_OF(name) LAYERNORM_JOIN(layernorm_, name)
#define LAYERNORM_EXPANDED(name) LAYERNORM_TEXT(name)

using namespace LAYERNORM_ISA;

// A set of bfloat16 alone has only the objects of that, so that its table names no other kernels.
extern "C" constexpr Kernels LAYERNORM_TABLE_OF(LAYERNORM_ISA) = {LAYERNORM_EXPANDED(LAYERNORM_ISA),
    {Set::BFLOAT16_ALONE ? nullptr : &of_float32, Set::BFLOAT16_ALONE ? nullptr : &of_float64, &of_bfloat16,
        Set::PAIRS ? &of_rounded : nullptr},
    Set::BFLOAT16_ALONE ? nullptr : &of_norms};
