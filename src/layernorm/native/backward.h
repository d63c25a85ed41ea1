// The backward over a sequence, in blocks of steps, from the last one. In a block, first rows are shared out, as in the
// forward: the gradients of the summed inputs, of the state, of x. Then the units are shared out: dW += dz^T [x, h], summed
// over the block's rows in order, so that no sum depends on the number of threads.
#pragma once

#include "sequence.h"

namespace LAYERNORM_ISA {

constexpr i64 BACKWARD_ROWS = 384;           // rows of dz in a block of the backward
constexpr i64 ROW_GROUPS = 32;               // the parameters' gradients are first summed within groups of rows

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

    ParallelFor run = nullptr;

    explicit BackwardPass(const Recurrent& call) : S(call) {
        groups = least(B, ROW_GROUPS);
        block = most(1, least(T_, BACKWARD_ROWS / most(1, B)));
        Q = block * B;
    }

    i64 M() const { return n.projected ? round_up(Hp, PANEL<T>) : W; }  // a row of the gradient of o * tanh(c)
    i64 IW() const { return round_up(I, PANEL<T>); }
    i64 HW() const { return round_up(H, PANEL<T>); }
    i64 PW() const { return round_up(P, PANEL<T>); }

    // Whether this call only gives the gradients of the summed inputs, from which a later product makes those of the
    // weights, of several calls at once.
    bool deferred() const { return n.totals; }

    void lay(Cursor& c) {
        if (!n.prepared) lay_parameters(c);
        c.take(dh, B * W);
        c.take(dc, B * Hp);
        c.take(dzx, Q * Z);
        if (layer.two_streams()) c.take(dzh, Q * Z);
        else dzh = dzx;
        c.take(sums, groups * VECTORS * Z);
        c.take(dht, n.projected ? Q * W : 0);
        if (deferred()) return;
        c.take(x_panels, Q * IW());
        c.take(h_panels, Q * PW());
        c.take(totals, VECTORS * Z);
        if (S::direct()) return;
        c.take(dw_ih, Z * IW());
        c.take(dw_hh, Z * PW());
        c.take(m_panels, n.projected ? Q * HW() : 0);
        c.take(dw_hr, n.projected ? W * HW() : 0);
    }
    void lay_parameters(Cursor& c) {
        S::lay_vectors(c);
        if (S::direct()) return;
        S::lay_panels(c, S::ih, G * Hp, I);
        S::lay_panels(c, S::hh, G * Hp, W);
        if (n.projected) S::lay_panels(c, S::hr, P, M());
    }

    void pack_parameters(ParallelFor run) {
        S::prepare_vectors();
        if (S::direct()) return;
        share(run, S::ih.count(), [&](i64 from, i64 end) { S::pack(S::ih, in(n.w_ih), I, from, end); });
        share(run, S::hh.count(), [&](i64 from, i64 end) { S::pack(S::hh, in(n.w_hh), P, from, end); });
        if (n.projected)
            for (i64 q = 0; q < S::hr.count(); ++q)
                for (i64 k = 0; k < P; ++k)
                    for (i64 c = 0; c < PANEL<T>; ++c) {
                        const i64 column = q * PANEL<T> + c;
                        S::hr.panel(q)[k * PANEL<T> + c] = column < H ? in(n.w_hr)[k * H + column] : T(0);
                    }
    }

    // Every sum is 0, and the state has the gradient that arrives.
    void start() {
        memset(sums, 0, groups * VECTORS * Z * sizeof(T));
        if (deferred()) {
            totals = static_cast<double*>(n.totals);
        } else {
            memset(totals, 0, VECTORS * Z * sizeof(double));
            if (!S::direct()) memset(dw_ih, 0, Z * IW() * sizeof(T));
            if (!S::direct()) memset(dw_hh, 0, Z * PW() * sizeof(T));
            if (n.projected) memset(dw_hr, 0, W * HW() * sizeof(T));
        }
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
            S::failed.set();
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
            if (S::direct())
                for (i64 s = 0; s < steps; ++s)
                    for (i64 r = 0; r < R; ++r) through_weights(dz + (s * B + r) * Z, in(n.w_ih), I, dx + (s * B + r) * I);
            else if (R >= steps) S::multiply({dz, steps, B * Z, R, Z}, S::ih, dx, B * I, I, I);
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
        if (S::direct())
            for (i64 r = 0; r < R; ++r)
                through_weights(dzh + (in_block(t, b0) + r) * Z, in(n.w_hh), P, part.through + r * W);
        else
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

    // dz^T W of one row, W as it is.
    void through_weights(const T* dz, const T* w, i64 columns, T* to) const {
        share(G * H * columns > DENSE_SHARED ? run : nullptr, (columns + 63) / 64, [&](i64 from, i64 end) {
            dense_transposed(dz, w, G, H, Hp, columns, from * 64, least(end * 64, columns), to);
        });
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
        w.zh = n.saved_h ? in(n.saved_h) + at * S::saved.h : nullptr;
        w.h_before = part.h_before, w.c_before = part.c_before;
        w.saved_c = n.saved_c ? in(n.saved_c) + at * Hp : nullptr;
        w.statistics = S::statistics(at);
        w.dh = dm, w.dc = dc + b * Hp, w.dzx = dzx + q * Z, w.dzh = dzh + q * Z;
        w.m = n.projected ? m : nullptr, w.temporary = part.temporary;
        w.sums = S::eight(sums + group * VECTORS * Z);
        layer.backward(w);
        if (deferred()) return hand_over(at, q, m);
        const T* x = in(n.x) + t * n.x_t + b * n.x_b;
        spread(x_panels, q, x, I);
        spread(h_panels, q, part.h_before, P);
        if (n.projected) spread(m_panels, q, m, H);
    }

    // The gradients of a row's summed inputs, and what is projected, for a product of several calls.
    void hand_over(i64 at, i64 q, const T* m) const {
        for (i64 g = 0; g < G; ++g) {
            memcpy(out(n.d_zx) + (at * G + g) * H, dzx + q * Z + g * Hp, H * sizeof(T));
            if (n.d_zh) memcpy(out(n.d_zh) + (at * G + g) * H, dzh + q * Z + g * Hp, H * sizeof(T));
        }
        if (n.projected) memcpy(out(n.m) + at * H, m, H * sizeof(T));
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
    // A row of x or h for the gradients of the weights: in panels, or as it is.
    void spread(T* panels, i64 q, const T* row, i64 columns) const {
        if (S::direct()) {
            T* to = panels + q * columns;
            row ? memcpy(to, row, columns * sizeof(T)) : memset(to, 0, columns * sizeof(T));
            return;
        }
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
            S::failed.set();
            return;
        }
        gather(tiles.data, dzx, Z, u0, u1, rows);
        add_products(tiles.data, x_panels, IW(), dw_ih, u0, u1, rows);
        if (dzh != dzx) gather(tiles.data, dzh, Z, u0, u1, rows);
        add_products(tiles.data, h_panels, PW(), dw_hh, u0, u1, rows);
        add_vectors(u0, u1);
        of_part.release();
    }
    // The same where the weights are used as they are: units [u0, u1) of all G * H, all rows in one block.
    void direct_units(i64 u0, i64 u1) const {
        for (i64 j = u0; j < u1; ++j) {
            const i64 padded = j / H * Hp + j % H;
            outer(dzx + padded, Z, x_panels, I, T_ * B, I, out(n.d_w_ih) + j * I);
            outer(dzh + padded, Z, h_panels, P, T_ * B, P, out(n.d_w_hh) + j * P);
        }
    }
    void add_vectors(i64 u0, i64 u1) const {
        for (i64 v = 0; v < VECTORS; ++v)
            for (i64 g = 0; g < groups; ++g) {
                T* of_group = sums + (g * VECTORS + v) * Z;
                for (i64 j = u0 * UNITS; j < u1 * UNITS; ++j) {
                    totals[v * Z + j] += double(of_group[j]);
                    of_group[j] = 0;
                }
            }
    }
    void projected_units(i64 u0, i64 u1) {
        const i64 rows = steps * B;
        Tiles tiles{(u1 - u0) * UNITS * rows, nullptr};
        if (!of_part.arrange(tiles)) {
            S::failed.set();
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
        finish_state();
        if (deferred()) return;
        share(run, G * H, [&](i64 from, i64 end) {
            if (S::direct()) return direct_units(from, end);
            for (i64 j = from; j < end; ++j) {
                const i64 padded = j / H * Hp + j % H;
                if (I) memcpy(out(n.d_w_ih) + j * I, dw_ih + padded * IW(), I * sizeof(T));
                memcpy(out(n.d_w_hh) + j * P, dw_hh + padded * PW(), P * sizeof(T));
            }
        });
        if (n.projected)
            for (i64 j = 0; j < P; ++j) memcpy(out(n.d_w_hr) + j * H, dw_hr + j * HW(), H * sizeof(T));
        finish_vectors();
    }
    void finish_state() const {
        for (i64 b = 0; b < B; ++b) {
            memcpy(out(n.d_h0) + b * P, dh + b * W, P * sizeof(T));
            if (n.d_c0) memcpy(out(n.d_c0) + b * H, dc + b * Hp, H * sizeof(T));
        }
    }
    void finish_vectors() const {
        for (i64 v = 0; v < VECTORS; ++v)
            for (i64 g = 0; n.d_vectors[v] && g < (v < OF_GATES ? G : 1); ++g) {
                i64 from = v;  // what is only added up has the gradient of its sum
                if (v == INSIDE_H && !layer.two_streams()) from = INSIDE_X;
                if (v == OUTSIDE_H && !(G == 3 && n.split && g == 2)) from = OUTSIDE_X;
                for (i64 u = 0; u < H; ++u)
                    out(n.d_vectors[v])[g * H + u] = T(totals[from * Z + g * Hp + u]);
            }
    }
};

template <class T> static int recurrent_backward(const Recurrent* call, ParallelFor run) {
    BackwardPass<T> pass(*call);
    if (!of_call.arrange(pass)) return 1;
    pass.run = run;
    pass.find_parameters(pass, run);
    pass.start();
    pass.columns = pass.few_rows(pass.groups) ? run : nullptr;
    for (i64 done = 0; done < pass.T_; done += pass.block) {
        pass.steps = least(pass.block, pass.T_ - done);
        pass.low = call->reverse ? done : pass.T_ - done - pass.steps;
        share(pass.columns ? nullptr : run, pass.groups, [&](i64 g0, i64 g1) { pass.rows(g0, g1); });
        const i64 units = pass.G * pass.Hp / UNITS;
        if (pass.deferred() || pass.direct()) {
            pass.add_vectors(0, units);
        } else {
            share(run, units, [&](i64 u0, i64 u1) { pass.units(u0, u1); });
            if (call->projected)
                share(run, round_up(pass.P, UNITS) / UNITS, [&](i64 u0, i64 u1) { pass.projected_units(u0, u1); });
        }
        if (pass.failed) break;
    }
    pass.finish(run);
    of_call.release();
    return pass.failed;
}

template <class T> static i64 prepare_backward(const Recurrent* call, void* to, ParallelFor run) {
    BackwardPass<T> pass(*call);
    return prepare(pass, to, run);
}

// The gradients of the eight vectors, once all deferred calls have added to `totals`.
template <class T> static void recurrent_vectors(const Recurrent* call) {
    BackwardPass<T> pass(*call);
    pass.totals = static_cast<double*>(call->totals);
    pass.finish_vectors();
}

}  // namespace LAYERNORM_ISA
