// What a call needs of its thread and of others: memory, kept by the thread for the next call (fresh pages cost three
// times what warm ones do), and shares of the work.
#pragma once

#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#include <malloc.h>
#endif

#include "engine.h"
#include "simd.h"

namespace LAYERNORM_ISA {

// Memory that begins at a multiple of 64 bytes. `bytes` is such a multiple, too.
#if defined(_WIN32)  // has no aligned_alloc: its free() could not tell where such a block begins
inline void* allocate(i64 bytes) { return _aligned_malloc(bytes, 64); }
inline void deallocate(void* block) { _aligned_free(block); }
#else
inline void* allocate(i64 bytes) { return aligned_alloc(64, bytes); }
inline void deallocate(void* block) { free(block); }
#endif

// Hands out pieces of a block of memory; without one it only adds up what is asked for.
struct Cursor {
    static constexpr i64 TOO_MUCH = i64(1) << 60;  // bytes, of which the sum does not overflow

    char* base;
    i64 used = 0;

    template <class T> void take(T*& piece, i64 count) {
        piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used = count > TOO_MUCH / i64(sizeof(T)) ? TOO_MUCH : least(TOO_MUCH, used + round_up(count * i64(sizeof(T)), 64));
    }
};

class Scratch {
    static constexpr i64 KEPT = i64(64) << 20;
    char* base = nullptr;
    i64 capacity = 0;

public:
    ~Scratch() { deallocate(base); }

    // Lets `layout` take its pieces; false if there is not that much memory.
    template <class Layout> bool arrange(Layout& layout) {
        Cursor count{nullptr};
        layout.lay(count);
        if (count.used > capacity) {
            deallocate(base);
            capacity = round_up(count.used, 4096);
            base = static_cast<char*>(allocate(capacity));
            if (!base) {
                capacity = 0;
                return count.used == 0;
            }
        }
        if (poisoned && base) memset(base, 255, count.used);
        Cursor give{base};
        layout.lay(give);
        return true;
    }

    void release() {
        if (capacity > KEPT) {
            deallocate(base);
            base = nullptr;
            capacity = 0;
        }
    }
};

// Whether any part of a call had no memory. Its threads may say so at once. (std::atomic has functions in the header.)
class Failure {
    bool there = false;

public:
    void set() { __atomic_store_n(&there, true, __ATOMIC_RELAXED); }
    operator bool() const { return __atomic_load_n(&there, __ATOMIC_RELAXED); }
};

// A thread that waits for others in a call may itself run a part of that call: two blocks.
inline thread_local Scratch of_call, of_part;

// f(begin, end) over [0, count) on PyTorch's threads, at least `grain` at a time; without these on this thread. All of them
// take subnormal numbers as this one does.
template <class F> static void share(ParallelFor run, i64 count, const F& f, i64 grain = 1) {
    if (count <= 0) return;
    struct Shared {
        const F& f;
        const unsigned mode;
    } shared{f, Subnormals::mode()};
    auto body = [](i64 begin, i64 end, void* context) {
        const Shared& of = *static_cast<const Shared*>(context);
        const Subnormals as_there(of.mode);
        of.f(begin, end);
    };
    if (!run || count <= grain || run(0, count, grain, body, &shared)) f(0, count);
}

}  // namespace LAYERNORM_ISA
