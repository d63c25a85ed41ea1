// What the processor at hand has. The build asks for it, too: sets_here.cpp.
#pragma once

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
    return !strcmp(name, "baseline") || !strcmp(name, "amx_emulated") || !strcmp(name, "pairs");
}

}  // namespace
