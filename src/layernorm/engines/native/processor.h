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
// The answers of cpuid, and the registers that the system keeps for each thread (XCR0). __builtin_cpu_supports does not know
// every name in every compiler, and on Windows clang does not link what it calls.
struct X86 {
    unsigned leaf1c = 0, leaf7b = 0, leaf7c = 0, leaf7d = 0, leaf71a = 0, kept = 0;

    X86() {
        constexpr unsigned OSXSAVE = 1u << 27;
        unsigned a, b, c, d;
        if (__get_cpuid(1, &a, &b, &leaf1c, &d) && (leaf1c & OSXSAVE)) asm volatile("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
        if (__get_cpuid_count(7, 0, &a, &leaf7b, &leaf7c, &leaf7d) && a) __get_cpuid_count(7, 1, &leaf71a, &b, &c, &d);
    }
};

bool all(unsigned word, unsigned bits) { return (word & bits) == bits; }

bool has_avx2(const X86 &x) {
    constexpr unsigned FMA = 1u << 12, F16C = 1u << 29, AVX2 = 1u << 5, YMM = 0x6;
    return all(x.kept, YMM) && all(x.leaf1c, FMA | F16C) && all(x.leaf7b, AVX2);
}
bool has_avx512(const X86 &x) {
    constexpr unsigned F = 1u << 16, DQ = 1u << 17, BW = 1u << 30, VL = 1u << 31, ZMM = 0xe0;
    return has_avx2(x) && all(x.kept, ZMM) && all(x.leaf7b, F | DQ | BW | VL);
}
bool has_avx512bf16(const X86 &x) {
    constexpr unsigned VNNI = 1u << 11, BF16 = 1u << 5;
    return has_avx512(x) && all(x.leaf7c, VNNI) && all(x.leaf71a, BF16);
}
// Tiles that multiply bfloat16, and whether this process may use them: Linux gives their memory only to who has asked, for
// all threads at once. Other systems are not asked.
bool has_amx([[maybe_unused]] const X86 &x) {
#if defined(__x86_64__) && defined(__linux__)
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24, KEPT = 3u << 17;
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    return has_avx512bf16(x) && all(x.kept, KEPT) && all(x.leaf7d, BF16 | TILES) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
    return false;
#endif
}
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
    const X86 x;
    if (!strcmp(name, "amx")) return has_amx(x);
    if (!strcmp(name, "avx512bf16")) return has_avx512bf16(x);
    if (!strcmp(name, "avx512")) return has_avx512(x);
    if (!strcmp(name, "avx2")) return has_avx2(x);
#endif
#if defined(__aarch64__)
    if (!strcmp(name, "neonbf16")) return has_dot() && has_bf16();
    if (!strcmp(name, "neondot")) return has_dot();
    if (!strcmp(name, "neon")) return true;
#endif
    return !strcmp(name, "baseline") || !strcmp(name, "amx_emulated") || !strcmp(name, "pairs");
}

}  // namespace
