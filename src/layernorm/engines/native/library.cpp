// The C functions that Python calls, and the choice of the instruction set.
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "engine.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#define LAYERNORM_TABLE(isa) extern "C" const Kernels layernorm_##isa;
LAYERNORM_TABLES
#undef LAYERNORM_TABLE

namespace {

#if defined(__x86_64__) || defined(__i386__)
// Not every compiler knows __builtin_cpu_supports("f16c"); that the system keeps its registers is asked with "avx2".
bool has_f16c() {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

// Whether the processor has what the kernels of this name were compiled for.
bool runs(const char *name) {
#if defined(__x86_64__) || defined(__i386__)
    if (!strcmp(name, "avx512bf16")) return runs("avx512") && __builtin_cpu_supports("avx512bf16");
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma") && has_f16c();
    if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
    return !strcmp(name, "baseline");
}

#define LAYERNORM_TABLE(isa) &layernorm_##isa,
const Kernels *const tables[] = {LAYERNORM_TABLES};  // the best first
#undef LAYERNORM_TABLE

const Kernels *kernels = nullptr;
ParallelFor parallel_for = nullptr;

}  // namespace

// Chooses the best instruction set, or the one of this name. The name of what was chosen, or null.
EXPORT const char *layernorm_start(ParallelFor run, const char *name) {
    parallel_for = run;
    for (const Kernels *table : tables)
        if (runs(table->name) && (!name || !strcmp(name, table->name))) {
            kernels = table;
            return table->name;
        }
    return nullptr;
}

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
    return kernels->recurrent_forward[type](static_cast<const Recurrent *>(call), parallel_for);
}
EXPORT int layernorm_recurrent_backward(const void *call, int type) {
    return kernels->recurrent_backward[type](static_cast<const Recurrent *>(call), parallel_for);
}
EXPORT int layernorm_norm_forward(const void *call, int type) {
    return kernels->norm_forward[type](static_cast<const Norm *>(call), parallel_for);
}
EXPORT int layernorm_norm_backward(const void *call, int type) {
    return kernels->norm_backward[type](static_cast<const Norm *>(call), parallel_for);
}
// How the forward lays out what it saves: the seven numbers of `SavedBlock`.
EXPORT void layernorm_recurrent_saved(const Recurrent *call, int type, SavedBlock *block) {
    *block = saved_block(*call, type);
}
// Packs the parameters for calls to come; the bytes that they take. Without a place it only tells these.
EXPORT int64_t layernorm_prepare_forward(const Recurrent *call, int type, void *to) {
    return kernels->prepare_forward[type](call, to, parallel_for);
}
EXPORT int64_t layernorm_prepare_backward(const Recurrent *call, int type, void *to) {
    return kernels->prepare_backward[type](call, to, parallel_for);
}
EXPORT int64_t layernorm_recurrent_totals(const Recurrent *call) { return VECTORS * row_of_summed_inputs(*call); }
EXPORT void layernorm_recurrent_vectors(const Recurrent *call, int type) { kernels->recurrent_vectors[type](call); }
