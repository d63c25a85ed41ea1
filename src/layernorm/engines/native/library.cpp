// The C functions that Python calls, and the choice of the instruction set.
#include "engine.h"
#include "processor.h"

#define LAYERNORM_TABLE(isa) extern "C" const Kernels layernorm_##isa;
LAYERNORM_TABLES
#undef LAYERNORM_TABLE

namespace {

#define LAYERNORM_TABLE(isa) &layernorm_##isa,
const Kernels *const tables[] = {LAYERNORM_TABLES};  // the best first; behind the baseline what only a name chooses
#undef LAYERNORM_TABLE

Kernels kernels;

const RecurrentKernels &recurrent_kernels(const void *call, int type) {
    const bool rounded = type == FLOAT32 && static_cast<const Recurrent *>(call)->rounded;
    return *kernels.recurrent[rounded && kernels.recurrent[ROUNDED] ? ROUNDED : type];
}

ParallelFor parallel_for = nullptr;

thread_local unsigned found;  // the caller's mode for subnormal numbers

// A thread that PyTorch starts keeps the mode of the thread that starts it, so this one has the caller's meanwhile.
int parallel_as_found(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void *), void *context) {
    const Subnormals mode(found);
    return parallel_for(begin, end, grain, body, context);
}

int run(int (*RecurrentKernels::*function)(const Recurrent *, ParallelFor), const void *call, int type) {
    const auto *n = static_cast<const Recurrent *>(call);
    // Only a backward ends in them. With an eps of 0 it may square numbers whose squares are as small.
    const bool as_zero = function == &RecurrentKernels::backward && n->eps >= 1e-30;
    found = Subnormals::mode();
    const Subnormals mode(as_zero ? Subnormals::ZERO : found);
    const ParallelFor shared = parallel_for ? parallel_as_found : nullptr;
    const int status = (recurrent_kernels(call, type).*function)(n, shared);
    return status == NOT_ROUNDED ? (kernels.recurrent[type]->*function)(n, shared) : status;
}

}  // namespace

// Packs the parameters for calls to come into `prepared`, and returns their bytes. Where that is null it packs nothing.
int64_t layernorm_prepare(const Recurrent *call, int type) {
    const RecurrentKernels &k = recurrent_kernels(call, type);
    return (call->prepares == FOR_FORWARD ? k.prepare_forward : k.prepare_backward)(call, parallel_for);
}

// The names of the instruction sets that were compiled, the best first.
#define LAYERNORM_TABLE(isa) #isa " "
EXPORT const char *layernorm_sets() { return LAYERNORM_TABLES; }
#undef LAYERNORM_TABLE

// Chooses the best instruction set, or the one of this name. The name of what was chosen, or null.
EXPORT const char *layernorm_start(ParallelFor run, const char *name) {
    parallel_for = run;
    const Kernels *whole = nullptr, *chosen = nullptr;
    for (const Kernels *table : tables) {
        if (!runs(table->name)) continue;
        if (!whole && table->norms) whole = table;
        if (!chosen && (!name || !strcmp(name, table->name))) chosen = table;
    }
    if (!chosen || !whole) return nullptr;
    kernels = *chosen;
    for (int i = FLOAT32; i <= FLOAT64; ++i)
        if (!kernels.recurrent[i]) kernels.recurrent[i] = whole->recurrent[i];
    if (!kernels.norms) kernels.norms = whole->norms;
    return chosen->name;
}

#if defined(LAYERNORM_TESTED)
// Says whether results and scratch begin as NaN.
EXPORT void layernorm_poison(int on) { poisoned = on; }
#endif

// Whether Python's structures are these: their sizes, and where some of their fields begin, as `layout` in _layout.py.
EXPORT int layernorm_fits(const int64_t *layout, int64_t count) {
    const int64_t here[] = {
        sizeof(Recurrent), offsetof(Recurrent, eps), offsetof(Recurrent, x), offsetof(Recurrent, h0),
        offsetof(Recurrent, output), offsetof(Recurrent, d_vectors), offsetof(Recurrent, totals),
        sizeof(Norm), offsetof(Norm, eps), offsetof(Norm, x), offsetof(Norm, d_bias),
    };
    return count * int64_t(sizeof *here) == int64_t(sizeof here) && !memcmp(layout, here, sizeof here);
}

// What a plan calls: see planned.cpp.
EXPORT int layernorm_recurrent_forward(const void *call, int type) {
    return run(&RecurrentKernels::forward, call, type);
}
EXPORT int layernorm_recurrent_backward(const void *call, int type) {
    return run(&RecurrentKernels::backward, call, type);
}
EXPORT int layernorm_norm_forward(const void *call, int type) {
    return kernels.norms->forward[type](static_cast<const Norm *>(call), parallel_for);
}
EXPORT int layernorm_norm_backward(const void *call, int type) {
    return kernels.norms->backward[type](static_cast<const Norm *>(call), parallel_for);
}
EXPORT int layernorm_recurrent_prepare(const void *call, int type) {
    layernorm_prepare(static_cast<const Recurrent *>(call), type);
    return 0;
}
EXPORT int layernorm_recurrent_vectors(const void *call, int type) {
    recurrent_kernels(call, type).vectors(static_cast<const Recurrent *>(call));
    return 0;
}

// How the forward lays out what it saves: the seven numbers of `SavedBlock`.
EXPORT void layernorm_recurrent_saved(const Recurrent *call, int type, SavedBlock *block) {
    *block = saved_block(*call, type);
}
// How many numbers `totals` has.
EXPORT int64_t layernorm_recurrent_totals(const Recurrent *call) { return VECTORS * row_of_summed_inputs(*call); }
