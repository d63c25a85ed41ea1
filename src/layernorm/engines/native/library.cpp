// The C functions that Python calls, and the choice of the instruction set.
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
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

#if defined(__x86_64__) && defined(__linux__)
// Whether the processor has tiles that multiply bfloat16, the system keeps them (XCR0), and this process may use them:
// Linux gives their memory only to who has asked, for all threads at once.
bool has_tiles() {
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24, KEPT = 3u << 17;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILES)) return false;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    return (low & KEPT) == KEPT && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#else
bool has_tiles() { return false; }
#endif

#if defined(__aarch64__) && defined(__APPLE__)
bool has(const char *feature) {
    int there = 0;
    size_t size = sizeof there;
    return !sysctlbyname(feature, &there, &size, nullptr, 0) && there;
}
bool has_dot() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_bf16() { return has("hw.optional.arm.FEAT_BF16"); }
#elif defined(__aarch64__) && defined(__linux__)
// Bits of the kernel's, which the headers of old systems do not name.
bool has_dot() { return getauxval(AT_HWCAP) >> 20 & 1; }
bool has_bf16() { return getauxval(AT_HWCAP2) >> 14 & 1; }
#elif defined(__aarch64__)
bool has_dot() { return false; }
bool has_bf16() { return false; }
#endif

// Whether the processor has what the kernels of this name were compiled for.
bool runs(const char *name) {
#if defined(__x86_64__) || defined(__i386__)
    if (!strcmp(name, "amx")) return runs("avx512bf16") && has_tiles();
    if (!strcmp(name, "avx512bf16"))
        return runs("avx512") && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma") && has_f16c();
    if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
#if defined(__aarch64__)
    if (!strcmp(name, "neonbf16")) return has_dot() && has_bf16();
    if (!strcmp(name, "neondot")) return has_dot();
    if (!strcmp(name, "neon")) return true;
#endif
    return !strcmp(name, "baseline") || !strcmp(name, "amx_emulated");
}

#define LAYERNORM_TABLE(isa) &layernorm_##isa,
const Kernels *const tables[] = {LAYERNORM_TABLES};  // the best first; behind the baseline what only a name chooses
#undef LAYERNORM_TABLE

Kernels kernels;

const RecurrentKernels &recurrent_kernels(const void *call, int type) {
    const bool rounded = type == 0 && static_cast<const Recurrent *>(call)->rounded;
    return kernels.recurrent[rounded && kernels.recurrent[ROUNDED].forward ? ROUNDED : type];
}

ParallelFor parallel_for = nullptr;

int run(int (*RecurrentKernels::*function)(const Recurrent *, ParallelFor), const void *call, int type) {
    const auto *n = static_cast<const Recurrent *>(call);
    const int status = (recurrent_kernels(call, type).*function)(n, parallel_for);
    return status == NOT_ROUNDED ? (kernels.recurrent[type].*function)(n, parallel_for) : status;
}

}  // namespace

// Packs the parameters for calls to come into `prepared`, and returns their bytes. Where that is null it packs nothing.
int64_t layernorm_prepare(const Recurrent *call, int type) {
    const RecurrentKernels &k = recurrent_kernels(call, type);
    return (call->prepares == FOR_FORWARD ? k.prepare_forward : k.prepare_backward)(call, parallel_for);
}

// Chooses the best instruction set, or the one of this name. The name of what was chosen, or null.
EXPORT const char *layernorm_start(ParallelFor run, const char *name) {
    parallel_for = run;
    for (const Kernels *table : tables)
        if (runs(table->name) && (!name || !strcmp(name, table->name))) {
            const Kernels *const *whole = tables;
            while (!runs((*whole)->name) || !(*whole)->norm_forward[0]) ++whole;
            kernels = table->norm_forward[0] ? *table : **whole;
            for (int i = BFLOAT16; i <= ROUNDED; ++i) kernels.recurrent[i] = table->recurrent[i];
            return table->name;
        }
    return nullptr;
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
    return kernels.norm_forward[type](static_cast<const Norm *>(call), parallel_for);
}
EXPORT int layernorm_norm_backward(const void *call, int type) {
    return kernels.norm_backward[type](static_cast<const Norm *>(call), parallel_for);
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
