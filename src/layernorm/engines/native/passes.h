// The kernels of a recurrent network of one type.
#pragma once

#include "backward.h"
#include "forward.h"

namespace LAYERNORM_ISA {

template <class T, class... Types> constexpr RecurrentKernels recurrent_kernels() {
    return {recurrent_forward<T, Types...>, recurrent_backward<T, Types...>, prepare_forward<T, Types...>,
        prepare_backward<T, Types...>, recurrent_vectors<T>};
}

}  // namespace LAYERNORM_ISA
