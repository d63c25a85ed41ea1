// Calls through PyTorch's dispatcher. Python plans a call once for all of its kind (native/_plan.py): which tensors come,
// of which sizes, and where in `Recurrent` or `Norm` their addresses go. Then a call is one op of PyTorch's, for example
// `layernorm_native::call_3_1(int plan, Tensor given_0, Tensor given_1, Tensor given_2) -> Tensor`. It looks at each
// tensor here instead of in Python, which takes ten times as long. All these ops are one function, `layernorm_call`.
//
// PyTorch's functions come as a table of addresses, so that nothing of it is needed to build: they are the C functions
// of torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h that every version since 2.10 has.
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "engine.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Value = uint64_t;  // what the dispatcher hands over: a number or a pointer
using Handle = void *;   // of a tensor, to be given back

// In the order of `SHIMS` in _library.py. They return 0, or not 0 after an error.
struct Torch {
    int (*delete_tensor)(Handle);
    int (*undefined_tensor)(Handle *);
    int (*data)(Handle, void **);
    int (*storage_size)(Handle, int64_t *);
    int (*dim)(Handle, int64_t *);
    int (*sizes)(Handle, int64_t **);
    int (*strides)(Handle, int64_t **);
    int (*dtype)(Handle, int32_t *);
    int (*device)(Handle, int32_t *);
    int (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
} torch;

constexpr int64_t WORD = 8, MOST = 64;
static_assert(sizeof(Norm) <= sizeof(Recurrent), "room for a call of either");
enum Status { DONE = 0, NO_MEMORY = 1, UNFIT = 2 };

struct Kind {  // of a tensor; its sizes and its strides are behind it
    int64_t dtype, dim;
    const int64_t *sizes() const { return reinterpret_cast<const int64_t *>(this + 1); }
    const int64_t *strides() const { return sizes() + dim; }
    const Kind *next() const { return reinterpret_cast<const Kind *>(strides() + dim); }
};
struct Address {  // word `field` of the call is where tensor number `tensor`, and so many bytes, begins
    int64_t field, tensor, offset;
};
// As _plan.py packs it: this, the call's words without addresses, the addresses, the kinds of what is given and made.
struct Plan {
    int (*function)(const void *, int);
    int64_t type;  // its second argument
    int64_t given, made, words, addresses;
    const int64_t *call() const { return reinterpret_cast<const int64_t *>(this + 1); }
    const Address *places() const { return reinterpret_cast<const Address *>(call() + words); }
    const Kind *kinds() const { return reinterpret_cast<const Kind *>(places() + addresses); }
};

// Whether a tensor is of a kind, and where its elements are. How far apart they are matters where there are several. A
// tensor may have elements and no storage.
bool fits(Handle tensor, const Kind &kind, char *&at) {
    int32_t dtype, device;
    int64_t dim, *sizes, *strides, bytes;
    void *data;
    if (torch.dtype(tensor, &dtype) || torch.device(tensor, &device) || torch.dim(tensor, &dim) ||
        torch.sizes(tensor, &sizes) || torch.strides(tensor, &strides))
        return false;
    if (dtype != kind.dtype || device != 0 || dim != kind.dim) return false;
    int64_t count = 1;
    bool apart = true;
    for (int64_t i = 0; i < dim; ++i) {
        if (sizes[i] != kind.sizes()[i]) return false;
        count *= sizes[i];
        apart = apart && (sizes[i] == 1 || strides[i] == kind.strides()[i]);
    }
    if (torch.data(tensor, &data) || torch.storage_size(tensor, &bytes)) return false;
    at = static_cast<char *>(data);
    return count == 0 || (apart && bytes > 0);
}

// Asks for a large result in pages of 2 MB, as far as it has whole ones: what is saved for the backward is fresh memory in
// every call, and each of its 4 KB pages costs a fault.
void in_large_pages([[maybe_unused]] char *data, [[maybe_unused]] int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr int64_t PAGE = 2 << 20;
    const int64_t before = round_up(reinterpret_cast<int64_t>(data), PAGE) - reinterpret_cast<int64_t>(data);
    const int64_t whole = (bytes - before) / PAGE * PAGE;
    if (whole > 0) madvise(data + before, whole, MADV_HUGEPAGE);  // no more than a hint: it may fail
#endif
}

// Makes the results, those that there is memory for, and calls the function.
Status run(const Plan &plan, const Handle *given, Handle *made) {
    char *at[MOST];  // a plan has no more tensors, given and made
    const Kind *kind = plan.kinds();
    for (int64_t i = 0; i < plan.given; ++i, kind = kind->next())
        if (!fits(given[i], *kind, at[i])) return UNFIT;
    for (int64_t i = 0; i < plan.made; ++i, kind = kind->next()) {
        void *data;
        int64_t bytes;
        if (torch.empty(kind->dim, kind->sizes(), kind->strides(), int32_t(kind->dtype), 0, 0, &made[i])) {
            made[i] = nullptr;
            return NO_MEMORY;
        }
        if (torch.data(made[i], &data) || torch.storage_size(made[i], &bytes)) return NO_MEMORY;
        at[plan.given + i] = static_cast<char *>(data);
        in_large_pages(at[plan.given + i], bytes);
    }
    alignas(Recurrent) char call[sizeof(Recurrent)];
    memcpy(call, plan.call(), plan.words * WORD);
    for (int64_t i = 0; i < plan.addresses; ++i) {
        const Address &place = plan.places()[i];
        const char *begin = at[place.tensor] + place.offset;
        memcpy(call + place.field * WORD, &begin, WORD);
    }
    return plan.function(call, int(plan.type)) ? NO_MEMORY : DONE;
}

thread_local Status status;  // of the last call of this thread

}  // namespace

EXPORT void layernorm_bind(const Torch *functions) { torch = *functions; }

// Why the last call of this thread gave nothing.
EXPORT int layernorm_status() { return status; }

// The plan and the tensors given are on the stack, then the tensors made; undefined ones, if it does not come to that.
EXPORT void layernorm_call(Value *stack, uint64_t arguments, uint64_t results) {
    const Plan &plan = *reinterpret_cast<const Plan *>(stack[0]);
    Handle given[MOST], made[MOST] = {};
    const int64_t count = int64_t(arguments) - 1;
    for (int64_t i = 0; i < count; ++i) given[i] = reinterpret_cast<Handle>(stack[i + 1]);
    status = run(plan, given, made);
    for (int64_t i = 0; i < int64_t(results); ++i) {
        if (status != DONE) {
            if (made[i]) torch.delete_tensor(made[i]);
            torch.undefined_tensor(&made[i]);
        }
        stack[i] = reinterpret_cast<Value>(made[i]);
    }
    for (int64_t i = 0; i < count; ++i) torch.delete_tensor(given[i]);
}
