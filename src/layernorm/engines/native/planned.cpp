// Calls through PyTorch's dispatcher. Python plans a call once for all with the same equations (native/_plan.py): which
// tensors come, how their sizes and types fit each other, and where in `Recurrent` or `Norm` their addresses go. Then a
// call is one op of PyTorch's, for example
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

int64_t layernorm_prepare(const Recurrent *call, int type);  // library.cpp

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
    int (*threads)(uint32_t *);
} torch;
int32_t dtypes[4];  // PyTorch's numbers of float32, float64, bfloat16, float16

static_assert(sizeof(Norm) <= sizeof(Recurrent), "room for a call of either");
constexpr int64_t MOST = 64;  // a plan has no more tensors, given and made
constexpr int64_t OPEN = -1;
enum Status { DONE = 0, NO_MEMORY = 1, UNFIT = 2 };

// Sizes and types that a plan leaves open, so that one plan serves calls of all sizes. Where a spec has -1 - NAME instead of
// a number, the tensor has the size or type of that name. The first tensor with the name decides what it is in this call, or
// `complete` derives it from others. All tensors with the name must agree. Example: x with the sizes (-1 - T, -1 - B, -1 - I)
// and a reset with (-1 - T, -1 - B) fit each other if both have as many steps and rows.
// UNITS: G*H. SAVED: numbers of the block that is saved. PREPARED: bytes of packed parameters. TOTALS: numbers of `totals`.
enum Size { T, B, I, H, P, UNITS, LINES, SAVED, M, PREPARED, TOTALS, SIZES };
enum Type { CALL, OTHER, OPEN_TYPES };                // OTHER: recurrent: the one computed in; norm: the parameters'
enum Layout {
    IN_ORDER,
    STEPS,  // the last dimension in order: x of a recurrent call, or of one step
    ROWS,   // the last dimensions in order, and all rows as far apart: tensors like x of a norm, which is the first one
};
struct TensorSpec {  // its sizes are behind it; of ROWS those of a row, before which come those of x
    int64_t type, layout;
    int64_t field;    // the byte of the call where its address goes; -1: nowhere
    int64_t strides;  // the byte where its strides go, of STEPS all but the last one, of ROWS one for all rows; -1: nowhere
    int64_t dim;
    const int64_t *sizes() const { return reinterpret_cast<const int64_t *>(this + 1); }
    const TensorSpec *next() const { return reinterpret_cast<const TensorSpec *>(sizes() + dim); }
};
// As _plan.py packs it: this, the call without its tensors, the specs of what is given and made.
struct Plan {
    int (*function)(const void *, int);
    int64_t recurrent;  // whether the call is a `Recurrent`; otherwise a `Norm`
    int64_t given, made, size;  // size: of the call, in bytes
    const char *call() const { return reinterpret_cast<const char *>(this + 1); }
    const TensorSpec *specs() const { return reinterpret_cast<const TensorSpec *>(call() + size); }
};

int64_t product(int64_t a, int64_t b) {
    int64_t found;
    return __builtin_mul_overflow(a, b, &found) ? INT64_MAX : found;  // for which there is no memory
}

int number(int64_t dtype) {
    for (int i = 0; i < 4; ++i)
        if (dtypes[i] == dtype) return i;
    return -1;
}

constexpr int64_t FEW = 1 << 18;  // fewer numbers fill no large page

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

class Call {
public:
    explicit Call(const Plan &plan) : plan(plan) {
        memcpy(fields, plan.call(), plan.size);
        for (int64_t &size : sizes) size = OPEN;
        for (int64_t &type : types) type = OPEN;
    }

    // Makes the results, those that there is memory for, and calls the function.
    Status run(const Handle *given, Handle *made) {
        const TensorSpec *spec = plan.specs();
        for (int64_t i = 0; i < plan.given; ++i, spec = spec->next())
            if (!fits(given[i], *spec)) return UNFIT;
        if (!complete()) return UNFIT;
        for (int64_t i = 0; i < plan.made; ++i, spec = spec->next())
            if (!make(*spec, &made[i])) return NO_MEMORY;
        place_parts();
        return plan.function(fields, number(types[CALL])) ? NO_MEMORY : DONE;
    }

private:
    const Plan &plan;
    alignas(Recurrent) char fields[sizeof(Recurrent)];
    int64_t sizes[SIZES], types[OPEN_TYPES];
    const int64_t *rows = nullptr;  // the sizes of x in a norm
    int64_t rows_dim = 0;

    Recurrent &recurrent() { return *reinterpret_cast<Recurrent *>(fields); }
    Norm &norm() { return *reinterpret_cast<Norm *>(fields); }
    template <class Value>
    void set(int64_t field, Value value) {
        if (field >= 0) memcpy(fields + field, &value, sizeof value);
    }
    // Whether a number is that of the spec: the same, or the one that the spec's name stands for in this call.
    static bool is(int64_t number, int64_t in_spec, int64_t *open) {
        if (in_spec >= 0) return number == in_spec;
        int64_t &known = open[-1 - in_spec];
        if (known == OPEN) known = number;
        return number == known;
    }

    // Whether a tensor is as planned. Its address goes into the call. A stride is looked at where a dimension has several
    // elements. A tensor that has elements and no storage does not fit.
    bool fits(Handle tensor, const TensorSpec &spec) {
        int32_t dtype, device;
        int64_t dim, *found, *strides, bytes, count = 1;
        void *data;
        if (torch.dtype(tensor, &dtype) || torch.device(tensor, &device) || torch.dim(tensor, &dim) ||
            torch.sizes(tensor, &found) || torch.strides(tensor, &strides))
            return false;
        if (device != 0 || !is(dtype, spec.type, types)) return false;
        int64_t leading = 0;
        if (spec.layout == ROWS) {
            if (!rows) rows = found, rows_dim = dim;
            leading = dim - spec.dim;
            if (leading < 0 || dim != rows_dim) return false;
        } else if (dim != spec.dim) {
            return false;
        }
        for (int64_t i = 0; i < dim; ++i) {
            if (i < leading ? found[i] != rows[i] : !is(found[i], spec.sizes()[i - leading], sizes)) return false;
            count = product(count, found[i]);
        }
        if (torch.data(tensor, &data) || torch.storage_size(tensor, &bytes)) return false;
        set(spec.field, data);
        for (int64_t i = 0; spec.layout == STEPS && i < dim - 1; ++i) set(spec.strides + 8 * i, strides[i]);
        return count == 0 || (bytes > 0 && lies(spec, leading, dim, found, strides));
    }

    // Whether a tensor's elements lie as planned.
    bool lies(const TensorSpec &spec, int64_t leading, int64_t dim, const int64_t *found, const int64_t *strides) {
        if (spec.layout == STEPS) return found[dim - 1] == 1 || strides[dim - 1] == 1;
        int64_t next = 1, apart = 0;
        for (int64_t i = dim - 1; i >= leading; --i) {
            if (found[i] != 1 && strides[i] != next) return false;
            next *= found[i];
        }
        bool several = false;
        for (int64_t i = leading - 1; i >= 0; --i) {
            if (found[i] == 1) continue;
            if (several && strides[i] != next) return false;
            if (!several) apart = strides[i];
            several = true;
            next = product(strides[i], found[i]);
        }
        if (spec.layout == ROWS) set(spec.strides, apart);
        return true;
    }

    // Fills in what follows from the sizes and types of what is given; whether they fit each other.
    bool complete() {
        if (!plan.recurrent) {
            int64_t count = 1;
            for (int64_t i = 0; i < rows_dim - plan.specs()->dim; ++i) count = product(count, rows[i]);
            norm().M = count;
            norm().parameter_type = types[OTHER] == OPEN ? 0 : number(types[OTHER]);
            return number(types[CALL]) >= 0 && norm().parameter_type >= 0 && is(count, -1 - M, sizes);
        }
        Recurrent &n = recurrent();
        uint32_t threads;
        const int type = number(types[CALL]);
        if (type < 0 || type > BFLOAT16 || torch.threads(&threads)) return false;
        const auto known = [&](Size name, int64_t otherwise) { return sizes[name] == OPEN ? otherwise : sizes[name]; };
        n.T = known(T, n.T), n.B = known(B, n.B);  // steps one by one have no time, and packing weights has no rows
        n.I = sizes[I], n.H = known(H, sizes[UNITS] / n.gates), n.P = n.projected ? sizes[P] : n.H;
        n.threads = threads;
        if (n.H < 1 || n.P < 1 || !is(product(n.gates, n.H), -1 - UNITS, sizes)) return false;
        if (n.batch_sizes ? !packs(n) : !is(product(n.T, n.B), -1 - LINES, sizes)) return false;
        if (n.batch_sizes) n.x_b = n.I;
        n.lines = sizes[LINES];
        const int64_t saved = product(n.lines, saved_block(n, type).size);
        if (n.prepares) sizes[PREPARED] = layernorm_prepare(&n, type);
        return is(dtypes[type == 1], -1 - OTHER, types) && is(saved, -1 - SAVED, sizes) &&
            is(VECTORS * row_of_summed_inputs(n), -1 - TOTALS, sizes);
    }

    // Whether batch_sizes are those of B rows in the order of falling lengths, of LINES lines together.
    bool packs(const Recurrent &n) const {
        int64_t lines = 0, rows = n.B;
        for (int64_t t = 0; t < n.T; ++t) {
            const int64_t here = n.batch_sizes[t];
            if (here < 1 || here > rows || (t == 0 && here < rows)) return false;
            lines += rows = here;
        }
        return lines == sizes[LINES];
    }

    bool make(const TensorSpec &spec, Handle *to) {
        const int64_t dim = spec.layout == ROWS ? rows_dim : spec.dim;  // as many as a user likes
        auto *found = static_cast<int64_t *>(__builtin_alloca(2 * dim * sizeof(int64_t))), *strides = found + dim;
        int64_t next = 1, bytes;
        void *data;
        if (spec.layout == ROWS) {
            memcpy(found, rows, dim * sizeof *rows);
        } else {
            for (int64_t i = 0; i < dim; ++i) {
                const int64_t size = spec.sizes()[i];
                found[i] = size >= 0 ? size : sizes[-1 - size];
            }
        }
        for (int64_t i = dim - 1; i >= 0; --i) {
            strides[i] = next;
            next = product(next, found[i] > 0 ? found[i] : 1);
        }
        const int64_t type = spec.type >= 0 ? spec.type : types[-1 - spec.type];
        if (torch.empty(dim, found, strides, int32_t(type), 0, 0, to)) {
            *to = nullptr;
            return false;
        }
        if (torch.data(*to, &data)) return false;
        if (next >= FEW && !torch.storage_size(*to, &bytes)) in_large_pages(static_cast<char *>(data), bytes);
        if (poisoned && !torch.storage_size(*to, &bytes) && bytes > 0) memset(data, 255, bytes);
        set(spec.field, data);
        return true;
    }

    // The addresses of the parts of what is saved, from that of the first one.
    void place_parts() {
        if (!plan.recurrent) {
            if (norm().mean) norm().r = static_cast<double *>(norm().mean) + norm().M;
            return;
        }
        Recurrent &n = recurrent();
        if (!n.output) n.output = n.h_n;  // a step's output is the state after it
        if (n.saved_x) {
            const int type = number(types[CALL]);
            const SavedBlock block = saved_block(n, type);
            const int64_t rows = n.lines * (type == FLOAT64 ? 8 : 4);
            char *const begin = static_cast<char *>(n.saved_x);
            n.saved_h = block.h < 0 ? nullptr : begin + block.h * rows;
            n.saved_c = block.c < 0 ? nullptr : begin + block.c * rows;
            n.saved_kept = block.kept < 0 ? nullptr : begin + block.kept * rows;
            n.saved_statistics = block.statistics < 0 ? nullptr : begin + block.statistics * rows;
            n.saved_output = block.output < 0 ? nullptr : begin + block.output * rows;
        }
    }
};

thread_local Status status;  // of the last call of this thread

}  // namespace

EXPORT void layernorm_bind(const Torch *functions, const int32_t *types) {
    torch = *functions;
    memcpy(dtypes, types, sizeof dtypes);
}

// Why the last call of this thread gave nothing.
EXPORT int layernorm_status() { return status; }

// The plan and the tensors given are on the stack, then the tensors made; undefined ones, if it does not come to that.
EXPORT void layernorm_call(Value *stack, uint64_t arguments, uint64_t results) {
    const Plan &plan = *reinterpret_cast<const Plan *>(stack[0]);
    Handle given[MOST], made[MOST] = {};
    const int64_t count = int64_t(arguments) - 1;
    for (int64_t i = 0; i < count; ++i) given[i] = reinterpret_cast<Handle>(stack[i + 1]);
    status = Call(plan).run(given, made);
    for (int64_t i = 0; i < int64_t(results); ++i) {
        if (status != DONE) {
            if (made[i]) torch.delete_tensor(made[i]);
            torch.undefined_tensor(&made[i]);
        }
        stack[i] = reinterpret_cast<Value>(made[i]);
    }
    for (int64_t i = 0; i < count; ++i) torch.delete_tensor(given[i]);
}
