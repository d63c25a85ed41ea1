// The backward over a sequence, in blocks of steps, from the last one. In a block, first rows are shared out, as in the
// forward: the gradients of the summed inputs, of the state, of x. Then x and h are packed, and the units are shared out:
// dW += dz^T [x, h], summed over the block's rows in order, of a wide step BACKWARD_ROWS at a time, so that no sum depends
// on the number of threads. Under batch norm all rows are one group, as in the forward.
#pragma once

#include "batch_norm.h"
#include "sequence.h"

namespace LAYERNORM_ISA {

constexpr i64 BACKWARD_ROWS = 384;           // rows of dz in a block of the backward
constexpr i64 ROW_GROUPS = 16;               // the vectors' gradients are first summed within so many groups of rows, or more

template <class T, class E, class... Factors> struct BackwardPass : Sequence<T, E, Factors...> {
    using S = Sequence<T, E, Factors...>;
    using typename S::F, typename S::X;
    using S::UNITS;
    using S::n, S::run, S::T_, S::B, S::I, S::H, S::P, S::G, S::Hp, S::Z, S::W, S::layer, S::in, S::out, S::given, S::result;
    i64 Q;                       // lines in a block at most
    T *dh, *dc;                  // [B][W], [B][Hp]: the gradient of the state
    T *d_restart_h, *d_restart_c;  // the same of the state after a cut
    E* dropped;                  // [Q][P]: the h that W_hh read, if that is not the state
    X *dzx, *dzh, *dht, *m;      // [Q][Z], [Q][Z], [Q][W], [Q][Hp] (m is projected, dht the gradient of what it becomes)
    Panels<F> x_panels, h_panels, m_panels;  // of Q rows: x, h before the step, m
    T *dw_ih, *dw_hh, *dw_hr;    // [G*Hp][columns in whole panels], [P in whole tiles][...]; or the results themselves
    T* sums;                     // [groups][VECTORS][Z]
    double* totals;              // [VECTORS][Z]
    i64 low, end;                // the block: times [low, end)
    i64 first_rows, groups;      // of a block: rows at its first time, of which there are most; groups of these
    bool first_block;            // its products are not added to what is there
    BatchNorm<T> batch_norm;

    BackwardPass(const Recurrent& call, ParallelFor run)
        : S(call, run, rows_of_direct_backward(call)), batch_norm(call) {
        Q = S::packed() ? most(B, least(S::all_lines, BACKWARD_ROWS)) : B * most(1, least(T_, BACKWARD_ROWS / most(1, B)));
    }

    // What a forward rounded its backward rounds, too.
    static i64 rows_of_direct_backward(const Recurrent& n) {
        if (S::ROUNDS) return S::rows_of_direct_forward(n);
        return SAME<F, Pair> ? 8 : n.T > FEW_STEPS ? 24 : DIRECT_ROWS;
    }
    // A row of the gradient of o * tanh(c). Without a projection that is the gradient of h, and a row is W.
    i64 M() const { return round_up(Hp, PANEL<F>); }

    // Whether this call only gives the gradients of the summed inputs, from which a later product makes those of the
    // weights, of several calls at once.
    bool deferred() const { return n.totals; }

    void lay(Cursor& c) {
        batch_norm.lay(c);
        S::lay_lines(c);
        if (!n.prepared) lay_parameters(c);
        c.take(dh, B * W);
        c.take(dc, B * Hp);
        c.take(d_restart_h, n.restart_h ? B * W : 0);
        c.take(d_restart_c, n.restart_c ? B * Hp : 0);
        c.take(dropped, n.dropout ? Q * P : 0);
        c.take(dzx, Q * Z);
        if (layer.two_streams()) c.take(dzh, Q * Z);
        else dzh = dzx;
        c.take(sums, groups_of(B) * VECTORS * Z);
        c.take(dht, n.projected ? Q * W : 0);
        if (deferred()) return;
        c.take(totals, VECTORS * Z);
        if (S::direct()) return;
        S::lay_panels(c, x_panels, Q, I);
        S::lay_panels(c, h_panels, Q, P);
        lay_gradient(c, dw_ih, n.d_w_ih, H == Hp, G * Hp, I);
        lay_gradient(c, dw_hh, n.d_w_hh, H == Hp, G * Hp, P);
        c.take(m, n.projected ? Q * Hp : 0);
        S::lay_panels(c, m_panels, n.projected ? Q : 0, H);
        if (n.projected) lay_gradient(c, dw_hr, n.d_w_hr, P % UNITS == 0, round_up(P, UNITS), H);
    }
    // Where the gradient of a weight is summed: in the result, if that has whole tiles.
    void lay_gradient(Cursor& c, T*& dw, [[maybe_unused]] void* to, [[maybe_unused]] bool whole, i64 rows, i64 columns) {
        if constexpr (SAME<E, T>)
            if (whole && columns == S::whole_columns(columns)) {
                dw = result(to);
                return;
            }
        c.take(dw, rows * S::whole_columns(columns));
    }
    // The sums of one row of a weight, brought to the result if they are not there.
    void finish_gradient(E* to, const T* dw, i64 row, i64 padded, i64 columns) const {
        if (static_cast<const void*>(to) != dw && columns)
            convert(to + row * columns, dw + padded * S::whole_columns(columns), columns);
    }
    void lay_parameters(Cursor& c) {
        S::lay_vectors(c);
        if (S::direct()) return;
        S::lay_panels(c, S::ih, G * Hp, I);
        S::lay_panels(c, S::hh, G * Hp, W);
        if (n.projected) S::lay_panels(c, S::hr, P, M());
    }

    void pack_parameters() {
        S::prepare_vectors();
        if (S::direct()) return;
        const auto of_gates = [this](i64 j) { return S::unit(j); };
        const auto of_projection = [this](i64 j) { return j < P ? j : -1; };
        share(run, S::ih.count(), [&](i64 from, i64 end) { S::pack(S::ih, given(n.w_ih), I, from, end, of_gates); });
        share(run, S::hh.count(), [&](i64 from, i64 end) { S::pack(S::hh, given(n.w_hh), P, from, end, of_gates); });
        if (n.projected)
            share(run, S::hr.count(),
                [&](i64 from, i64 end) { S::pack(S::hr, given(n.w_hr), H, from, end, of_projection); });
    }

    // The next block of steps, after `done`: as many as have Q lines, one at least, if there is one.
    void begin_block(i64 done) {
        first_block = done == 0;
        low = n.reverse ? done : T_ - done, end = low;
        i64 lines = 0;
        while (end - low < T_ - done) {
            lines += S::rows_of(n.reverse ? end : low - 1);
            if (lines > Q) break;
            n.reverse ? ++end : --low;
        }
        first_rows = end > low ? S::rows_of(low) : B;
        groups = groups_of(first_rows);
    }
    i64 groups_of(i64 rows) const { return least(rows, n.batch_norm ? 1 : most(ROW_GROUPS, rows / SUMMED_ROWS)); }

    // The vectors' sums are 0, and the state has the gradient that arrives.
    void start() {
        memset(sums, 0, groups_of(B) * VECTORS * Z * sizeof(T));
        if (deferred()) {
            totals = static_cast<double*>(n.totals);
        } else {
            memset(totals, 0, VECTORS * Z * sizeof(double));
        }
        memset(dh, 0, B * W * sizeof(T));
        memset(dc, 0, B * Hp * sizeof(T));
        if (n.restart_h) memset(d_restart_h, 0, B * W * sizeof(T));
        if (n.restart_c) memset(d_restart_c, 0, B * Hp * sizeof(T));
        if (const i64 end = S::whole(G * Hp); end > G * Hp)  // the products read zeros there
            for (i64 q = 0; q < Q; ++q) {
                memset(dzx + q * Z + G * Hp, 0, (end - G * Hp) * sizeof(X));
                memset(dzh + q * Z + G * Hp, 0, (end - G * Hp) * sizeof(X));
            }
        for (i64 b = 0; b < B; ++b) {
            if (n.d_h_n) convert(dh + b * W, given(n.d_h_n) + b * P, P);
            if (n.d_c_n) convert(dc + b * Hp, given(n.d_c_n) + b * H, H);
        }
    }

    struct Part {
        i64 rows;
        const BackwardPass& pass;
        T *dm, *through, *temporary, *h_before, *c_before;
        T* kept;  // the share of dc that goes past a step
        T* centred;  // c - mean, under batch norm
        Backward<T>* taken;  // the rows that go through a step together
        RowStatistics<T> none = RowStatistics<T>::none();
        T *dzx, *dzh, *dht;  // of these rows (dht: of one), where the products read another type
        T* dx;               // of the block, where the result is of another type
        void lay(Cursor& c) {
            const i64 together = pass.rows_at_once(rows);
            c.take(dzx, SAME<X, T> ? 0 : together * pass.Z);
            c.take(dzh, SAME<X, T> ? 0 : together * pass.Z);
            c.take(dht, SAME<X, T> ? 0 : pass.W);
            c.take(dx, SAME<E, T> || !pass.n.d_x ? 0 : least(pass.Q, (pass.end - pass.low) * rows) * pass.I);
            c.take(dm, rows * pass.M());
            c.take(through, rows * pass.W);
            c.take(temporary, together * 8 * pass.Hp);
            c.take(h_before, together * pass.W);
            c.take(c_before, together * pass.Hp);
            c.take(kept, pass.n.kept_c || pass.n.batch_norm ? together * pass.Hp : 0);
            c.take(centred, pass.n.batch_norm && pass.n.saved_c ? rows * pass.Hp : 0);
            c.take(taken, together);
        }
    };

    i64 in_block(i64 t, i64 b) const { return S::line(t, b) - S::line(low, 0); }
    i64 block_lines() const { return S::line(end, 0) - S::line(low, 0); }
    i64 lines() const { return S::whole(block_lines()) / DEPTH<F>; }  // the same in factors, as the sums over them need it

    // The first part of a block: the rows of some groups, from the last step to the first.
    void rows(i64 g0, i64 g1) {
        const i64 b0 = g0 * first_rows / groups, b1 = g1 * first_rows / groups;
        Part part{b1 - b0, *this};
        if (!of_part.arrange(part)) return S::failed.set();
        for (i64 s = 0; s < end - low; ++s) {
            const i64 t = n.reverse ? low + s : end - 1 - s;
            if (const i64 R = S::rows_of(t, b0, b1)) step(t, b0, b0 + R, part);
        }
        if (n.d_x) input_side(b0, b1, part.dx);
        of_part.release();
    }

    // The gradient of x, W_ih^T dz; `wide`: where it is made, if the result is of another type.
    void input_side(i64 b0, i64 b1, [[maybe_unused]] T* wide) const {
        S::runs(low, end, b0, b1, [&](i64 t, i64 steps, i64 R, i64 lines_apart) {
            E* dx = result(n.d_x) + S::line(t, b0) * I;
            const Rows<X> dz{dzx + in_block(t, b0) * Z, steps, lines_apart * Z, R, Z};
            T* made;
            i64 apart;  // numbers from one step to the next
            if constexpr (SAME<E, T>) made = dx, apart = lines_apart * I;
            else made = wide, apart = R * I;
            if (S::direct()) through_weights(dz, given(n.w_ih), I, made, apart, I);
            else S::multiply_run(dz, S::ih, made, apart, I, I);
            if constexpr (!SAME<E, T>)
                for (i64 s = 0; s < steps; ++s) convert(dx + s * lines_apart * I, made + s * apart, R * I);
        });
        for (i64 t = low; n.batch_norm == MADE_WITH_ENDED && t < end; ++t)
            for (i64 b = b0; b < b1; ++b)
                if (!S::active(t, b)) memset(result(n.d_x) + S::line(t, b) * I, 0, I * sizeof(E));
    }

    void step(i64 t, i64 b0, i64 b1, Part& part) {
        const i64 R = b1 - b0, M = this->M();
        for (i64 b = b0; b < b1; ++b) {  // the gradient of h after the step, for the rows that took it
            X* factors = dht + in_block(t, b) * W;
            T* d = n.projected ? as_wide(factors, part.dht) : part.dm + (b - b0) * W;
            if (!S::active(t, b)) {
                memset(d, 0, W * sizeof(T));
            } else {
                convert(d, dh + b * W, W);  // with the zeros behind the units
                if (n.d_output) add_elements(d, given(n.d_output) + S::line(t, b) * P, P);
                if (const T* share = S::kept_at(n.kept_h, t, b, P)) part_ways(d, dh + b * W, share, P);
            }
            if (n.projected) S::as_factors(factors, d, W);
        }
        if (n.projected) S::multiply({dht + in_block(t, b0) * W, 1, 0, R, W}, S::hr, part.dm, 0, M, S::whole_columns(Hp));
        if (n.batch_norm) batch_norm.read_step(t);
        const i64 together = S::rows_at_once(R);
        for (i64 first = b0; first < b1; first += together) {
            i64 taken = 0;
            for (i64 b = first; b < least(b1, first + together); ++b) {
                if (S::counts(t, b)) part.taken[taken] = begin_row(t, b, part.dm + (b - b0) * M, b - first, part), ++taken;
                else nothing(t, b);
            }
            if (n.batch_norm) batch_norm.backward(part.taken, taken, S::eight(batch_norm.sums), sums, run);
            else layer.backward(part.taken, taken);
            taken = 0;
            for (i64 b = first; b < least(b1, first + together); ++b)
                if (S::counts(t, b)) end_row(t, b, part.taken[taken++], b - first, part);
        }
        if (S::direct())
            through_weights({dzh + in_block(t, b0) * Z, 1, 0, R, Z}, given(n.w_hh), P, part.through, 0, W);
        else
            S::multiply({dzh + in_block(t, b0) * Z, 1, 0, R, Z}, S::hh, part.through, 0, W, S::whole_columns(P));
        for (i64 b = b0; b < b1; ++b) {
            if (!S::counts(t, b)) continue;
            const T *through = part.through + (b - b0) * W, *direct = part.dm + (b - b0) * M;
            const bool cut = S::cut(t, b);
            const T* drop = n.dropout ? in(n.dropout) + b * P : nullptr;
            const T* kept = n.kept_h || !S::active(t, b) ? dh + b * W : nullptr;
            over<T>(P, [&](i64 j, i64 k) {
                V<T> d = load(through + j);
                if (drop) d *= widen<T>(drop + j, k);
                if (!n.projected) d += load(direct + j);
                if (kept) d += load(kept + j);
                narrow<T>(dh + b * W + j, d, k);
            });
            if (!cut) continue;
            if (n.restart_h) add_elements(d_restart_h + b * W, dh + b * W, P);
            if (n.restart_c) add_elements(d_restart_c + b * Hp, dc + b * Hp, H);
            memset(dh + b * W, 0, P * sizeof(T));
            memset(dc + b * Hp, 0, Hp * sizeof(T));
        }
    }

    // dz^T W of few rows, W as it is.
    void through_weights(const Rows<X>& dz, const E* w, i64 columns, T* to, i64 outer_to, i64 ld) const {
        const FewRows<X, T> few(dz, to, outer_to, ld);
        share(G * H * columns > DENSE_SHARED ? run : nullptr, (columns + 63) / 64, [&](i64 from, i64 end) {
            dense_transposed(few, w, G, H, Hp, columns, from * 64, least(end * 64, columns));
        });
    }

    // Parts the gradient of a state after a step: d keeps what is the new state's, `kept` gets what is the old one's.
    void part_ways(T* d, T* kept, const T* share, i64 count) const {
        over<T>(count, [&](i64 j, i64 k) {
            const V<T> of_share = S::number_at(share, j, k), all = load(d + j);
            narrow<T>(kept + j, of_share * all, k);
            narrow<T>(d + j, (T(1) - of_share) * all, k);
        });
    }
    template <class From> static void add_elements(T* to, const From* from, i64 count) {
        over<T>(count, [&](i64 j, i64 k) { narrow<T>(to + j, load(to + j) + widen<T>(from + j, k), k); });
    }
    // Where numbers are made that become factors: in place, or in `apart`, if the products read another type.
    static T* as_wide(X* factors, [[maybe_unused]] T* apart) {
        if constexpr (SAME<X, T>) return factors;
        else return apart;
    }

    // The h that step t of row b starts from, without dropout; null: zeros.
    const E* h_before(i64 t, i64 b) const {
        const i64 before = S::time_before(t, b);
        if (S::cut(t, b)) return n.restart_h ? given(n.restart_h) + b * P : nullptr;
        return before < 0 ? given(n.h0) + b * P : given(n.saved_output) + S::line(before, b) * P;
    }

    // The x of a step; null: zeros, of a row that has ended.
    const E* x_read(i64 t, i64 b) const { return S::active(t, b) ? S::x_at(t, b) : nullptr; }

    // `h_before` as W_hh read it, once `begin_row` has been there.
    const E* h_read(i64 t, i64 b) const {
        const E* h = h_before(t, b);
        return h && n.dropout ? dropped + in_block(t, b) * P : h;
    }

    // own: the row's place among those that go through the step together.
    Backward<T> begin_row(i64 t, i64 b, T* dm, i64 own, Part& part) {
        const i64 at = S::line(t, b), q = in_block(t, b);
        const i64 group = ((b + 1) * groups - 1) / first_rows;
        Backward<T> w{};
        const E* h = n.dropout || G == 3 ? h_before(t, b) : nullptr;
        if (n.dropout && h) S::drop(dropped + q * P, h, b);
        if (G == 3) w.h_before = widened_state(part.h_before + own * W, h, P);
        if (G == 4) w.c_before = c_before(t, b, part.c_before + own * Hp);
        w.zx = in(n.saved_x) + at * Z;
        w.zh = n.saved_h ? in(n.saved_h) + at * S::size_of_saved_h() : nullptr;
        w.saved_c = n.saved_c ? in(n.saved_c) + at * Hp : nullptr;
        w.statistics = n.saved_statistics ? S::statistics(at) : &part.none;
        if (n.batch_norm && n.saved_c) w.saved_c = centre(part.centred + own * Hp, w.saved_c);
        w.dh = dm, w.dc = dc + b * Hp;
        w.dzx = as_wide(dzx + q * Z, part.dzx + own * Z);
        w.dzh = dzh == dzx ? w.dzx : as_wide(dzh + q * Z, part.dzh + own * Z);
        w.temporary = part.temporary + own * 8 * Hp, w.m = n.projected ? w.temporary + 7 * Hp : nullptr;
        w.sums = S::eight(n.batch_norm ? batch_norm.sums_of(own) : sums + group * VECTORS * Z);
        T* kept = part.kept + own * Hp;
        if (!S::active(t, b)) memcpy(kept, w.dc, Hp * sizeof(T)), memset(w.dc, 0, Hp * sizeof(T));
        else if (const T* share = S::kept_at(n.kept_c, t, b, H)) part_ways(w.dc, kept, share, H);
        return w;
    }
    const T* centre(T* to, const T* c) const {
        for (i64 j = 0; j < Hp; j += LANES<T>) store<T>(to + j, load(c + j) - load(batch_norm.place[OF_C].mean + j));
        return to;
    }
    void end_row(i64 t, i64 b, const Backward<T>& w, i64 own, Part& part) {
        const i64 at = S::line(t, b), q = in_block(t, b);
        if (n.kept_c || !S::active(t, b)) add_elements(w.dc, part.kept + own * Hp, H);
        S::as_factors(dzx + q * Z, w.dzx, G * Hp);
        if (dzh != dzx) S::as_factors(dzh + q * Z, w.dzh, G * Hp);
        if (deferred()) hand_over(at, w);
        else if (n.projected) convert(m + q * Hp, w.m, Hp);
    }

    // The gradients of a row's summed inputs, and what is projected, for a product of several calls.
    void hand_over(i64 at, const Backward<T>& w) const {
        for (i64 g = 0; g < G; ++g) {
            memcpy(out(n.d_zx) + (at * G + g) * H, w.dzx + g * Hp, H * sizeof(T));
            if (n.d_zh) memcpy(out(n.d_zh) + (at * G + g) * H, w.dzh + g * Hp, H * sizeof(T));
        }
        if (n.projected) memcpy(out(n.m) + at * H, w.m, H * sizeof(T));
    }

    // A row of a state [B][size] with zeros behind it, in the type that is computed in; null: zeros.
    static const T* widened_state(T* to, const E* state, i64 size) {
        memset(to, 0, round_up(size, PAD) * sizeof(T));
        if (state) convert(to, state, size);
        return to;
    }
    // The c that step t of row b starts from: where it lies, or in `to`.
    const T* c_before(i64 t, i64 b, T* to) const {
        const i64 before = S::time_before(t, b);
        if (S::cut(t, b)) return widened_state(to, n.restart_c ? given(n.restart_c) + b * H : nullptr, H);
        if (before < 0) return widened_state(to, given(n.c0) + b * H, H);
        const i64 at = S::line(before, b);
        const T* c = in(n.saved_kept ? n.saved_kept : n.saved_c) + at * Hp;
        if (n.saved_kept || !layer.carry) return c;
        const Statistics<T> s = S::statistics(at)->c;
        for (i64 j = 0; j < Hp; j += LANES<T>) {
            const V<T> y = Layer<T>::hat(c, j, s) * load(layer.p.gain_c + j) + load(layer.p.bias_c + j);
            store<T>(to + j, y);
        }
        return to;
    }

    // A row that did not take the step gives nothing to any sum, whatever its x holds.
    void nothing(i64 t, i64 b) {
        const i64 q = in_block(t, b);
        memset(dzx + q * Z, 0, Z * sizeof(X));
        memset(dzh + q * Z, 0, Z * sizeof(X));
    }

    // The second part of a block: lines [from, to) of what dz is multiplied with, a factor's rows each.
    void pack_rows(i64 from, i64 to) const {
        i64 t = low;
        for (i64 k = from; k < to; ++k) {
            const E *x[DEPTH<F>] = {}, *h[DEPTH<F>] = {};
            const X* projected[DEPTH<F>] = {};
            for (i64 i = 0; i < DEPTH<F>; ++i) {
                const i64 q = k * DEPTH<F> + i;
                if (q >= block_lines()) continue;
                while (in_block(t + 1, 0) <= q) ++t;
                const i64 b = q - in_block(t, 0);
                if (!S::counts(t, b)) continue;
                x[i] = x_read(t, b);
                h[i] = h_read(t, b);
                projected[i] = m + q * Hp;
            }
            S::join_panels(x_panels, k, x, I, 0, x_panels.count());
            S::join_panels(h_panels, k, h, P, 0, h_panels.count());
            if (n.projected) S::join_panels(m_panels, k, projected, H, 0, m_panels.count());
        }
    }

    // The third part: units [UNITS * u0, UNITS * u1) of every sum over the block's rows.
    struct Tiles {
        i64 size;
        F* data;
        void lay(Cursor& c) { c.take(data, size); }
    };
    void units(i64 u0, i64 u1) {
        Tiles tiles{(u1 - u0) * UNITS * lines(), nullptr};
        if (!of_part.arrange(tiles)) return S::failed.set();
        gather(tiles.data, dzx, Z, u0, u1);
        add_products(tiles.data, x_panels, I, dw_ih, u0, u1);
        if (dzh != dzx) gather(tiles.data, dzh, Z, u0, u1);
        add_products(tiles.data, h_panels, P, dw_hh, u0, u1);
        add_vectors(u0, u1);
        of_part.release();
    }
    // The same where the weights are used as they are: units [u0, u1) of all G * H, all rows in one block.
    void direct_units(i64 u0, i64 u1) const {
        const auto x = [this](i64 t, i64 b) { return x_read(t, b); };
        const auto h = [this](i64 t, i64 b) { return h_read(t, b); };
        direct_products(dzx, u0, u1, I, result(n.d_w_ih), x);
        direct_products(dzh, u0, u1, P, result(n.d_w_hh), h);
    }
    // dW = dz^T b, units [u0, u1); row(t, b): null, if it is zeros.
    template <class Row>
    void direct_products(const X* dz, i64 u0, i64 u1, i64 K, E* dw, const Row& row) const {
        constexpr i64 N = OUTER_UNITS;
        const X* from[DIRECT_ROWS];
        const E* b[DIRECT_ROWS];
        i64 rows = 0;
        for (i64 t = low; t < end; ++t)
            for (i64 r = 0; r < S::rows_of(t); ++r)
                if (S::counts(t, r) && (b[rows] = row(t, r))) from[rows++] = dz + in_block(t, r) * Z;
        for (i64 j = u0; j < u1; j += N) {
            T a[DIRECT_ROWS][N];
            E* c[N];
            for (i64 i = 0; i < N; ++i) {
                const i64 u = least(j + i, u1 - 1), padded = u / H * Hp + u % H;
                for (i64 r = 0; r < rows; ++r) a[r][i] = widened<T>(from[r][padded]);
                c[i] = dw + u * K;
            }
            outer(a, b, rows, K, c);
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
        Tiles tiles{(u1 - u0) * UNITS * lines(), nullptr};
        if (!of_part.arrange(tiles)) return S::failed.set();
        gather(tiles.data, dht, W, u0, u1);
        add_products(tiles.data, m_panels, H, dw_hr, u0, u1);
        of_part.release();
    }
    // [unit / UNITS][line][UNITS] from [row][ld]; for tiles [unit / UNITS][line / 16][UNITS][16]
    void gather(F* to, const X* from, i64 ld, i64 u0, i64 u1) const {
        for (i64 u = u0; u < u1; ++u)
            for (i64 k = 0; k < lines(); ++k, to += UNITS) {
                const X* rows[DEPTH<F>];
                for (i64 i = 0; i < DEPTH<F>; ++i) {
                    const i64 q = k * DEPTH<F> + i;
                    rows[i] = q < block_lines() ? from + q * ld + u * UNITS : nullptr;
                }
                join(to, rows, UNITS);
                if constexpr (TILED<F>)
                    if (k % 16 == 15) transpose_square(to - 15 * UNITS);
            }
    }
    void add_products(const F* tiles, const Panels<F>& panels, i64 columns, T* dw, i64 u0, i64 u1) const {
        columns = S::whole_columns(columns);
        if constexpr (TILED<F>)
            return (first_block ? tile_sums<false, Panels<F>> : tile_sums<true, Panels<F>>)(
                tiles, u1 - u0, panels, lines(), dw + u0 * UNITS * columns);
        constexpr Tile<F> sums[2][2] = {{tile<F, UNITS, 1, true>, tile<F, UNITS, 1, false>},
            {tile<F, UNITS, 2, true>, tile<F, UNITS, 2, false>}};
        for (i64 from = 0; from < lines() || from == 0; from += BACKWARD_ROWS)
            for (i64 p = 0; p < panels.count(); ++p)
                for (i64 u = u0; u < u1; ++u)
                    sums[columns - p * PANEL<F> >= PANEL<F>][first_block && from == 0](
                        tiles + ((u - u0) * lines() + from) * UNITS, 1, UNITS, panels.panel(p) + from * PANEL<F>,
                        least(BACKWARD_ROWS, lines() - from), dw + u * UNITS * columns + p * PANEL<F>, columns);
    }

    void finish() {
        finish_state();
        if (deferred()) return;
        share(run, G * H, [&](i64 from, i64 end) {
            if (S::direct()) return direct_units(from, end);
            for (i64 j = from; j < end; ++j) {
                const i64 padded = j / H * Hp + j % H;
                finish_gradient(result(n.d_w_ih), dw_ih, j, padded, I);
                finish_gradient(result(n.d_w_hh), dw_hh, j, padded, P);
            }
        });
        if (n.projected)
            for (i64 j = 0; j < P; ++j) finish_gradient(result(n.d_w_hr), dw_hr, j, j, H);
        finish_vectors();
    }
    void finish_state() const {
        for (i64 b = 0; b < B; ++b) {
            convert(result(n.d_h0) + b * P, dh + b * W, P);
            if (n.d_c0) convert(result(n.d_c0) + b * H, dc + b * Hp, H);
            if (n.d_restart_h) convert(result(n.d_restart_h) + b * P, d_restart_h + b * W, P);
            if (n.d_restart_c) convert(result(n.d_restart_c) + b * H, d_restart_c + b * Hp, H);
        }
    }
    void finish_vectors() const {
        for (i64 v = 0; v < VECTORS; ++v)
            for (i64 g = 0; n.d_vectors[v] && g < (v < OF_GATES ? G : 1); ++g) {
                i64 from = v;  // what is only added up has the gradient of its sum
                if (v == INSIDE_H && !layer.two_streams()) from = INSIDE_X;
                if (v == OUTSIDE_H && !(G == 3 && n.split && g == 2)) from = OUTSIDE_X;
                if (layer.streams == ADDED && v < OF_GATES) from = OUTSIDE_X;
                for (i64 u = 0; u < H; ++u)
                    out(n.d_vectors[v])[g * H + u] = T(totals[from * Z + g * Hp + u]);
            }
    }
};

template <class T, class E, class... Factors> static int recurrent_backward(const Recurrent* call, ParallelFor run) {
    BackwardPass<T, E, Factors...> pass(*call, run);
    if (pass.ROUNDS && pass.direct()) return NOT_ROUNDED;
    if (!of_call.arrange(pass)) return 1;
    pass.find_lines();
    pass.find_parameters(pass);
    pass.start();
    pass.batch_norm.begin(pass.layer);
    i64 done = 0;
    do {  // a sequence of no steps has one empty block, whose sums are 0
        pass.begin_block(done);
        pass.columns = pass.shares_columns(pass.groups) ? run : nullptr;
        share(pass.columns ? nullptr : run, pass.groups, [&](i64 g0, i64 g1) { pass.rows(g0, g1); });
        const i64 units = pass.G * pass.Hp / pass.UNITS;
        if (pass.deferred() || pass.direct()) {
            pass.add_vectors(0, units);
        } else {
            share(run, pass.lines(), [&](i64 from, i64 end) { pass.pack_rows(from, end); }, 32);
            share(run, units, [&](i64 u0, i64 u1) { pass.units(u0, u1); });
            if (call->projected)
                share(run, round_up(pass.P, pass.UNITS) / pass.UNITS, [&](i64 u0, i64 u1) { pass.projected_units(u0, u1); });
        }
        done += pass.end - pass.low;
    } while (done < pass.T_ && !pass.failed);
    pass.finish();
    of_call.release();
    return pass.failed;
}

template <class T, class E, class... Factors> static i64 prepare_backward(const Recurrent* call, ParallelFor run) {
    BackwardPass<T, E, Factors...> pass(*call, run);
    return prepare(pass);
}

// The gradients of the eight vectors, once all deferred calls have added to `totals`.
template <class T> static void recurrent_vectors(const Recurrent* call) {
    BackwardPass<T, T> pass(*call, nullptr);
    pass.totals = static_cast<double*>(call->totals);
    pass.finish_vectors();
}

}  // namespace LAYERNORM_ISA
