// What a sequence is: its sizes, which rows take which step, its parameters as the kernels take them. The order in which it
// is worked through is in forward.h and backward.h.
#pragma once

#include "recurrent.h"
#include "scratch.h"

namespace LAYERNORM_ISA {

constexpr i64 STEP_SHARED = 128 << 10;       // a product of few rows is shared out at every step if W_hh is larger
constexpr i64 BATCH_NORM_SHARED = 256 << 10;  // under batch norm a step's product of more multiplications is shared out
constexpr i64 DENSE_SHARED = 64 << 10;       // a product of one row with a larger matrix is shared out
constexpr i64 ROW_BYTES = 16 << 10;          // of summed inputs, of rows that go through a step together
constexpr int INSIDE_X = 2, INSIDE_H = 3, OUTSIDE_X = 4, OUTSIDE_H = 5, OF_GATES = 6;  // of the eight vectors

// T: what is computed in. E: the type of x, of states and weights, of results, and of their gradients.
// F: what the products multiply.
template <class T, class E, class Factors = typename FactorFor<T, E>::type> struct Sequence {
    using F = Factors;
    using X = ElementOf<F>;
    static constexpr i64 UNITS = TILED<F> ? 16 : Set::REGISTERS == 32 ? 8 : 4;  // units of dz in one tile of dW: divides PAD
    // Whether these kernels round float32 to bfloat16 for the products. They do not serve calls that use the weights unpacked.
    static constexpr bool ROUNDS = !SAME<F, typename FactorFor<T, E>::type>;
    const Recurrent& n;
    ParallelFor run;                      // shares out work among threads, or null
    const i64 direct_rows;                // up to so many rows in a whole call the weights are not packed
    i64 T_, B, I, H, P, G, Hp, Z, W;      // Z: a row of summed inputs, whole panels wide; W: of the state h
    i64 all_lines;                        // of the call
    i64* starts;                          // [T + 1]: the first line of each time
    i64* packed_lengths;                  // [B]
    const i64* lengths;                   // of each row, or null: all are T
    i64 longest = 0;                      // of all lengths, where there are such
    Layer<T> layer;
    T* vectors;
    Panels<F> ih, hh, hr;
    ParallelFor columns = nullptr;  // shares out the columns of a product, if rows are too few
    Failure failed;

    Sequence(const Recurrent& call, ParallelFor run, i64 direct_rows) : n(call), run(run), direct_rows(direct_rows) {
        T_ = n.T, B = n.B, I = n.I, H = n.H, P = n.P, G = n.gates;
        all_lines = packed() ? n.lines : T_ * B;
        lengths = n.lengths;
        Hp = round_up(H, PAD), Z = row_of_summed_inputs(call), W = round_up(round_up(P, PAD), PANEL<F>);
        layer.G = G, layer.H = H, layer.Hp = Hp, layer.from = 0, layer.to = Hp;
        layer.split = n.split, layer.per_gate = n.together == 1, layer.all = G == 3 && n.together == 3;
        layer.norm_x = (n.norm & NORMS_X) && !n.batch_norm, layer.norm_h = (n.norm & NORMS_H) && !n.batch_norm;
        layer.relu = n.relu, layer.cell = n.cell != 0, layer.carry = n.cell == 2;
        layer.streams = n.split ? TWO : G == 3 || n.norm || n.batch_norm ? ONE : ADDED;
        layer.norming = {n.rms != 0, n.deviation != 0, n.eps};
        layer.forget_bias = T(n.forget_bias);
        layer.gate_clip = T(n.gate_clip);
        for (i64 b = 0; n.lengths && b < B; ++b) longest = most(longest, n.lengths[b]);
        layer.has_inside_x = n.inside & 1, layer.has_inside_h = n.inside & 2;
    }

    // Up to so many rows in a whole call a forward uses the weights as they lie in memory. Where sums are short, adding up
    // their lanes costs more than packing sooner.
    static i64 rows_of_direct_forward(const Recurrent& n) {
        if (least(n.I, n.P) / DEPTH<F> <= 128) return 8;
        return TILED<F> || n.T > FEW_STEPS ? 16 : DIRECT_ROWS;
    }
    // Whether the weights are used as they lie in memory. For so few rows packing them costs more than it gains, unless they
    // are packed for other calls, too.
    bool direct() const { return quantized() || (all_lines <= direct_rows && !n.projected && !n.prepared && !n.prepares); }
    bool quantized() const { return n.scale_ih; }
    bool few_rows(i64 rows) const { return rows < n.threads && G * H * P > STEP_SHARED; }
    // Whether threads share out the columns of a product. They cannot share out the rows where these are fewer than threads, or
    // take each step together (batch norm).
    bool shares_columns(i64 rows) const { return n.batch_norm ? B * G * H * P > BATCH_NORM_SHARED : few_rows(rows); }
    void multiply(const Rows<X>& A, const Panels<F>& W, T* c, i64 outer_c, i64 ldc, i64 width) const {
        share(columns, W.count(), [&](i64 from, i64 end) {
            const i64 first = from * PANEL<F>, last = least(width, end * PANEL<F>);
            if (last > first) product<F>(A, {W.panel(from), W.K, last - first}, c + first, outer_c, ldc, last - first);
        });
    }
    // The same for a run of steps (`runs`), whose outer blocks are the steps or the rows, whichever are fewer.
    void multiply_run(const Rows<X>& A, const Panels<F>& W, T* c, i64 outer_c, i64 ldc, i64 width) const {
        if (A.rows >= A.outer) multiply(A, W, c, outer_c, ldc, width);
        else multiply({A.a, A.rows, A.lda, A.outer, A.outer_a}, W, c, ldc, outer_c, width);
    }
    // How many of `rows` go through the parts of a step together: as many as stay in the nearest cache meanwhile.
    i64 rows_at_once(i64 rows) const { return n.batch_norm ? rows : most(1, least(rows, ROW_BYTES / i64(Z * sizeof(T)))); }
    // As many columns of a product as fill what it is made in, vectors or tiles.
    static i64 whole_columns(i64 n) { return round_up(n, TILED<F> ? PANEL<F> : LANES<F>); }
    // n numbers and the zeros after them.
    static i64 whole(i64 n) { return round_up(n, WHOLE<F>); }

    // Rounds numbers to the type that the products read, if they have another one.
    static void as_factors(X* to, const T* from, i64 count) {
        if constexpr (!SAME<X, T>) convert(to, from, count);
    }

    const E* given(const void* q) const { return static_cast<const E*>(q); }
    E* result(void* q) const { return static_cast<E*>(q); }
    const T* in(const void* q) const { return static_cast<const T*>(q); }
    T* out(void* q) const { return static_cast<T*>(q); }

    i64 size_of_saved_h() const { return n.split ? Z : Hp; }  // of a line, where it is saved
    RowStatistics<T>* statistics(i64 at) const {
        static_assert(sizeof(RowStatistics<T>) == STATISTICS * sizeof(T), "as `saved_block` tells it");
        return static_cast<RowStatistics<T>*>(n.saved_statistics) + at;
    }

    // --- where ---

    bool packed() const { return n.batch_sizes; }
    void lay_lines(Cursor& c) {
        c.take(starts, T_ + 1);
        c.take(packed_lengths, packed() ? B : 0);
    }
    void find_lines() {
        starts[0] = 0;
        for (i64 t = 0; t < T_; ++t) starts[t + 1] = starts[t] + (packed() ? n.batch_sizes[t] : B);
        if (!packed()) return;
        for (i64 t = 0; t < T_; ++t)
            for (i64 b = t + 1 < T_ ? rows_of(t + 1) : 0; b < rows_of(t); ++b) packed_lengths[b] = t + 1;
        lengths = packed_lengths;
    }
    i64 line(i64 t, i64 b) const { return starts[t] + b; }
    // How many rows have a line at time t; how many of rows [b0, b1).
    i64 rows_of(i64 t) const { return starts[t + 1] - starts[t]; }
    i64 rows_of(i64 t, i64 b0, i64 b1) const { return most(0, least(b1, rows_of(t)) - b0); }
    const E* x_at(i64 t, i64 b) const {
        return given(n.x) + (packed() ? line(t, b) * n.x_b : t * n.x_t + b * n.x_b);
    }
    // f(t, steps, rows, apart) for the lines of rows [b0, b1) at times [low, end): so many steps from t on have so many
    // rows, their first lines `apart` lines from each other. Packed lines with no others between them count as one step's.
    template <class Run> void runs(i64 low, i64 end, i64 b0, i64 b1, const Run& f) const {
        for (i64 t = low, steps = 1; t < end && rows_of(t, b0, b1); t += steps, steps = 1) {
            if (packed() && b0 == 0 && rows_of(t) <= b1) return f(t, 1, starts[end] - starts[t], 0);
            while (t + steps < end && rows_of(t + steps) == rows_of(t)) ++steps;
            f(t, steps, rows_of(t, b0, b1), rows_of(t));
        }
    }

    // --- when ---

    bool active(i64 t, i64 b) const { return !lengths || t < lengths[b]; }
    // Whether row b counts in the moments of batch norm at time t. With MADE_WITH_ENDED a row that has ended does, too: it
    // takes the step from its final state with the input 0, and the state after it is dropped.
    bool counts(i64 t, i64 b) const { return active(t, b) || (n.batch_norm == MADE_WITH_ENDED && t < longest); }
    // Whether row b starts step t from the zero state. A cut lies between two times; it is met at either of them.
    bool cut(i64 t, i64 b) const {
        const i64 at = n.reverse ? t + 1 : t;
        return n.reset && at < T_ && active(at, b) && n.reset[line(at, b)];
    }
    // Returns the share of h or c, with `size` units, that zoneout keeps at step t, or null.
    const T* kept_at(const void* kept, i64 t, i64 b, i64 size) const {
        if (!kept || n.one_share) return in(kept);
        const i64 step = n.reverse ? (lengths ? lengths[b] : T_) - 1 - t : t;
        return in(kept) + line(step, b) * size;
    }
    // Returns the numbers j ... j + k - 1 of a share.
    V<T> number_at(const T* share, i64 j, i64 k) const { return n.one_share ? V<T>{} + *share : widen<T>(share + j, k); }
    // Writes h as W_hh reads it, times recurrent dropout's factor, in a type that products read or in that of the state.
    template <class To, class From> void drop(To* to, const From* h, i64 b) const {
        const T* factor = in(n.dropout) + b * P;
        over<T>(P, [&](i64 j, i64 k) { narrow<T>(to + j, widen<T>(h + j, k) * widen<T>(factor + j, k), k); });
    }
    // Returns the time after which row b has the state that step t starts from; -1: it starts from the initial state.
    i64 time_before(i64 t, i64 b) const {
        if (!active(t, b)) return lengths[b] - 1;
        const i64 before = n.reverse ? t + 1 : t - 1;
        return before < 0 || before >= T_ || !active(before, b) ? -1 : before;
    }

    // --- parameters ---

    // The packed parameters of a pass: packed now, or found where an earlier call has left them.
    template <class Pass> static void find_parameters(Pass& pass) {
        if (!pass.n.prepared) return pass.pack_parameters();
        Cursor there{static_cast<char*>(const_cast<void*>(pass.n.prepared))};
        pass.lay_parameters(there);
        pass.layer.p = pass.eight(pass.vectors);
    }
    void lay_vectors(Cursor& c) { c.take(vectors, VECTORS * Z); }
    // The eight vectors of a block of memory, in the order of Recurrent::d_vectors.
    Vectors<T> eight(T* v) const { return {v, v + Z, v + 2 * Z, v + 3 * Z, v + 4 * Z, v + 5 * Z, v + 6 * Z, v + 7 * Z}; }
    void vector(T* to, const void* from, i64 gates, T missing) {
        for (i64 g = 0; g < gates; ++g)
            for (i64 u = 0; u < H; ++u) to[g * Hp + u] = from ? in(from)[g * H + u] : missing;
    }
    void prepare_vectors() {
        memset(vectors, 0, VECTORS * Z * sizeof(T));
        const Vectors<T> p = layer.p = eight(vectors);
        vector(p.gain_x, n.gain_x, G, 1);
        vector(p.gain_h, n.gain_h, G, 1);
        vector(p.inside_x, n.inside_x, G, 0);
        vector(p.inside_h, n.inside_h, G, 0);
        vector(p.outside_x, n.outside_x, G, 0);
        vector(p.outside_h, n.outside_h, G, 0);
        vector(p.gain_c, n.gain_c, 1, 1);
        vector(p.bias_c, n.bias_c, 1, 0);
        // Both biases at once, but for the part of a GRU's candidate that r multiplies.
        const i64 together = G == 3 && n.split ? 2 * Hp : G * Hp;
        for (i64 j = 0; j < together; ++j) p.outside_x[j] += p.outside_h[j];
        for (i64 j = 0; layer.streams == ADDED && j < G * Hp; ++j) p.outside_x[j] += p.inside_x[j] + p.inside_h[j];
    }

    // The matrix row of padded unit j; -1 where there is none.
    i64 unit(i64 j) const { return j / Hp < G && j % Hp < H ? j / Hp * H + j % Hp : -1; }

    // W^T as panels: their columns are the padded units, K the matrix's columns.
    template <class Unit>
    void pack_transposed(Panels<F>& to, const E* w, i64 columns, i64 from, i64 end, const Unit& unit) const {
        for (i64 q = from; q < end; ++q) {
            for (i64 half = 0; half < PANEL<F>; half += LANES<F>) {
                const E* rows[LANES<F>];
                for (i64 c = 0; c < LANES<F>; ++c) {
                    const i64 row = unit(q * PANEL<F> + half + c);
                    rows[c] = row < 0 ? nullptr : w + row * columns;
                }
                interleave(to.panel(q) + half, rows, columns);
            }
            if (const i64 lines = (columns + DEPTH<F> - 1) / DEPTH<F>; lines < to.K)
                memset(static_cast<void*>(to.panel(q) + lines * PANEL<F>), 0, (to.K - lines) * PANEL<F> * sizeof(F));
        }
    }
    // W as panels: their columns are the matrix's, K its rows, or what `unit` makes of them.
    template <class Unit>
    void pack(Panels<F>& to, const E* w, i64 columns, i64 from, i64 end, const Unit& unit) const {
        for (i64 q = from; q < end; ++q)
            for (i64 k = 0; k < to.K; ++k) {
                const E* rows[DEPTH<F>];
                for (i64 i = 0; i < DEPTH<F>; ++i) {
                    const i64 row = unit(k * DEPTH<F> + i);
                    rows[i] = row < 0 ? nullptr : w + row * columns;
                }
                join_panels(to, k, rows, columns, q, q + 1);
            }
    }
    // Line k of panels [from, end), whose columns are those of the rows.
    template <class Y>
    static void join_panels(const Panels<F>& to, i64 k, const Y* const* rows, i64 columns, i64 from, i64 end) {
        for (i64 q = from; q < end; ++q) {
            const i64 first = q * PANEL<F>, count = most(0, least(PANEL<F>, columns - first));
            const Y* here[DEPTH<F>];
            for (i64 i = 0; i < DEPTH<F>; ++i) here[i] = rows[i] ? rows[i] + first : nullptr;
            F* line = to.panel(q) + k * PANEL<F>;
            if (count == PANEL<F>) {  // so many numbers are a few vectors
                join(line, here, PANEL<F>);
            } else {
                for (i64 j = 0; j < PANEL<F>; j += LANES<F>) store(line + j, V<F>{});
                join(line, here, count);
            }
        }
    }
    void lay_panels(Cursor& c, Panels<F>& panels, i64 K, i64 columns) {
        panels.K = whole(K) / DEPTH<F>;
        panels.columns = round_up(columns, PANEL<F>);
        c.take(panels.data, panels.K * panels.columns);
    }
};

// Packs a pass's parameters for calls to come, and returns their size in bytes. Without a place for them it packs nothing.
template <class Pass> static i64 prepare(Pass& pass) {
    Cursor place{static_cast<char*>(const_cast<void*>(pass.n.prepared))};
    pass.lay_parameters(place);
    if (place.base) pass.pack_parameters();
    return place.used;
}

}  // namespace LAYERNORM_ISA
