// The functions whose loops benchmarks/mca.py looks at, by the names of its table. It finds them through these pointers.
#include "quantized.h"
#include "recurrent.h"

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

// The work on rows of an LSTM, a part of a step each. Of a sum the loop has four vectors.
template <Streams IN> static void gates(const Layer<float>& layer, const Forward<float>& w) { layer.lstm_gates<IN>(w); }
template <Streams IN> static void out(const Layer<float>& layer, const Forward<float>& w) { layer.lstm_out<IN>(w); }
static V<float> sum_of(const float* z, const Span& s) { return total(z, s); }
static Sums<float> moments_of(const float* z, float centre, const Span& s) { return moments(z, centre, s); }
template <Streams IN>
static GradientSums<float> out_backward(const Layer<float>& layer, const Backward<float>& w) {
    return layer.lstm_out_backward<IN>(w);
}
template <Streams IN> static void gates_backward(const Layer<float>& layer, const Backward<float>& w) {
    layer.lstm_gates_backward<IN>(w);
}
static void stream_backward(
    const Layer<float>& layer, const Backward<float>& w, GradientSums<float>& x, GradientSums<float>& h) {
    layer.gate_backward<TWO>(w, 0, x, h);
}

LOOP(row_gates_added, gates<ADDED>);
LOOP(row_gates_two, gates<TWO>);
LOOP(row_out, out<ADDED>);
LOOP(row_sum, sum_of);
LOOP(row_moments, moments_of);
LOOP(row_out_backward_added, out_backward<ADDED>);
LOOP(row_out_backward_two, out_backward<TWO>);
LOOP(row_gates_backward_added, gates_backward<ADDED>);
LOOP(row_gates_backward_two, gates_backward<TWO>);
LOOP(row_stream_backward, stream_backward);
