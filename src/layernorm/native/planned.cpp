// Recurrent calls through PyTorch's dispatcher. Python plans a call once for all of its kind (native/_plan.py): which
// tensors come, of which sizes, and where in `Recurrent` their addresses go. Then a call is one op of PyTorch's,
// `layernorm_native::call(int plan, Tensor[] tensors) -> (Tensor[] results, int status)`. It looks at each tensor here
// instead of in Python, which takes ten times as long.
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
using Handle = void *;   // of a tensor or a list, to be given back

// In the order of `SHIMS` in _library.py. They return 0, or not 0 after an error.
struct Torch {
    int (*list_size)(Handle, size_t *);
    int (*list_get)(Handle, size_t, Value *);
    int (*list_delete)(Handle);
    int (*list_new)(size_t, Handle *);
    int (*list_push)(Handle, Value);
    int (*delete_tensor)(Handle);
    int (*data)(Handle, void **);
    int (*storage_size)(Handle, int64_t *);
    int (*dim)(Handle, int64_t *);
    int (*sizes)(Handle, int64_t **);
    int (*strides)(Handle, int64_t **);
    int (*dtype)(Handle, int32_t *);
    int (*device)(Handle, int32_t *);
    int (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
} torch;

constexpr int64_t WORDS = sizeof(Recurrent) / 8, MOST = 64;
enum Status { DONE = 0, NO_MEMORY = 1, UNFIT = 2 };

struct Kind {  // of a tensor
    int64_t dtype, dim, sizes[3], strides[3];
};
struct Address {  // word `field` of the call is where tensor number `tensor`, and so many bytes, begins
    int64_t field, tensor, offset;
};
// As _plan.py packs it.
struct Plan {
    int (*function)(const Recurrent *, int);
    int64_t type;  // its second argument
    int64_t given, made, addresses;
    int64_t call[WORDS];
    const Kind *kinds() const { return reinterpret_cast<const Kind *>(this + 1); }
    const Address *places() const { return reinterpret_cast<const Address *>(kinds() + given + made); }
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
        if (sizes[i] != kind.sizes[i]) return false;
        count *= sizes[i];
        apart = apart && (sizes[i] == 1 || strides[i] == kind.strides[i]);
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

// Makes the results and calls the function. `at` has the addresses of what was given.
Status run(const Plan &plan, char **at, Handle results) {
    for (int64_t i = plan.given; i < plan.given + plan.made; ++i) {
        const Kind &kind = plan.kinds()[i];
        Handle made;
        void *data;
        int64_t bytes = 0;
        if (torch.empty(kind.dim, kind.sizes, kind.strides, int32_t(kind.dtype), 0, 0, &made)) return NO_MEMORY;
        torch.data(made, &data);
        torch.storage_size(made, &bytes);
        at[i] = static_cast<char *>(data);
        in_large_pages(at[i], bytes);
        torch.list_push(results, reinterpret_cast<Value>(made));
    }
    int64_t words[WORDS];
    memcpy(words, plan.call, sizeof words);
    for (int64_t i = 0; i < plan.addresses; ++i) {
        const Address &place = plan.places()[i];
        words[place.field] = reinterpret_cast<int64_t>(at[place.tensor]) + place.offset;
    }
    Recurrent call;
    memcpy(&call, words, sizeof call);
    return plan.function(&call, int(plan.type)) ? NO_MEMORY : DONE;
}

}  // namespace

EXPORT void layernorm_bind(const Torch *functions) { torch = *functions; }

EXPORT void layernorm_call(Value *stack, uint64_t, uint64_t) {
    const Plan &plan = *reinterpret_cast<const Plan *>(stack[0]);
    Handle given = reinterpret_cast<Handle>(stack[1]), tensors[MOST], results;  // a plan has no more, given and made
    char *at[MOST];
    size_t count = 0;
    torch.list_size(given, &count);
    size_t kept = 0;
    bool fit = int64_t(count) == plan.given;
    for (size_t i = 0; i < count; ++i) {
        Value value;
        torch.list_get(given, i, &value);
        Handle tensor = reinterpret_cast<Handle>(value);
        fit = fit && fits(tensor, plan.kinds()[i], at[i]);
        if (fit) tensors[i] = tensor;
        else torch.delete_tensor(tensor);
        kept += fit;
    }
    torch.list_new(plan.made, &results);
    stack[1] = fit ? run(plan, at, results) : UNFIT;
    stack[0] = reinterpret_cast<Value>(results);
    for (size_t i = 0; i < kept; ++i) torch.delete_tensor(tensors[i]);
    torch.list_delete(given);
}
