// The functions whose loops benchmarks/mca.py looks at, by the names of its table. It finds them through these pointers.
#include "quantized.h"

using namespace LAYERNORM_ISA;

using BFloat16Factor = FactorFor<float, BFloat16>::type;
constexpr int FEW = 2;  // rows of a product that takes several panels at once

#define LOOP(name, ...) extern "C" const decltype(&__VA_ARGS__) name; decltype(name) name = &__VA_ARGS__

LOOP(product_float32, tile<float, TILE, 2, false>);
LOOP(few_rows_float32, tile<float, FEW, 2 * int(wide(FEW)), false>);
LOOP(product_float64, tile<double, TILE, 2, false>);
LOOP(unpacked_float32, dense_tile<float, DENSE_ROWS, float, float>);
LOOP(unpacked_bfloat16, dense_tile<BFloat16Factor, DENSE_ROWS, BFloat16, BFloat16>);
LOOP(int8, quantized_tile<QUANTIZED_ROWS>);
LOOP(gradients_float32, tile<float, Set::REGISTERS == 32 ? 8 : 4, 2, true>);
LOOP(product_bfloat16, tile<BFloat16Factor, TILE, 2, false>);
