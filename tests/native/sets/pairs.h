// The baseline whose products of bfloat16 are made of pairs, as where the processor has an instruction for them.
#pragma once

#include "sets/baseline.h"

namespace LAYERNORM_ISA {

struct pairs_set : baseline_set {
    static constexpr bool PAIRS = true, BFLOAT16_ALONE = true;
};

}  // namespace LAYERNORM_ISA
