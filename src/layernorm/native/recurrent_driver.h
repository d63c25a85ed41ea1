// The order in which a sequence is worked through.
//
// Forward: the batch's rows are shared out among threads; each thread takes its rows through all steps with no barrier,
// W_ih x in blocks of steps that stay in its cache, W_hh h step by step. Where there are fewer rows than threads and a
// step's product is worth a barrier, the columns of each product are shared out instead.
// Backward: blocks of steps, from the last one. In a block, first rows are shared out, as in the forward: the gradients of
// the summed inputs, of the state, of x. Then the units are shared out: dW += dz^T [x, h], summed over the block's rows in
// order, so that no sum depends on the number of threads.
#pragma once

#include "recurrent.h"
#include "scratch.h"

namespace LAYERNORM_ISA {

constexpr i64 STEP_BLOCK_BYTES = 512 << 10;  // of W_ih x, a thread's
constexpr i64 NEAR_BYTES = 1280 << 10;       // of W_hh: what leaves room for the rest in a core's own cache
constexpr i64 BACKWARD_ROWS = 384;           // rows of dz in a block of the backward
constexpr i64 ROW_GROUPS = 32;               // the parameters' gradients are first summed within groups of rows
constexpr i64 DIRECT_ROWS = 8;               // up to so many rows in a whole call the weights are not packed
constexpr i64 DENSE_SHARED = 64 << 10;       // a product of one row with a larger matrix is shared out
constexpr i64 STEP_SHARED = 512 << 10;       // and a product of few rows at every step
constexpr i64 ROW = 32;                      // a row of summed inputs is a multiple of it, and it of any panel
constexpr int INSIDE_X = 2, INSIDE_H = 3, OUTSIDE_X = 4, OUTSIDE_H = 5;  // of the eight vectors
constexpr i64 UNITS = REGISTERS == 32 ? 8 : 4;  // units of dz in one tile of dW: divides PAD

// The length of a row of summed inputs: whole panels; rows a multiple of 4 KB apart would share the cache's sets.
INLINE i64 padded(i64 units) {
    const i64 length = round_up(units, ROW);
    return length % 512 ? length : length + ROW;
}

template <class T> struct Sequence {
    const Recurrent& n;
    i64 T_, B, I, H, P, G, Hp, Pp, Z, W;  // Z: a row of summed inputs, whole panels wide; W: of the state h
    Layer<T> layer;
    T* vectors;
    Panels<T> ih, hh, hr;
    ParallelFor columns = nullptr;  // shares out the columns of a product, if rows are too few
    bool failed = false;

    explicit Sequence(const Recurrent& call) : n(call) {
        T_ = n.T, B = n.B, I = n.I, H = n.H, P = n.P, G = n.gates;
        Hp = round_up(H, PAD), Pp = round_up(P, PAD), Z = padded(G * Hp), W = round_up(Pp, PANEL<T>);
        layer.G = G, layer.H = H, layer.Hp = Hp;
        layer.split = n.split, layer.per_gate = n.span == 1, layer.all = n.span == 2, layer.norm = int(n.norm), layer.relu = n.relu;
        layer.cell = n.cell != 0, layer.carry = n.cell == 2;
        layer.norming = {n.norm == 2, n.deviation != 0, n.eps};
        layer.cell_norming = {n.rms != 0, n.deviation != 0, n.eps};
        layer.forget_bias = T(n.forget_bias);
        layer.has_inside_x = n.inside_x, layer.has_inside_h = n.inside_h;
    }

    bool few_rows(i64 rows) const { return rows < n.threads && G * H * P > STEP_SHARED; }
    void multiply(const Rows<T>& A, const Panels<T>& W, T* c, i64 outer_c, i64 ldc, i64 width) const {
        share(columns, W.count(), [&](i64 from, i64 end) {
            const i64 first = from * PANEL<T>, last = least(width, end * PANEL<T>);
            if (last > first) product<T>(A, {W.panel(from), W.K, last - first}, c + first, outer_c, ldc, last - first);
        });
    }

    const T* in(const void* q) const { return static_cast<const T*>(q); }
    T* out(void* q) const { return static_cast<T*>(q); }

    RowStatistics<T>* statistics(i64 at) const {
        static_assert(sizeof(RowStatistics<T>) == STATISTICS * sizeof(T), "as Python allocates it");
        return static_cast<RowStatistics<T>*>(n.saved_statistics) + at;
    }

    // --- when ---

    i64 time(i64 step) const { return n.reverse ? T_ - 1 - step : step; }
    bool active(i64 t, i64 b) const { return !n.lengths || t < n.lengths[b]; }
    // Whether row b starts step t from the zero state. A cut lies between two times; it is met at either of them.
    bool cut(i64 t, i64 b) const {
        const i64 at = n.reverse ? t + 1 : t;
        return n.reset && at < T_ && active(at, b) && n.reset[at * B + b];
    }
    // The state that step t starts from is that after this time; -1: the initial one.
    i64 time_before(i64 t, i64 b) const {
        const i64 before = n.reverse ? t + 1 : t - 1;
        return before < 0 || before >= T_ || !active(before, b) ? -1 : before;
    }

    // --- parameters ---

    void lay_vectors(Cursor& c) { c.take(vectors, VECTORS * Z); }
    // The eight vectors of a block of memory, in the order of Recurrent::d_vectors.
    Vectors<T> eight(T* v) const { return {v, v + Z, v + 2 * Z, v + 3 * Z, v + 4 * Z, v + 5 * Z, v + 6 * Z, v + 7 * Z}; }
    void vector(T* to, const void* from, i64 gates, T missing) {
        for (i64 g = 0; g < gates; ++g)
            for (i64 u = 0; u < H; ++u) to[g * Hp + u] = from ? in(from)[g * H + u] : missing;
    }
    void prepare_vectors() {
        memset(vectors, 0, VECTORS * Z * sizeof(T));
        const Vectors<T> p = eight(vectors);
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
        layer.p = p;
    }

    // The matrix row of padded unit j; -1 where there is none.
    i64 unit(i64 j) const { return j / Hp < G && j % Hp < H ? j / Hp * H + j % Hp : -1; }

    // W^T as panels: their columns are the padded units, K the matrix's columns.
    template <class Unit> void pack_transposed(Panels<T>& to, const T* w, i64 from, i64 end, const Unit& unit) const {
        for (i64 q = from; q < end; ++q)
            for (i64 half = 0; half < PANEL<T>; half += LANES<T>) {
                const T* rows[LANES<T>];
                for (i64 c = 0; c < LANES<T>; ++c) {
                    const i64 row = unit(q * PANEL<T> + half + c);
                    rows[c] = row < 0 ? nullptr : w + row * to.K;
                }
                interleave(to.panel(q) + half, rows, to.K);
            }
    }
    // W as panels: their columns are the matrix's, K the padded units.
    void pack(Panels<T>& to, const T* w, i64 columns, i64 from, i64 end) const {
        for (i64 q = from; q < end; ++q) {
            const i64 first = q * PANEL<T>, count = most(0, least(PANEL<T>, columns - first));
            for (i64 k = 0; k < to.K; ++k) {
                T* line = to.panel(q) + k * PANEL<T>;
                const i64 row = unit(k);
                memset(line, 0, PANEL<T> * sizeof(T));
                if (row >= 0) memcpy(line, w + row * columns + first, count * sizeof(T));
            }
        }
    }
    void lay_panels(Cursor& c, Panels<T>& panels, i64 K, i64 columns) {
        panels.K = K;
        panels.columns = round_up(columns, PANEL<T>);
        c.take(panels.data, K * panels.columns);
    }
};

// --- forward ---

template <class T> struct ForwardPass : Sequence<T> {
    using S = Sequence<T>;
    using S::n, S::T_, S::B, S::I, S::H, S::P, S::G, S::Hp, S::Z, S::W, S::layer, S::in, S::out;
    ParallelFor run;
    ForwardPass(const Recurrent& call, ParallelFor run) : S(call), run(run) {}

    void lay(Cursor& c) {
        S::lay_vectors(c);
        if (direct()) return;
        S::lay_panels(c, S::ih, I, Z);
        S::lay_panels(c, S::hh, P, Z);
        if (n.projected) S::lay_panels(c, S::hr, H, W);
    }

    void prepare() {
        S::prepare_vectors();
        if (direct()) return;
        const auto of_gates = [this](i64 j) { return S::unit(j); };
        const auto of_projection = [this](i64 j) { return j < P ? j : -1; };
        share(run, S::ih.count(), [&](i64 from, i64 end) {
            S::pack_transposed(S::ih, in(n.w_ih), from, end, of_gates);
            S::pack_transposed(S::hh, in(n.w_hh), from, end, of_gates);
        });
        if (n.projected)
            share(run, S::hr.count(),
                [&](i64 from, i64 end) { S::pack_transposed(S::hr, in(n.w_hr), from, end, of_projection); });
    }

    // Whether the weights are used as they are: for so few rows packing costs more than it gains.
    bool direct() const { return T_ * B <= DIRECT_ROWS && !n.projected; }
    void dense_gates(const T* a, const T* w, i64 K, T* z) const {
        memset(z, 0, Z * sizeof(T));
        share(G * H * K > DENSE_SHARED ? run : nullptr, G * (Hp / UNITS), [&](i64 from, i64 end) {
            for (i64 q = from; q < end; ++q) {
                const i64 g = q / (Hp / UNITS), u = q % (Hp / UNITS) * UNITS;
                dense(a, w + (g * H + u) * K, K, least(UNITS, H - u), z + g * Hp + u);
            }
        });
    }

    // How many rows go through the sequence together: few, so that what they need stays in cache beside W_hh; many, where
    // W_hh itself does not stay there and has to be worth its way.
    i64 rows_together() const { return P * Z * i64(sizeof(T)) <= NEAR_BYTES ? 2 * TILE : 12 * TILE; }

    // What a thread needs for its rows.
    struct Part {
        i64 rows, steps;
        const ForwardPass& pass;
        T *zx, *zh, *h, *c, *m, *temporary;
        RowStatistics<T>* statistics;
        void lay(Cursor& cursor) {
            cursor.take(zx, pass.n.saved_x ? 0 : steps * rows * pass.Z);
            cursor.take(zh, rows * most(pass.Z, pass.W));
            cursor.take(h, rows * pass.W);
            cursor.take(c, rows * pass.Hp);
            cursor.take(m, pass.n.projected ? rows * pass.Hp : 0);
            cursor.take(temporary, 4 * pass.Hp);
            cursor.take(statistics, 1);
        }
    };

    bool saves_h() const { return n.saved_h && n.split; }

    // W_ih x for times [t, t + steps): zx[time][row][Z], times `apart` elements apart.
    void input_side(i64 t, i64 steps, i64 b0, i64 rows, T* zx, i64 apart) const {
        const T* x = in(n.x) + t * n.x_t + b0 * n.x_b;
        if (direct())
            for (i64 s = 0; s < steps; ++s)
                for (i64 r = 0; r < rows; ++r)
                    dense_gates(x + s * n.x_t + r * n.x_b, in(n.w_ih), I, zx + s * apart + r * Z);
        else if (rows >= steps)
            S::multiply({x, steps, n.x_t, rows, n.x_b}, S::ih, zx, apart, Z, Z);
        else
            S::multiply({x, rows, n.x_b, steps, n.x_t}, S::ih, zx, Z, apart, Z);
    }

    void rows(i64 b0, i64 b1) {
        const i64 R = b1 - b0;
        Part part{R, most(1, least(T_, STEP_BLOCK_BYTES / i64(R * Z * sizeof(T)))), *this};
        if (!of_part.arrange(part)) {
            S::failed = true;
            return;
        }
        memset(part.h, 0, R * W * sizeof(T));
        memset(part.c, 0, R * Hp * sizeof(T));
        for (i64 r = 0; r < R; ++r) {
            memcpy(part.h + r * W, in(n.h0) + (b0 + r) * P, P * sizeof(T));
            if (n.c0) memcpy(part.c + r * Hp, in(n.c0) + (b0 + r) * H, H * sizeof(T));
        }
        for (i64 done = 0; done < T_; done += part.steps) {
            const i64 steps = least(part.steps, T_ - done), low = n.reverse ? T_ - done - steps : done;
            T* zx = n.saved_x ? out(n.saved_x) + (low * B + b0) * Z : part.zx;
            const i64 apart = (n.saved_x ? B : R) * Z;
            input_side(low, steps, b0, R, zx, apart);
            for (i64 s = 0; s < steps; ++s) {
                const i64 t = S::time(done + s);
                step(t, b0, R, zx + (t - low) * apart, part);
            }
        }
        for (i64 r = 0; r < R; ++r) {
            memcpy(out(n.h_n) + (b0 + r) * P, part.h + r * W, P * sizeof(T));
            if (n.c_n) memcpy(out(n.c_n) + (b0 + r) * H, part.c + r * Hp, H * sizeof(T));
        }
        of_part.release();
    }

    void step(i64 t, i64 b0, i64 R, T* zx, Part& part) {
        i64 rows = R;  // up to the last one that takes this step
        while (rows > 0 && !S::active(t, b0 + rows - 1)) --rows;
        if (n.reset)
            for (i64 r = 0; r < rows; ++r)
                if (S::cut(t, b0 + r)) {
                    memset(part.h + r * W, 0, W * sizeof(T));
                    memset(part.c + r * Hp, 0, Hp * sizeof(T));
                }
        T* zh = saves_h() ? out(n.saved_h) + (t * B + b0) * Z : part.zh;
        if (direct())
            for (i64 r = 0; r < rows; ++r) dense_gates(part.h + r * W, in(n.w_hh), P, zh + r * Z);
        else
            S::multiply({part.h, 1, 0, rows, W}, S::hh, zh, 0, Z, Z);
        for (i64 r = 0; r < rows; ++r) {
            if (!S::active(t, b0 + r)) continue;
            const i64 at = t * B + b0 + r;
            T* h = n.projected ? part.m + r * Hp : part.h + r * W;
            const Forward<T> w{zx + r * Z, zh + r * Z, part.c + r * Hp, h, n.saved_c ? out(n.saved_c) + at * Hp : nullptr,
                n.saved_statistics ? S::statistics(at) : part.statistics, part.temporary};
            memset(static_cast<void*>(w.statistics), 0, sizeof *w.statistics);
            layer.forward(w);
            if (n.saved_h && !n.split) memcpy(out(n.saved_h) + at * Hp, w.zh + 2 * Hp, Hp * sizeof(T));
        }
        if (n.projected) project(t, b0, rows, part);
        for (i64 r = 0; r < R; ++r) {
            T* y = out(n.output) + (t * B + b0 + r) * P;
            if (S::active(t, b0 + r)) memcpy(y, part.h + r * W, P * sizeof(T));
            else nothing(t, b0 + r, y);
            if (n.saved_output) memcpy(out(n.saved_output) + (t * B + b0 + r) * P, y, P * sizeof(T));
        }
    }

    // What a row that did not take the step leaves: zeros, so that no result of the op is left to chance.
    void nothing(i64 t, i64 b, T* y) const {
        const i64 at = t * B + b;
        memset(y, 0, P * sizeof(T));
        if (n.saved_x) memset(out(n.saved_x) + at * Z, 0, Z * sizeof(T));
        if (n.saved_h) memset(out(n.saved_h) + at * (n.split ? Z : Hp), 0, (n.split ? Z : Hp) * sizeof(T));
        if (n.saved_c) memset(out(n.saved_c) + at * Hp, 0, Hp * sizeof(T));
        if (n.saved_statistics) memset(static_cast<void*>(S::statistics(at)), 0, STATISTICS * sizeof(T));
    }

    // h = W_hr m, for the rows that took the step.
    void project(i64 t, i64 b0, i64 rows, Part& part) {
        S::multiply({part.m, 1, 0, rows, Hp}, S::hr, part.zh, 0, W, W);
        for (i64 r = 0; r < rows; ++r)
            if (S::active(t, b0 + r)) memcpy(part.h + r * W, part.zh + r * W, P * sizeof(T));
    }
};

template <class T> static int recurrent_forward(const Recurrent* call, ParallelFor run) {
    ForwardPass<T> pass(*call, run);
    if (!of_call.arrange(pass)) return 1;
    pass.prepare();
    const i64 together = pass.rows_together();
    const bool by_columns = pass.few_rows(pass.B);
    pass.columns = by_columns ? run : nullptr;
    share(by_columns ? nullptr : run, pass.B, [&](i64 b0, i64 b1) {
        const i64 chunks = (b1 - b0 + together - 1) / together, rows = (b1 - b0 + chunks - 1) / chunks;
        for (i64 b = b0; b < b1; b += rows) pass.rows(b, least(b1, b + rows));
    });
    of_call.release();
    return pass.failed;
}

// --- backward ---

template <class T> struct BackwardPass : Sequence<T> {
    using S = Sequence<T>;
    using S::n, S::T_, S::B, S::I, S::H, S::P, S::G, S::Hp, S::Z, S::W, S::layer, S::in, S::out;
    i64 groups, block, Q;        // groups of rows; steps in a block; rows in a block
    T *dh, *dc;                  // [B][W], [B][Hp]: the gradient of the state
    T *dzx, *dzh, *dm, *dht;     // [Q][Z], [Q][Z], [Q][W] (m that is projected, the gradient of what it becomes)
    T *x_panels, *h_panels, *m_panels;  // [panel][Q][PANEL]: x, h before the step, m
    T *dw_ih, *dw_hh, *dw_hr;    // [G*Hp][columns in whole panels], [Pp][...]
    T* sums;                     // [groups][VECTORS][Z]
    double* totals;              // [VECTORS][Z]
    i64 low, steps;              // the block: times [low, low + steps)

    explicit BackwardPass(const Recurrent& call) : S(call) {
        groups = least(B, ROW_GROUPS);
        block = most(1, least(T_, BACKWARD_ROWS / most(1, B)));
        Q = block * B;
    }

    i64 M() const { return n.projected ? round_up(Hp, PANEL<T>) : W; }  // a row of the gradient of o * tanh(c)
    i64 IW() const { return round_up(I, PANEL<T>); }
    i64 HW() const { return round_up(H, PANEL<T>); }
    i64 PW() const { return round_up(P, PANEL<T>); }

    void lay(Cursor& c) {
        S::lay_vectors(c);
        S::lay_panels(c, S::ih, G * Hp, I);
        S::lay_panels(c, S::hh, G * Hp, W);
        if (n.projected) S::lay_panels(c, S::hr, P, M());
        c.take(dh, B * W);
        c.take(dc, B * Hp);
        c.take(dzx, Q * Z);
        if (layer.two_streams()) c.take(dzh, Q * Z);
        else dzh = dzx;
        c.take(x_panels, Q * IW());
        c.take(h_panels, Q * PW());
        c.take(dw_ih, Z * IW());
        c.take(dw_hh, Z * PW());
        c.take(sums, groups * VECTORS * Z);
        c.take(totals, VECTORS * Z);
        c.take(dht, n.projected ? Q * W : 0);
        c.take(m_panels, n.projected ? Q * HW() : 0);
        c.take(dw_hr, n.projected ? W * HW() : 0);
    }

    void prepare(ParallelFor run) {
        S::prepare_vectors();
        share(run, S::ih.count(), [&](i64 from, i64 end) { S::pack(S::ih, in(n.w_ih), I, from, end); });
        share(run, S::hh.count(), [&](i64 from, i64 end) { S::pack(S::hh, in(n.w_hh), P, from, end); });
        if (n.projected)
            for (i64 q = 0; q < S::hr.count(); ++q)
                for (i64 k = 0; k < P; ++k)
                    for (i64 c = 0; c < PANEL<T>; ++c) {
                        const i64 column = q * PANEL<T> + c;
                        S::hr.panel(q)[k * PANEL<T> + c] = column < H ? in(n.w_hr)[k * H + column] : T(0);
                    }
        memset(totals, 0, VECTORS * Z * sizeof(double));
        memset(sums, 0, groups * VECTORS * Z * sizeof(T));
        memset(dw_ih, 0, Z * IW() * sizeof(T));
        memset(dw_hh, 0, Z * PW() * sizeof(T));
        if (n.projected) memset(dw_hr, 0, W * HW() * sizeof(T));
        memset(dh, 0, B * W * sizeof(T));
        memset(dc, 0, B * Hp * sizeof(T));
        for (i64 b = 0; b < B; ++b) {
            if (n.d_h_n) memcpy(dh + b * W, in(n.d_h_n) + b * P, P * sizeof(T));
            if (n.d_c_n) memcpy(dc + b * Hp, in(n.d_c_n) + b * H, H * sizeof(T));
        }
    }

    struct Part {
        i64 rows;
        const BackwardPass& pass;
        T *dm, *through, *temporary, *h_before, *c_before;
        void lay(Cursor& c) {
            c.take(dm, rows * pass.M());
            c.take(through, rows * pass.W);
            c.take(temporary, 8 * pass.Hp);
            c.take(h_before, pass.W);
            c.take(c_before, pass.Hp);
        }
    };

    i64 in_block(i64 t, i64 b) const { return (t - low) * B + b; }

    // The first part of a block: the rows of some groups, from the last step to the first.
    void rows(i64 g0, i64 g1) {
        const i64 b0 = g0 * B / groups, b1 = g1 * B / groups;
        Part part{b1 - b0, *this};
        if (!of_part.arrange(part)) {
            S::failed = true;
            return;
        }
        for (i64 s = steps - 1; s >= 0; --s) {
            const i64 t = n.reverse ? low + steps - 1 - s : low + s;
            step(t, b0, b1, part);
        }
        if (n.d_x) {
            T* dx = out(n.d_x) + (low * B + b0) * I;
            const T* dz = dzx + b0 * Z;
            const i64 R = b1 - b0;
            if (R >= steps) S::multiply({dz, steps, B * Z, R, Z}, S::ih, dx, B * I, I, I);
            else S::multiply({dz, R, Z, steps, B * Z}, S::ih, dx, I, B * I, I);
        }
        of_part.release();
    }

    void step(i64 t, i64 b0, i64 b1, Part& part) {
        const i64 R = b1 - b0, M = this->M();
        for (i64 b = b0; b < b1; ++b) {  // the gradient of h after the step, for the rows that took it
            T* d = (n.projected ? dht + in_block(t, b) * W : part.dm + (b - b0) * W);
            memset(d, 0, W * sizeof(T));
            if (!S::active(t, b)) continue;
            memcpy(d, dh + b * W, P * sizeof(T));
            if (!n.d_output) continue;
            const T* dy = in(n.d_output) + (t * B + b) * P;
            for (i64 j = 0; j < P; ++j) d[j] += dy[j];
        }
        if (n.projected) S::multiply({dht + in_block(t, b0) * W, 1, 0, R, W}, S::hr, part.dm, 0, M, M);
        for (i64 b = b0; b < b1; ++b) {
            if (S::active(t, b)) row(t, b, part.dm + (b - b0) * M, part);
            else nothing(t, b);
        }
        S::multiply({dzh + in_block(t, b0) * Z, 1, 0, R, Z}, S::hh, part.through, 0, W, W);
        for (i64 b = b0; b < b1; ++b) {
            if (!S::active(t, b)) continue;
            const T *through = part.through + (b - b0) * W, *direct = part.dm + (b - b0) * M;
            const bool cut = S::cut(t, b);
            for (i64 j = 0; j < P; ++j)
                dh[b * W + j] = cut ? T(0) : n.projected ? through[j] : through[j] + direct[j];
            if (cut) memset(dc + b * Hp, 0, Hp * sizeof(T));
        }
    }

    void row(i64 t, i64 b, T* dm, Part& part) {
        const i64 at = t * B + b, q = in_block(t, b), before = S::time_before(t, b), group = ((b + 1) * groups - 1) / B;
        const bool cut = S::cut(t, b);
        const T* h = before < 0 ? in(n.h0) + b * P : in(n.saved_output) + (before * B + b) * P;
        memset(part.h_before, 0, W * sizeof(T));
        if (!cut) memcpy(part.h_before, h, P * sizeof(T));
        memset(part.c_before, 0, Hp * sizeof(T));
        if (n.c0 && !cut) {
            if (before < 0) memcpy(part.c_before, in(n.c0) + b * H, H * sizeof(T));
            else c_after(before, b, part.c_before);
        }
        T* m = part.temporary + 7 * Hp;
        Backward<T> w;
        w.zx = in(n.saved_x) + at * Z;
        w.zh = n.split ? in(n.saved_h) + at * Z : n.saved_h ? in(n.saved_h) + at * Hp : nullptr;
        w.h_before = part.h_before, w.c_before = part.c_before;
        w.saved_c = n.saved_c ? in(n.saved_c) + at * Hp : nullptr;
        w.statistics = S::statistics(at);
        w.dh = dm, w.dc = dc + b * Hp, w.dzx = dzx + q * Z, w.dzh = dzh + q * Z;
        w.m = n.projected ? m : nullptr, w.temporary = part.temporary;
        w.sums = S::eight(sums + group * VECTORS * Z);
        layer.backward(w);
        const T* x = in(n.x) + t * n.x_t + b * n.x_b;
        spread(x_panels, q, x, I);
        spread(h_panels, q, part.h_before, P);
        if (n.projected) spread(m_panels, q, m, H);
    }

    // The cell's state after the step at time t.
    void c_after(i64 t, i64 b, T* to) const {
        const i64 at = t * B + b;
        const T* c = in(n.saved_c) + at * Hp;
        const Statistics<T> s = S::statistics(at)->c;
        for (i64 j = 0; j < Hp; j += LANES<T>) {
            const V<T> y = Layer<T>::hat(c, j, s) * load(layer.p.gain_c + j) + load(layer.p.bias_c + j);
            store<T>(to + j, layer.carry ? y : load(c + j));
        }
    }

    // A row that did not take the step gives nothing to any sum, whatever its x holds.
    void nothing(i64 t, i64 b) {
        const i64 q = in_block(t, b);
        memset(dzx + q * Z, 0, Z * sizeof(T));
        memset(dzh + q * Z, 0, Z * sizeof(T));
        spread(x_panels, q, nullptr, I);
        spread(h_panels, q, nullptr, P);
        if (n.projected) spread(m_panels, q, nullptr, H);
    }
    void spread(T* panels, i64 q, const T* row, i64 columns) const {
        for (i64 first = 0; first < columns; first += PANEL<T>) {
            T* to = panels + first * Q + q * PANEL<T>;
            memset(to, 0, PANEL<T> * sizeof(T));
            if (row) memcpy(to, row + first, least(PANEL<T>, columns - first) * sizeof(T));
        }
    }

    // The second part of a block: units [UNITS * u0, UNITS * u1) of every sum over the block's rows.
    struct Tiles {
        i64 size;
        T* data;
        void lay(Cursor& c) { c.take(data, size); }
    };
    void units(i64 u0, i64 u1) {
        const i64 rows = steps * B;
        Tiles tiles{(u1 - u0) * UNITS * rows, nullptr};
        if (!of_part.arrange(tiles)) {
            S::failed = true;
            return;
        }
        gather(tiles.data, dzx, Z, u0, u1, rows);
        add_products(tiles.data, x_panels, IW(), dw_ih, u0, u1, rows);
        if (dzh != dzx) gather(tiles.data, dzh, Z, u0, u1, rows);
        add_products(tiles.data, h_panels, PW(), dw_hh, u0, u1, rows);
        for (i64 v = 0; v < VECTORS; ++v)
            for (i64 g = 0; g < groups; ++g) {
                T* of_group = sums + (g * VECTORS + v) * Z;
                for (i64 j = u0 * UNITS; j < u1 * UNITS; ++j) {
                    totals[v * Z + j] += double(of_group[j]);
                    of_group[j] = 0;
                }
            }
        of_part.release();
    }
    void projected_units(i64 u0, i64 u1) {
        const i64 rows = steps * B;
        Tiles tiles{(u1 - u0) * UNITS * rows, nullptr};
        if (!of_part.arrange(tiles)) {
            S::failed = true;
            return;
        }
        gather(tiles.data, dht, W, u0, u1, rows);
        add_products(tiles.data, m_panels, HW(), dw_hr, u0, u1, rows);
        of_part.release();
    }
    // [unit / UNITS][row][UNITS] from [row][ld]
    void gather(T* to, const T* from, i64 ld, i64 u0, i64 u1, i64 rows) const {
        for (i64 u = u0; u < u1; ++u)
            for (i64 q = 0; q < rows; ++q, to += UNITS) memcpy(to, from + q * ld + u * UNITS, UNITS * sizeof(T));
    }
    void add_products(const T* tiles, const T* panels, i64 columns, T* dw, i64 u0, i64 u1, i64 rows) const {
        for (i64 first = 0; first < columns; first += PANEL<T>)
            for (i64 u = u0; u < u1; ++u)
                tile<T, UNITS, 1, true>(tiles + (u - u0) * rows * UNITS, 1, UNITS, panels + first * Q, rows,
                    dw + u * UNITS * columns + first, columns);
    }

    void finish(ParallelFor run) {
        share(run, G * H, [&](i64 from, i64 end) {
            for (i64 j = from; j < end; ++j) {
                const i64 padded = j / H * Hp + j % H;
                if (I) memcpy(out(n.d_w_ih) + j * I, dw_ih + padded * IW(), I * sizeof(T));
                memcpy(out(n.d_w_hh) + j * P, dw_hh + padded * PW(), P * sizeof(T));
            }
        });
        if (n.projected)
            for (i64 j = 0; j < P; ++j) memcpy(out(n.d_w_hr) + j * H, dw_hr + j * HW(), H * sizeof(T));
        for (i64 b = 0; b < B; ++b) {
            memcpy(out(n.d_h0) + b * P, dh + b * W, P * sizeof(T));
            if (n.d_c0) memcpy(out(n.d_c0) + b * H, dc + b * Hp, H * sizeof(T));
        }
        for (i64 v = 0; v < VECTORS; ++v)
            for (i64 g = 0; g < G; ++g) {
                i64 from = v;  // what is only added up has the gradient of its sum
                if (v == INSIDE_H && !layer.two_streams()) from = INSIDE_X;
                if (v == OUTSIDE_H && !(G == 3 && n.split && g == 2)) from = OUTSIDE_X;
                for (i64 u = 0; u < H; ++u)
                    out(n.d_vectors)[(v * G + g) * H + u] = T(totals[from * Z + g * Hp + u]);
            }
    }
};

template <class T> static int recurrent_backward(const Recurrent* call, ParallelFor run) {
    BackwardPass<T> pass(*call);
    if (!of_call.arrange(pass)) return 1;
    pass.prepare(run);
    pass.columns = pass.few_rows(pass.groups) ? run : nullptr;
    for (i64 done = 0; done < pass.T_; done += pass.block) {
        pass.steps = least(pass.block, pass.T_ - done);
        pass.low = call->reverse ? done : pass.T_ - done - pass.steps;
        share(pass.columns ? nullptr : run, pass.groups, [&](i64 g0, i64 g1) { pass.rows(g0, g1); });
        share(run, pass.G * pass.Hp / UNITS, [&](i64 u0, i64 u1) { pass.units(u0, u1); });
        if (call->projected)
            share(run, round_up(pass.P, UNITS) / UNITS, [&](i64 u0, i64 u1) { pass.projected_units(u0, u1); });
        if (pass.failed) break;
    }
    pass.finish(run);
    of_call.release();
    return pass.failed;
}

}  // namespace LAYERNORM_ISA
