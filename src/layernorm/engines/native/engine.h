// What Python hands over, and the table of kernels that each instruction set offers. Plain C types: this is the ABI.
// _layout.py has the same structures `Recurrent` and `Norm`, in Python.
//
// Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
// G gates, M rows, N row length. Hp is H rounded up to PAD: a gate's block of units in everything that is saved.
//
// A line is one step of one row. Lines lie in the order of times, those of a time in the order of rows: [T][B] of them. In a
// packed call rows come in the order of falling lengths, and only the steps that there are have lines: batch_sizes[t] at
// time t. So [lines] stands below in the place of [T][B], with `lines` = T * B where the call is not packed.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Every set's vectors have 2, 4, 8 or 16 lanes. PAD is a multiple of all of them, so that what is saved has one shape.
constexpr int64_t PAD = 16;
constexpr int64_t ROW = 32;         // a row of summed inputs is a multiple of it long: it holds whole panels of every set
constexpr int64_t STATISTICS = 18;  // saved for each line: mean and r = 1 / deviation of W x and U h of four gates, and of c
constexpr int64_t VECTORS = 8;      // gradients of gain_x, gain_h, inside_x, inside_h, outside_x, outside_h, gain_c, bias_c
// `Recurrent::batch_norm`: its moments are those of the rows that take a step, are given, or are those of all rows up to the
// last step of any.
constexpr int64_t MADE = 1, GIVEN = 2, MADE_WITH_ENDED = 3;
constexpr int64_t NORMS_X = 1, NORMS_H = 2;  // `Recurrent::norm`: W x (one stream: the sum), U h
constexpr int64_t FOR_FORWARD = 1, FOR_BACKWARD = 2;  // `Recurrent::prepares`
constexpr int64_t PLACES = 3;       // what batch norm normalises: W x (one stream: the sum), U h, c

// What autograd sees is of the call's type: x, the state, the weights, the results, and their gradients. The rest is of the
// type that is computed in: float64, or float32.
struct Recurrent {
    int64_t T, B, I, H, P;
    int64_t gates;           // G: 1 RNN, 3 GRU, 4 LSTM
    int64_t split;           // W x and U h are two streams; otherwise there is one, W x + U h
    int64_t norm;            // which streams of the gates are normalised, of NORMS_X and NORMS_H
    int64_t together;        // so many neighbouring gates have one normalisation; the last ones have what is left
    int64_t cell;            // LSTM: 0 none, 1 only on the way to h, 2 also carried on
    int64_t rms;             // what normalises is RMS norm
    int64_t deviation;       // eps is added to the deviation, not to the variance
    int64_t relu;            // RNN
    int64_t projected;       // LSTM
    int64_t reverse;
    int64_t one_share;       // kept_h and kept_c are one number each
    int64_t threads;         // of PyTorch's pool
    int64_t batch_norm;      // 0: there is none, or one of the above
    int64_t rounded;         // float32: products may be made of numbers rounded to bfloat16
    int64_t lines;           // packed: the sum of batch_sizes
    int64_t inside;          // 1: there is inside_x, 2: there is inside_h, 3: both
    double eps, forget_bias;
    double gate_clip;        // LSTM: derivatives by the gates' summed inputs are cut to it; infinity: they are not
    const void *x;           // [T][B][I], steps x_t and rows x_b elements apart; packed: [lines][I], lines x_b apart
    int64_t x_t, x_b;
    const void *h0, *c0;     // [B][P], [B][H]
    const void *w_ih, *w_hh, *w_hr;  // [G*H][I], [G*H][P], [P][H]
    const void *scale_ih, *scale_hh;  // [G*H], of the rows of w_ih and w_hh if these are int8, or null
    const void *gain_x, *gain_h, *inside_x, *inside_h, *outside_x, *outside_h;  // [G*H] or null; one stream: gain_x
    const void *gain_c, *bias_c;     // [H] or null
    const int64_t *lengths;  // [B] or null
    const int64_t *batch_sizes;  // [T], or null: the call is not packed
    const uint8_t *reset;    // [lines] or null
    // What else happens between steps, each of it or null: the state after a cut; a factor of the h that W_hh reads; the
    // share of the state before a step that is kept after it, of a row's first, second... step. The last three are of the
    // type that is computed in.
    const void *restart_h, *restart_c;  // [B][P], [B][H]
    const void *dropout;                // [B][P]
    const void *kept_h, *kept_c;        // [lines][P], [lines][H]
    void *mean[PLACES], *var[PLACES];  // of the places of batch norm: [T][G*H], [T][G*H], [T][H]; in the type computed in
    void *output, *h_n, *c_n;  // [lines][P], [B][P], [B][H]
    // Saved for the backward, or null; for each line as many numbers as `saved_block` tells: W x (one stream: the
    // sum; an LSTM or RNN without a norm of it: the gates), U h (GRU with one stream, n apart: U_n h), c before it is
    // normalised, c after the step if zoneout or, under batch norm, a normalisation changes it, the statistics if there is a
    // norm, the output (the user may change his own in place; a call of
    // one step with prepared parameters saves none, because the state before it is all that the backward needs).
    void *saved_x, *saved_h, *saved_c, *saved_kept, *saved_statistics, *saved_output;
    const void *d_output, *d_h_n, *d_c_n;
    void *d_x, *d_h0, *d_c0, *d_w_ih, *d_w_hh, *d_w_hr, *d_restart_h, *d_restart_c;
    void *d_vectors[VECTORS];  // [G*H], the last two [H], in the type that is computed in; null: not wanted
    // Steps one by one, whose parameters are packed once and whose weights' gradients are one product at the end. With
    // `totals` a call has no lengths.
    const void *prepared;    // packed parameters, or null: the call packs them itself
    int64_t prepares;        // 0, or this call packs the parameters for others into `prepared`: FOR_FORWARD, FOR_BACKWARD
    void *d_zx, *d_zh;       // [lines][G*H]; two streams, or d_zh is null
    void *m;                 // [lines][H] o * tanh(c), which is projected
    void *totals;            // [VECTORS][Z] float64, added to, or null: the vectors' gradients; d_zx, d_zh, m take the place
                             // of the weights'
};

// Whether results and scratch begin as bytes of 255, which are NaN in every type of floats: a number that a kernel reads
// before it is written, or never writes, is then seen in what it returns. Only a build for tests can ask for it.
#if defined(LAYERNORM_TESTED)
inline bool poisoned = false;
#else
constexpr bool poisoned = false;
#endif

// The parts that the forward saves lie in one block of memory, one after the other. This is where each begins, and how large
// the block is. Both count numbers for each line, in the type that is computed in. A part that is not saved begins at -1.
// Example: x at 0, c at 256 and size 320 mean that of 10 lines c begins at number 2,560 of a block of 3,200.
struct SavedBlock {
    int64_t x, h, c, kept, statistics, output, size;
};

// `static`: the linker must not keep one instruction set's copy for all.
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// How far apart rows of a length are: those a multiple of 4 KB apart would share the cache's sets.
static inline int64_t rows_apart(int64_t length) { return length % 512 ? length : length + ROW; }

// Z. A row of summed inputs is whole panels long.
static inline int64_t row_of_summed_inputs(const Recurrent &n) {
    return rows_apart(round_up(n.gates * round_up(n.H, PAD), ROW));
}

// The types of the recurrent kernels. ROUNDED is float32 whose products are of numbers rounded to bfloat16, where there is
// an instruction for them. Its kernels may return NOT_ROUNDED: nothing has been done, the call is for those of float32.
constexpr int FLOAT32 = 0, FLOAT64 = 1, BFLOAT16 = 2, ROUNDED = 3;
constexpr int NOT_ROUNDED = 2;

// In bfloat16 two numbers of the output take the place of one.
static inline SavedBlock saved_block(const Recurrent &n, int type) {
    const int64_t Hp = round_up(n.H, PAD), Z = row_of_summed_inputs(n), output = type == BFLOAT16 ? (n.P + 1) / 2 : n.P;
    const bool product = n.gates == 3 && n.together < 3;  // r multiplies U_n h before a normalisation
    const int64_t sizes[6] = {Z, n.split ? Z : product ? Hp : 0, n.gates == 4 ? Hp : 0,
        n.kept_c || (n.batch_norm && n.cell == 2) ? Hp : 0, !n.batch_norm && (n.norm || n.cell) ? STATISTICS : 0,
        n.prepared ? 0 : output};
    int64_t begins[6], end = 0;
    for (int i = 0; i < 6; ++i) {
        begins[i] = sizes[i] ? end : -1;
        end += sizes[i];
    }
    return {begins[0], begins[1], begins[2], begins[3], begins[4], begins[5], end};
}

struct Norm {
    int64_t M, N;
    int64_t parameter_type;        // 0 float32, 1 float64, 2 bfloat16, 3 float16
    int64_t rms;
    int64_t x_m, residual_m, d_y_m, d_total_m;  // rows are so many elements apart, those of the results N
    double eps;
    const void *x, *residual;  // [M][N]; null, or x + residual is what is normalised, and it is the result `total`
    const void *gain, *bias;   // [N] or null
    void *y, *total;           // [M][N]
    void *mean, *r;            // [M] float64; null: not wanted. rms has no mean
    const void *d_y, *d_total; // [M][N]; d_total may be null
    void *d_x, *d_gain, *d_bias;  // [M][N], [N], [N]; the last two may be null
};

// How this thread computes with subnormal numbers while such an object lives. A gradient that dies out over many steps ends
// in them, and x86 takes some hundred cycles for each: as zeros they cost nothing. Other processors have no such price.
class Subnormals {
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();

public:
    static constexpr unsigned ZERO = 0x8040;  // of inputs and results
    explicit Subnormals(unsigned mode) { __builtin_ia32_ldmxcsr((before & ~ZERO) | (mode & ZERO)); }
    ~Subnormals() { __builtin_ia32_ldmxcsr(before); }
    static unsigned mode() { return __builtin_ia32_stmxcsr(); }
#else

public:
    static constexpr unsigned ZERO = 0;
    explicit Subnormals(unsigned) {}
    ~Subnormals() {}
    static unsigned mode() { return ZERO; }
#endif
    Subnormals(const Subnormals &) = delete;
};

// 0, or not 0 after an error: threads cannot be had, and nothing has been done.
typedef int (*ParallelFor)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void *), void *);

struct RecurrentKernels {
    int (*forward)(const Recurrent *, ParallelFor);  // 0; 1: no memory; or NOT_ROUNDED
    int (*backward)(const Recurrent *, ParallelFor);
    int64_t (*prepare_forward)(const Recurrent *, ParallelFor);  // the bytes of `prepared`; where that is null it packs nothing
    int64_t (*prepare_backward)(const Recurrent *, ParallelFor);
    void (*vectors)(const Recurrent *);
};
struct NormKernels {
    int (*forward[4])(const Norm *, ParallelFor);  // float32, float64, bfloat16, float16; 0, or 1: no memory
    int (*backward[4])(const Norm *, ParallelFor);
};
// The kernels of one instruction set. Null: it has none of its own, and those of the next whole set serve.
struct Kernels {
    const char *name;
    const RecurrentKernels *recurrent[4];  // FLOAT32 ... ROUNDED
    const NormKernels *norms;
};
