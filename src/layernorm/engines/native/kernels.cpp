// The kernels of one instruction set: compiled once for each, with -DLAYERNORM_ISA=its name, which is its header's in sets/.
#include "backward.h"
#include "forward.h"
#include "norms.h"

#ifndef LAYERNORM_NAME
#define LAYERNORM_EXPANDED(name) LAYERNORM_TEXT(name)
#define LAYERNORM_NAME LAYERNORM_EXPANDED(LAYERNORM_ISA)
#endif
#define LAYERNORM_TABLE_OF(name) LAYERNORM_JOIN(layernorm_, name)

namespace LAYERNORM_ISA {

// Kernels of these types, if there are any.
template <bool THERE, class T, class... Types> constexpr RecurrentKernels recurrent() {
    if constexpr (THERE)
        return {recurrent_forward<T, Types...>, recurrent_backward<T, Types...>, prepare_forward<T, Types...>,
            prepare_backward<T, Types...>, recurrent_vectors<T>};
    else return {};
}
template <class... E> constexpr void add_norms(Kernels& k) {
    int i = 0;
    ((k.norm_forward[i] = norm_forward<E>, k.norm_backward[i++] = norm_backward<E>), ...);
}
// A set of tiles has kernels for bfloat16 alone. The others are those of the best set without tiles.
template <class S> constexpr Kernels kernels() {
    constexpr bool WHOLE = !S::TILES;
    Kernels k{LAYERNORM_NAME,
        {recurrent<WHOLE, float, float>(), recurrent<WHOLE, double, double>(), recurrent<true, float, BFloat16>(),
            recurrent<S::PAIRS, float, float, Pair>()}, {}, {}};
    if constexpr (WHOLE) add_norms<float, double, BFloat16, Float16>(k);
    return k;
}

}  // namespace LAYERNORM_ISA

using namespace LAYERNORM_ISA;

extern "C" constexpr Kernels LAYERNORM_TABLE_OF(LAYERNORM_ISA) = kernels<Set>();
